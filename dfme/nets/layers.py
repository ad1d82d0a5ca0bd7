"""What several of our architectures are made of."""

import math

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from dfme.compute.device import on_accelerator


class SteadyBatchNorm2d(nn.BatchNorm2d):
    """Batch normalisation that also takes a single value per channel while training.

    One small image, as a budget may leave in the end, ends in 1x1 features, for which torch raises:
    the running statistics stand in. On an accelerator batches are not counted, which would launch a
    kernel.
    """

    def forward(self, input: Tensor) -> Tensor:
        """(B, C, H, W) to the same shape."""
        alone = input.numel() == self.num_features
        if self.training and (alone or on_accelerator(input.device)):
            average = (self.running_mean, self.running_var)
            share = 0.0 if alone else self.momentum
            assert share is not None
            return F.batch_norm(input, *average, self.weight, self.bias, not alone, share, self.eps)
        return super().forward(input)


def averaged_down(x_BCHW: Tensor, most: int | None) -> Tensor:
    """Images of at most ``most`` pixels a side, by the least whole number of pixels averaged."""
    if most is None or max(x_BCHW.shape[2:]) <= most:
        return x_BCHW
    cells = [math.ceil(size / most) for size in x_BCHW.shape[2:]]
    return F.avg_pool2d(x_BCHW, cells, ceil_mode=True)
