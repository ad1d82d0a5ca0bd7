"""Nets that `research.nets` compares: those of dfme, and variants of `cnn_large`."""

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from dfme.nets.architectures import BUILDERS, SmallCnn, SteadyBatchNorm2d, WideBlock
from dfme.spec import Shape

WIDTHS = (32, 32, 64, 64, 128, 128)
STRIDES = (2, 1, 2, 1, 2, 1)
GROUPS = 8


class PreactResNet(nn.Module):
    """Normalise, rectify, convolve: a first convolution, three stages of one block of which the
    last two halve the image, and the mean over all places; (B, C, H, W) to (B, K).
    """

    def __init__(
        self, widths: tuple[int, int, int], stride: int, channels: int, classes: int
    ) -> None:
        super().__init__()
        first, second, third = widths
        self.features = nn.Sequential(
            nn.Conv2d(channels, 16, 3, stride=stride, padding=1, bias=False),
            WideBlock(16, first, 1),
            WideBlock(first, second, 2),
            WideBlock(second, third, 2),
            SteadyBatchNorm2d(third),
            nn.ReLU(inplace=True),
        )
        self.linear = nn.Linear(third, classes)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Scores (B, K) before any softmax."""
        scores_BK: Tensor = self.linear(self.features(x_BCHW).mean((2, 3)))
        return scores_BK


class Halved(nn.Module):
    """The mean of 2x2 pixels."""

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """(B, C, H, W) to (B, C, H / 2, W / 2)."""
        return F.avg_pool2d(x_BCHW, 2)


def with_group_norm(channels: int, classes: int) -> nn.Module:
    """`cnn_large` whose normalisation depends on the image alone."""
    net = SmallCnn(WIDTHS, STRIDES, 2, channels, classes, most=64)
    layers = list(net.features)
    for index, layer in enumerate(layers):
        if isinstance(layer, SteadyBatchNorm2d):
            layers[index] = nn.GroupNorm(GROUPS, layer.num_features)
    net.features = nn.Sequential(*layers)
    return net


def anti_aliased(channels: int, classes: int) -> nn.Module:
    """`cnn_large` that convolves at full resolution and averages pixels where it had a stride."""
    net = SmallCnn(WIDTHS, STRIDES, 2, channels, classes, most=64)
    layers: list[nn.Module] = []
    for layer in net.features:
        layers.append(layer)
        if isinstance(layer, nn.Conv2d) and layer.stride == (2, 2):
            layer.stride = (1, 1)
            layers.append(Halved())  # before it is normalised: cheaper, and as linear
    net.features = nn.Sequential(*layers)
    return net


STUDENTS: dict[str, tuple[Callable[[int, int], nn.Module], float]] = {
    "cnn_large": (BUILDERS["cnn_large"], 1.0),
    "preact": (partial(PreactResNet, (16, 64, 128), 2), 1.0),
    "preact_full": (partial(PreactResNet, (16, 32, 64), 1), 2.0),
    "wrn16_1": (BUILDERS["wrn16_1"], 3.3),
    "cnn_large_gn": (with_group_norm, 1.0),
    "cnn_large_smooth": (anti_aliased, 2.2),
    "cnn_large_mean": (partial(SmallCnn, WIDTHS, STRIDES, 1), 1.0),
    "cnn_large_wide": (partial(SmallCnn, (48, 48, 96, 96, 192, 192), STRIDES, 2), 1.8),
}
"""From a name to what makes the net, and the CPU seconds of a step over those of `cnn_large`."""

COSTS = {name: cost for name, (_, cost) in STUDENTS.items()}


def make_student(name: str, shape: Shape, classes: int) -> nn.Module:
    make, _ = STUDENTS[name]
    return make(shape[0], classes)
