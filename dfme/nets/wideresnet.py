"""Wide residual networks for small images: WRN-depth-width.

Source: Zagoruyko and Komodakis 2016 (arXiv 1605.07146): pre-activation blocks, widths 16, 32, 64 times the
widening factor. Parameters are named as in the widely used PyTorch port: ``conv1
block{1,2,3}.layer.{i}.{bn1,conv1,bn2,conv2,convShortcut} bn1 fc``.
"""

from __future__ import annotations

import math

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from dfme.nets.batch_norm import SteadyBatchNorm2d


class WideBlock(nn.Module):
    """Normalise, rectify, convolve, twice; a 1x1 convolution carries the shortcut where the width changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1 = SteadyBatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn2 = SteadyBatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.convShortcut = None
        if inputs != outputs:
            self.convShortcut = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) to (B, outputs, H / stride, W / stride)."""
        active = F.relu(self.bn1(x))
        out: Tensor = self.conv2(F.relu(self.bn2(self.conv1(active))))
        return out + (x if self.convShortcut is None else self.convShortcut(active))


class WideStage(nn.Module):
    """``count`` blocks of one width; the first may halve the image."""

    def __init__(self, count: int, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        first = WideBlock(inputs, outputs, stride)
        self.layer = nn.Sequential(first, *(WideBlock(outputs, outputs, 1) for _ in range(count - 1)))

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) to (B, outputs, H / stride, W / stride)."""
        out: Tensor = self.layer(x)
        return out


class WideResNet(nn.Module):
    """Images (B, C, H, W) to scores (B, K), for any height and width.

    ``depth`` is 6n + 4 layers, ``factor`` widens every stage. The mean over the last features is the usual
    8x8 average pool at 32x32.
    """

    def __init__(self, depth: int, factor: int, channels: int, num_classes: int) -> None:
        super().__init__()
        assert (depth - 4) % 6 == 0, "a wide ResNet has 6n + 4 layers"
        count = (depth - 4) // 6
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.block1 = WideStage(count, 16, 16 * factor, stride=1)
        self.block2 = WideStage(count, 16 * factor, 32 * factor, stride=2)
        self.block3 = WideStage(count, 32 * factor, 64 * factor, stride=2)
        self.bn1 = SteadyBatchNorm2d(64 * factor)
        self.fc = nn.Linear(64 * factor, num_classes)
        for module in self.modules():
            # A meta tensor has no values, and filling one with normals imports half of torch first (3 s).
            if isinstance(module, nn.Conv2d) and not module.weight.is_meta:
                fan_out = module.out_channels * math.prod(module.kernel_size)
                nn.init.normal_(module.weight, std=math.sqrt(2 / fan_out))
        nn.init.zeros_(self.fc.bias)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Scores (B, K) before any softmax."""
        out = self.block3(self.block2(self.block1(self.conv1(x_BCHW))))
        scores_BK: Tensor = self.fc(F.relu(self.bn1(out)).mean((2, 3)))
        return scores_BK


def wrn16_1(shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """WRN-16-1: 0.17 million parameters."""
    return WideResNet(16, 1, shape[0], num_classes)


def wrn16_2(shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """WRN-16-2: 0.69 million parameters."""
    return WideResNet(16, 2, shape[0], num_classes)


def wrn40_2(shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """WRN-40-2: 2.2 million parameters."""
    return WideResNet(40, 2, shape[0], num_classes)


def wrn28_10(shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """WRN-28-10: 36.5 million parameters."""
    return WideResNet(28, 10, shape[0], num_classes)
