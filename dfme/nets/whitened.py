"""A student for a GPU: a first layer that whitens and does not learn, few wide convolutions after
it.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from dfme.nets.architectures import SteadyBatchNorm2d, averaged_down

PATCH = 2  # pixels of a side of what a first layer whitens
SCORE_SCALE = 1 / 9


class ShiftingBatchNorm2d(SteadyBatchNorm2d):
    """Batch normalisation that learns a bias alone; the weights that follow have the scale."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        del self.weight
        self.register_buffer("weight", torch.ones(channels))


class Halving(nn.Module):
    """The greatest of 2x2 pixels; an image of one row or column stays as it is."""

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """(B, C, H, W) to (B, C, H // 2, W // 2)."""
        return F.max_pool2d(x_BCHW, 2) if min(x_BCHW.shape[2:]) > 1 else x_BCHW


class Projections(nn.Module):
    """A convolution whose filters do not learn."""

    weight: Tensor

    def __init__(self, filters_DCPP: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", filters_DCPP)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """(B, C, H, W) to (B, D, H - P + 1, W - P + 1)."""
        return F.conv2d(x_BCHW, self.weight)


class BothSigns(nn.Module):
    """Features and the same with the other sign, ``count`` in all, to which a bias is added."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(count))

    def forward(self, x_BDHW: Tensor) -> Tensor:
        """(B, D, H, W) to (B, 2D, H, W)."""
        return torch.cat([x_BDHW, -x_BDHW], 1) + self.bias[:, None, None]


class WhitenedCnn(nn.Module):
    """A first layer that whitens, then three pairs of 3x3 convolutions: images (B, C, H, W) to
    scores (B, K).

    Source: Jordan 2024, arXiv 2404.00498 (airbench94). There the first layer projects patches of
    2x2 pixels on the principal directions of the training images. Here they are those of the cosine
    transform of channels and pixels, which are principal wherever pixels are alike in all places
    and directions, so that no image is needed before the first step; each batch's statistics make
    their variance 1. ``widths``: channels of the three pairs. ``most``: as of ``SmallCnn``.
    """

    def __init__(
        self, widths: tuple[int, int, int], channels: int, num_classes: int, most: int | None = None
    ) -> None:
        super().__init__()
        self.most = most
        self.stem = Projections(cosine_filters(channels))
        directions = len(self.stem.weight)
        self.whitening = SteadyBatchNorm2d(directions, affine=False)
        self.signs = BothSigns(2 * directions)
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise((2 * directions, *widths)):
            layers += [_passing_on(inputs, outputs), Halving(), *_normalised(outputs)]
            layers += [_passing_on(outputs, outputs), *_normalised(outputs)]
        self.features = nn.Sequential(*layers)
        self.linear = nn.Linear(widths[-1], num_classes, bias=False)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Scores (B, K) before any softmax."""
        white_BDHW = self.whitening(self.stem(averaged_down(x_BCHW, self.most)))
        features_BDHW = self.features(F.gelu(self.signs(white_BDHW)))
        scores_BK: Tensor = self.linear(features_BDHW.amax((2, 3)))
        return scores_BK * SCORE_SCALE


def cosine_filters(channels: int) -> Tensor:
    """Filters (4C, C, 2, 2): the orthonormal cosine transform (DCT-II) of channels, rows and
    columns.
    """
    colour_CC = _cosines(channels)
    place_PP = _cosines(PATCH)
    product = torch.einsum("ac,bh,dw->abdchw", colour_CC, place_PP, place_PP)
    filters_DCPP: Tensor = product.reshape(-1, channels, PATCH, PATCH)
    return filters_DCPP


def _cosines(size: int) -> Tensor:
    """The cosine transform as a matrix: row k holds the k-th cosine, of length 1."""
    place = torch.arange(size) + 0.5
    waves = torch.cos(torch.pi / size * torch.arange(size)[:, None] * place)
    unit_KN: Tensor = waves / waves.square().sum(1, keepdim=True).sqrt()
    return unit_KN


def _passing_on(inputs: int, outputs: int) -> nn.Conv2d:
    """A 3x3 convolution whose first outputs are its inputs, as far as both go."""
    layer = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    if not layer.weight.is_meta:
        with torch.no_grad():
            nn.init.dirac_(layer.weight[: min(inputs, outputs)])
    return layer


def _normalised(channels: int) -> tuple[nn.Module, nn.Module]:
    return ShiftingBatchNorm2d(channels), nn.GELU()


def cnn_whitened(channels: int, num_classes: int) -> WhitenedCnn:
    """The net of that name: 1.97 million parameters for colour and ten classes."""
    return WhitenedCnn((64, 256, 256), channels, num_classes, most=64)
