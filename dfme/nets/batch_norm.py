"""The batch normalisation of our nets."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class SteadyBatchNorm2d(nn.BatchNorm2d):
    """Batch normalisation that also takes a single value per channel while training.

    One small image ends in 1x1 features, whose deviation does not exist and for which torch raises. The running
    statistics stand in for it, so that a batch may be of one, as the last one that a budget leaves.
    """

    def forward(self, input: Tensor) -> Tensor:
        """(B, C, H, W) to the same shape."""
        if self.training and input.numel() == self.num_features:
            return F.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
            )
        return super().forward(input)
