"""Several students as one module: their scores side by side, and their soft vote.

E members, B images, K classes; x_BCHW images, scores_EBK one score per member, image and class.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

BREAK_EVEN = 4
"""Members from which on one batched call is less work for the host than a call of each: measured, see ``Ensemble``."""


class Ensemble(nn.Module):
    """Nets of one architecture on the same images: scores (E, B, K), gradients to each member's own parameters.

    ``batched``: one call for all members (vmap over their stacked weights), True or False; None follows a rule that
    no clock can change: batched on a CUDA device from ``BREAK_EVEN`` members on, else member by member. Measured
    on one CPU thread (forward, backward and a fused SGD step; fp32, channels-last), milliseconds of processor time
    member by member / batched:

        ============================  ==============  ==============
                                      two members     three members
        ============================  ==============  ==============
        cnn_small, 256x1x8x8             6.7 / 11.0      7.8 / 14.9
        cnn_medium, 256x3x12x12           52 / 111        76 / 142
        resnet18_8x, 32x3x32x32        1254 / 1424     1782 / 2167
        ============================  ==============  ==============

    so on a CPU batching never paid. A GPU was not measured. What small nets wait for there is the host, whose share
    was measured on the same nets made narrow (batched over member by member): two members 1.4 to 2.0, three 1.0 to
    1.3, four 0.8 to 1.0, five 0.8 to 1.0.

    Both ways agree to rounding, and update the statistics of batch normalisation while training; dropout draws
    independently for each member, other numbers in each way. Member by member whatever is asked for: under autocast
    (vmap's convolutions passed it by, on a CPU with torch 2.15); members that are compiled on their own, that are
    not all in one mode, or that vmap cannot take (tried once per mode, on two images and without any effect).
    Forward hooks are called for every member only with ``batched`` False.

    Raises ValueError without nets, or where their weights differ in name or shape.
    """

    def __init__(self, nets: Sequence[nn.Module], batched: bool | None = None) -> None:
        super().__init__()
        if len({_outline(net) for net in nets}) != 1:
            raise ValueError(f"expected nets of one architecture, got {', '.join(map(_kind, nets)) or 'none'}")
        self.members = nn.ModuleList(nets)
        self.training = all(net.training for net in nets)
        self._wanted = batched
        self._batchable: dict[bool, bool] = {}  # by mode

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Scores (E, B, K) before any softmax."""
        if self._batches(x_BCHW):
            return self._call_at_once(x_BCHW)
        return torch.stack([member(x_BCHW) for member in self.members])

    def _batches(self, x_BCHW: Tensor) -> bool:
        by_rule = x_BCHW.is_cuda and len(self.members) >= BREAK_EVEN
        wanted = by_rule if self._wanted is None else self._wanted
        if not wanted or torch.is_autocast_enabled(x_BCHW.device.type):
            return False
        modes = {member.training for member in self.members}
        if len(modes) > 1 or any(member._compiled_call_impl is not None for member in self.members):
            return False
        (mode,) = modes
        if mode not in self._batchable:
            self._batchable[mode] = self._can_batch(x_BCHW[:2])
        return self._batchable[mode]

    def _can_batch(self, x_BCHW: Tensor) -> bool:
        """Whether vmap can take the members as they are; random state, statistics and weights stay as they are."""
        devices = [x_BCHW.device] if x_BCHW.is_cuda else []
        with torch.no_grad(), torch.random.fork_rng(devices):
            try:
                self._call_stacked(x_BCHW)
            except RuntimeError:  # for instance a branch that depends on values
                return False
        return True

    def _call_at_once(self, x_BCHW: Tensor) -> Tensor:
        scores_EBK, buffers = self._call_stacked(x_BCHW)
        if self.members[0].training:
            for name, stacked in buffers.items():
                for member, value in zip(self.members, stacked.unbind(), strict=True):
                    member.get_buffer(name).copy_(value)
        return scores_EBK

    def _call_stacked(self, x_BCHW: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The scores, and the members' buffers by name (E, ...) as the call left them; the members' own stay."""
        parameters = _stack([dict(member.named_parameters()) for member in self.members])
        with torch.no_grad():
            buffers = _stack([dict(member.named_buffers()) for member in self.members])

        def call(tensors: dict[str, Tensor]) -> Tensor:
            scores_BK: Tensor = functional_call(self.members[0], tensors, (x_BCHW,))
            return scores_BK

        scores_EBK: Tensor = torch.vmap(call, randomness="different")(parameters | buffers)
        return scores_EBK, buffers


class Vote(nn.Module):
    """The soft vote of several nets, as scores: the logarithm of the mean of their class probabilities."""

    def __init__(self, nets: Sequence[nn.Module]) -> None:
        super().__init__()
        self.ensemble = Ensemble(nets)
        self.training = self.ensemble.training  # so that who evaluates a vote gives its members back as they were

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Log-probabilities (B, K)."""
        logs_EBK = self.ensemble(x_BCHW).log_softmax(dim=2)
        vote_BK: Tensor = logs_EBK.logsumexp(dim=0) - math.log(len(logs_EBK))
        return vote_BK


def _stack(of_members: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([own[name] for own in of_members]) for name in of_members[0]}


def _outline(net: nn.Module) -> tuple[tuple[str, torch.Size], ...]:
    return tuple((name, value.shape) for name, value in net.state_dict().items())


def _kind(net: nn.Module) -> str:
    return type(net).__name__
