"""Small CNNs for small images: the teachers and students of the embedded tasks."""

from __future__ import annotations

from itertools import pairwise

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from dfme.nets.batch_norm import SteadyBatchNorm2d


class SmallCnn(nn.Module):
    """3x3 convolutions with batch normalisation, one linear layer: images (B, C, H, W) to scores (B, K).

    ``widths`` and ``strides`` are one per convolution. The last features are averaged down (or repeated up) to
    ``grid`` x ``grid`` cells where the image leaves another number, so every size of image has the same weights.
    """

    def __init__(
        self, channels: int, widths: tuple[int, ...], strides: tuple[int, ...], grid: int, num_classes: int
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for (inputs, outputs), stride in zip(pairwise((channels, *widths)), strides, strict=True):
            layers.append(nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False))
            layers += [SteadyBatchNorm2d(outputs), nn.ReLU(inplace=True)]
        self.grid = (grid, grid)
        self.features = nn.Sequential(*layers)
        self.linear = nn.Linear(widths[-1] * grid * grid, num_classes)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Scores (B, K) before any softmax."""
        features = self.features(x_BCHW)
        if features.shape[2:] != self.grid:  # pooling to the same size would cost a third of the step for nothing
            features = F.adaptive_avg_pool2d(features, self.grid)
        scores_BK: Tensor = self.linear(features.flatten(1))
        return scores_BK


def cnn_small(shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """21,482 parameters for one channel and ten classes; made for 8x8 pixels."""
    return SmallCnn(shape[0], widths=(32, 64), strides=(2, 2), grid=2, num_classes=num_classes)


def cnn_medium(shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """105,002 parameters for three channels and ten classes; made for 9x9 to 16x16 pixels."""
    return SmallCnn(shape[0], widths=(32, 64, 128), strides=(1, 2, 2), grid=3, num_classes=num_classes)
