"""The batch normalisation of our nets."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from dfme.compute import on_accelerator


class SteadyBatchNorm2d(nn.BatchNorm2d):
    """Batch normalisation that also takes a single value per channel while training.

    One small image ends in 1x1 features, whose deviation does not exist and for which torch raises. The running
    statistics stand in for it, so that a batch may be of one, as the last one that a budget leaves.

    On an accelerator batches are not counted: nothing of ours reads the count, which torch launches a kernel for.
    """

    def forward(self, input: Tensor) -> Tensor:
        """(B, C, H, W) to the same shape."""
        alone = input.numel() == self.num_features
        if self.training and (alone or on_accelerator(input.device)):
            average, share = (self.running_mean, self.running_var), 0.0 if alone else self.momentum
            assert share is not None
            return F.batch_norm(input, *average, self.weight, self.bias, not alone, share, self.eps)
        return super().forward(input)
