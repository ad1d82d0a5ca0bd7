"""Networks of the DFME literature: ResNet-8x, wide ResNet, LeNet-5 and small CNNs."""

import math
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from itertools import pairwise

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


WIDTHS = (64, 128, 256, 512)
NARROW_WIDTHS = (64, 128, 192, 192)


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
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), SteadyBatchNorm2d(outputs)
    )


class ResNet8x(nn.Module):
    """Images (B, C, H, W) to scores (B, K), for any height and width.

    ``counts`` are blocks and ``widths`` channels, one per stage. The mean over the last features is
    the usual 4x4 average pool at 32x32.
    """

    def __init__(
        self,
        block: type[BasicBlock | Bottleneck],
        counts: tuple[int, ...],
        channels: int,
        num_classes: int,
        widths: tuple[int, ...] = WIDTHS,
    ) -> None:
        super().__init__()
        inputs = widths[0]
        self.conv1 = nn.Conv2d(channels, inputs, 3, padding=1, bias=False)
        self.bn1 = SteadyBatchNorm2d(inputs)
        stages = []
        for index, (planes, count) in enumerate(zip(widths, counts, strict=True)):
            strides = [2 if index else 1] + [1] * (count - 1)
            blocks = []
            for stride in strides:
                blocks.append(block(inputs, planes, stride))
                inputs = planes * block.expansion
            stages.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.linear = nn.Linear(inputs, num_classes)
        for module in self.modules():
            # A meta tensor has no values, and filling one with normals imports half of torch first
            # (3 s).
            if isinstance(module, nn.Conv2d) and not module.weight.is_meta:
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Scores (B, K) before any softmax."""
        out = F.relu(self.bn1(self.conv1(x_BCHW)))
        out = self.layer4(self.layer3(self.layer2(self.layer1(out))))
        scores_BK: Tensor = self.linear(out.mean((2, 3)))
        return scores_BK


class WideBlock(nn.Module):
    """Normalise, rectify, convolve, twice; a 1x1 convolution carries the shortcut where the width
    changes.
    """

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


def _wide_stage(count: int, inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """``count`` blocks of one width, under their usual name; the first may halve the image."""
    first = WideBlock(inputs, outputs, stride)
    others = (WideBlock(outputs, outputs, 1) for _ in range(count - 1))
    return nn.Sequential(OrderedDict(layer=nn.Sequential(first, *others)))


class WideResNet(nn.Module):
    """Images (B, C, H, W) to scores (B, K), for any height and width.

    ``depth`` is 6n + 4 layers, ``factor`` widens every stage. The mean over the last features is
    the usual 8x8 average pool at 32x32.
    """

    def __init__(self, depth: int, factor: int, channels: int, num_classes: int) -> None:
        super().__init__()
        assert (depth - 4) % 6 == 0, "a wide ResNet has 6n + 4 layers"
        count = (depth - 4) // 6
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.block1 = _wide_stage(count, 16, 16 * factor, stride=1)
        self.block2 = _wide_stage(count, 16 * factor, 32 * factor, stride=2)
        self.block3 = _wide_stage(count, 32 * factor, 64 * factor, stride=2)
        self.bn1 = SteadyBatchNorm2d(64 * factor)
        self.fc = nn.Linear(64 * factor, num_classes)
        for module in self.modules():
            # A meta tensor has no values, and filling one with normals imports half of torch first
            # (3 s).
            if isinstance(module, nn.Conv2d) and not module.weight.is_meta:
                fan_out = module.out_channels * math.prod(module.kernel_size)
                nn.init.normal_(module.weight, std=math.sqrt(2 / fan_out))
        nn.init.zeros_(self.fc.bias)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Scores (B, K) before any softmax."""
        out = self.block3(self.block2(self.block1(self.conv1(x_BCHW))))
        scores_BK: Tensor = self.fc(F.relu(self.bn1(out)).mean((2, 3)))
        return scores_BK


FIELD = 32  # pixels that the three convolutions see at once: smaller images are padded to it


class LeNet5(nn.Module):
    """Images (B, C, H, W) to scores (B, K).

    Images smaller than 32x32 get a black frame (28x28 gets the two pixels per side of the
    original); larger ones are read at every place where 32x32 pixels fit, and the 120 features are
    averaged over those places.
    """

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.conv3 = nn.Conv2d(16, 120, 5)
        self.fc1 = nn.Linear(120, 84)
        self.fc2 = nn.Linear(84, num_classes)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Scores (B, K) before any softmax."""
        rows, columns = (max(0, FIELD - size) for size in x_BCHW.shape[2:])
        out = F.pad(x_BCHW, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))
        out = F.max_pool2d(F.relu(self.conv1(out)), 2)
        out = F.max_pool2d(F.relu(self.conv2(out)), 2)
        features = F.relu(self.conv3(out)).mean((2, 3))
        scores_BK: Tensor = self.fc2(F.relu(self.fc1(features)))
        return scores_BK


class SmallCnn(nn.Module):
    """3x3 convolutions with batch normalisation, one linear layer: images (B, C, H, W) to scores
    (B, K).

    ``widths`` and ``strides`` are one per convolution. The last features are averaged down (or
    repeated up) to ``grid`` x ``grid`` cells where the image leaves another number, so every size
    of image has the same weights. A side longer than ``most`` pixels is first averaged down, by the
    least whole number that leaves at most so many: finer detail is lost.
    """

    def __init__(
        self,
        widths: tuple[int, ...],
        strides: tuple[int, ...],
        grid: int,
        channels: int,
        num_classes: int,
        most: int | None = None,
    ) -> None:
        super().__init__()
        self.most = most
        layers: list[nn.Module] = []
        for (inputs, outputs), stride in zip(pairwise((channels, *widths)), strides, strict=True):
            layers.append(nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False))
            layers += [SteadyBatchNorm2d(outputs), nn.ReLU(inplace=True)]
        self.grid = (grid, grid)
        self.features = nn.Sequential(*layers)
        self.linear = nn.Linear(widths[-1] * grid * grid, num_classes)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Scores (B, K) before any softmax."""
        features = self.features(averaged_down(x_BCHW, self.most))
        # pooling to the same size would cost a third of the step and change nothing
        if features.shape[2:] != self.grid:
            features = F.adaptive_avg_pool2d(features, self.grid)
        scores_BK: Tensor = self.linear(features.flatten(1))
        return scores_BK


BUILDERS: dict[str, Callable[[int, int], nn.Module]] = {
    "resnet18_8x": partial(
        ResNet8x, BasicBlock, (2, 2, 2, 2)
    ),  # 11.2 million parameters; the usual student
    "resnet34_8x": partial(ResNet8x, BasicBlock, (3, 4, 6, 3)),  # 21.3 million; the usual teacher
    # 7.3 million: 14.6 MB in half precision, with all of the depth and 69 % of the multiplications
    "resnet34_8x_narrow": partial(ResNet8x, BasicBlock, (3, 4, 6, 3), widths=NARROW_WIDTHS),
    "resnet50_8x": partial(ResNet8x, Bottleneck, (3, 4, 6, 3)),  # 23.5 million
    "wrn16_1": partial(WideResNet, 16, 1),  # 0.17 million
    "wrn16_2": partial(WideResNet, 16, 2),  # 0.69 million
    "wrn40_2": partial(WideResNet, 40, 2),  # 2.2 million
    "wrn28_10": partial(WideResNet, 28, 10),  # 36.5 million
    "lenet5": LeNet5,  # 61,706 for one channel and ten classes
    "cnn_small": partial(SmallCnn, (32, 64), (2, 2), 2),  # 21,482, made for 8x8 pixels
    "cnn_medium": partial(
        SmallCnn, (32, 64, 128), (1, 2, 2), 3
    ),  # 105,002 for colour, up to 16x16 pixels
    # 292,586 for colour; on a CPU the student above 16x16 pixels
    "cnn_large": partial(SmallCnn, (32, 32, 64, 64, 128, 128), (2, 1, 2, 1, 2, 1), 2, most=64),
}
"""From a name to what makes a net of the channels of an image and the number of classes."""
