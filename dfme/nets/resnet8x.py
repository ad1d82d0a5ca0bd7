"""ResNet-8x: the ResNets of small images, as the literature on data-free extraction and distillation uses them.

A 3x3 stem without pooling and three halvings, so 32x32 images end in 4x4 features (a total stride of 8).
Source: He et al. 2016 (arXiv 1512.03385), with the parameter names of the published checkpoints
(``conv1 bn1 layer{1..4}.{i}.conv{1,2,3} .bn{1,2,3} .shortcut.{0,1} linear``), so that those load as they are.
"""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from dfme.nets.batch_norm import SteadyBatchNorm2d

WIDTHS = (64, 128, 256, 512)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, planes, 3, stride=stride, padding=1, bias=False)
        self.bn1 = SteadyBatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = SteadyBatchNorm2d(planes)
        self.shortcut = _shortcut(inputs, planes, stride)

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) to (B, planes, H / stride, W / stride)."""
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut; four times as many channels leave it."""

    expansion = 4

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        outputs = self.expansion * planes
        self.conv1 = nn.Conv2d(inputs, planes, 1, bias=False)
        self.bn1 = SteadyBatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride=stride, padding=1, bias=False)
        self.bn2 = SteadyBatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, outputs, 1, bias=False)
        self.bn3 = SteadyBatchNorm2d(outputs)
        self.shortcut = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) to (B, 4 * planes, H / stride, W / stride)."""
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        return F.relu(self.bn3(self.conv3(out)) + self.shortcut(x))


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    if stride == 1 and inputs == outputs:
        return nn.Sequential()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), SteadyBatchNorm2d(outputs))


class ResNet8x(nn.Module):
    """Images (B, C, H, W) to scores (B, K), for any height and width.

    The mean over the last features is the usual 4x4 average pool at 32x32 and its natural extension elsewhere.
    """

    def __init__(
        self, block: type[BasicBlock | Bottleneck], counts: tuple[int, ...], channels: int, num_classes: int
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
        self.bn1 = SteadyBatchNorm2d(64)
        stages, inputs = [], 64
        for index, (planes, count) in enumerate(zip(WIDTHS, counts, strict=True)):
            strides = [2 if index else 1] + [1] * (count - 1)
            blocks = []
            for stride in strides:
                blocks.append(block(inputs, planes, stride))
                inputs = planes * block.expansion
            stages.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.linear = nn.Linear(inputs, num_classes)
        for module in self.modules():
            # A meta tensor has no values, and filling one with normals imports half of torch first (3 s).
            if isinstance(module, nn.Conv2d) and not module.weight.is_meta:
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Scores (B, K) before any softmax."""
        out = F.relu(self.bn1(self.conv1(x_BCHW)))
        out = self.layer4(self.layer3(self.layer2(self.layer1(out))))
        scores_BK: Tensor = self.linear(out.mean((2, 3)))
        return scores_BK


def resnet18_8x(shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """ResNet-18-8x: 11.2 million parameters; the usual student."""
    return ResNet8x(BasicBlock, (2, 2, 2, 2), shape[0], num_classes)


def resnet34_8x(shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """ResNet-34-8x: 21.3 million parameters; the usual teacher."""
    return ResNet8x(BasicBlock, (3, 4, 6, 3), shape[0], num_classes)


def resnet50_8x(shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """ResNet-50-8x: 23.5 million parameters, in bottlenecks."""
    return ResNet8x(Bottleneck, (3, 4, 6, 3), shape[0], num_classes)
