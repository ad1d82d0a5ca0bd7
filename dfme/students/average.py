"""The moving average of a student's weights."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class MovingAverage(AveragedModel):
    """A net's parameters and buffers, averaged with the weight ``decay`` on what was; the first update copies them.

    The numbers are those of torch's own update, which sends its counter from the host to the device every time: a GPU
    waits for it.
    """

    def __init__(self, net: nn.Module, decay: float) -> None:
        super().__init__(net, use_buffers=True)
        self._average = get_ema_multi_avg_fn(decay)

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        """Take in ``model`` as it is now; nothing waits for an accelerator."""
        own, now = ([*net.parameters(), *net.buffers()] for net in (self.module, model))
        if self.n_averaged == 0:
            torch._foreach_copy_(own, now)
        else:
            for floating in (True, False):
                pairs = [pair for pair in zip(own, now, strict=True) if pair[0].is_floating_point() == floating]
                if pairs:
                    self._average([pair[0] for pair in pairs], [pair[1] for pair in pairs], self.n_averaged)
        self.n_averaged += 1
