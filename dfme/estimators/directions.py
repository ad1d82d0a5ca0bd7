"""Random directions to probe along, and the factor that makes each family's estimate unbiased.

sphere, rademacher: independent draws over all of R^D. sphere is DFME's (Truong et al.,
CVPR 2021).

orthogonal: each direction uniform on the unit sphere, all of an image at right angles to each
other, which takes their overlaps out of the estimate's variance and makes D of them exact for a
linear objective (Choromanski et al., Structured Evolution with Compact Architectures, ICML 2018).

dct: a Gaussian combination of the low frequencies of the orthonormal DCT-II, per channel (Guo,
Frank, Weinberger, Low Frequency Adversarial Perturbation, UAI 2019). The estimate is one of the
gradient's projection on that subspace: fewer dimensions to search, at the price of what lies
outside.

range: the answer of the generator's last convolution to random kernels, each image's its own.
Heuristic of ours: the generator's weights move by J^T g alone, and what no kernel can bring about,
J^T does not see.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import conv2d

from dfme.config.sections import DirectionName
from dfme.errors import UserError

# The generator's last convolution is 3 x 3, as in the paper.
KERNEL = 3


@dataclass(frozen=True, eq=False)
class PerturbedPoint:
    """Where directions are wanted.

    ``like_BCHW``: the points, whose shape, dtype and device directions have. ``features_BFHW``:
    what the generator's last convolution read to make them, for range. ``frequencies``: share of
    them, for dct.
    """

    like_BCHW: Tensor
    features_BFHW: Tensor | None = None
    frequencies: float = 0.125

    @property
    def size(self) -> int:
        """D = C H W."""
        return self.like_BCHW[0].numel()

    @property
    def patterns(self) -> int:
        """Number of patterns a channel's dct directions are made of: their share, and at least
        one.
        """
        height, width = self.like_BCHW.shape[2:]
        return max(1, round(self.frequencies * height * width))


Stream = Callable[[PerturbedPoint, torch.Generator], Iterator[Tensor]]
"""Directions without end, one per image each time (B, C, H, W), nothing drawn ahead."""


@dataclass(frozen=True)
class Direction:
    """One family of random directions v in R^D.

    ``scale(place)``: the s with s * E[v v^T] = I, so that s * (v . g) * v has the mean g: D on the
    unit sphere; for dct the projection on its subspace stands in place of I, for range no s does so
    and D is used. No coordinate of v is larger than 1 in size.
    """

    stream: Stream
    scale: Callable[[PerturbedPoint], float] = lambda place: float(place.size)


def _normal(like: Tensor, rng: torch.Generator) -> Tensor:
    """In row-major order always, so that the memory format of the point does not change the
    draws.
    """
    return torch.randn(like.shape, generator=rng, dtype=like.dtype, device=like.device)


def _unit(v_BCHW: Tensor) -> Tensor:
    return v_BCHW.div_(torch.linalg.vector_norm(v_BCHW, dim=(1, 2, 3), keepdim=True))


def _rademacher(like: Tensor, rng: torch.Generator) -> Tensor:
    v_BCHW = torch.empty(like.shape, dtype=like.dtype, device=like.device)
    return v_BCHW.bernoulli_(0.5, generator=rng).mul_(2).sub_(1)


def _independent(draw: Callable[[Tensor, torch.Generator], Tensor]) -> Stream:
    def stream(place: PerturbedPoint, rng: torch.Generator) -> Iterator[Tensor]:
        while True:
            yield draw(place.like_BCHW, rng)

    return stream


def _orthogonal(place: PerturbedPoint, rng: torch.Generator) -> Iterator[Tensor]:
    """Gram-Schmidt on Gaussian draws: the Q of a QR whose R has a positive diagonal, column by
    column.

    Keeps the directions drawn so far, B m D numbers. After D of them it starts anew.
    """
    batch = len(place.like_BCHW)
    size = place.size
    earlier_BJD = place.like_BCHW.new_empty(batch, 0, size)
    while True:
        v_BD = _normal(place.like_BCHW, rng).view(batch, size)
        for _ in range(2):  # the second pass takes out what rounding left of the first
            overlap_BJ1 = earlier_BJD @ v_BD.unsqueeze(2)
            v_BD = v_BD - (overlap_BJ1.mT @ earlier_BJD).squeeze(1)
        v_BD = v_BD / torch.linalg.vector_norm(v_BD, dim=1, keepdim=True)
        earlier_BJD = torch.cat([earlier_BJD, v_BD.unsqueeze(1)], dim=1)
        if earlier_BJD.shape[1] == size:
            earlier_BJD = earlier_BJD[:, :0]
        yield v_BD.view(place.like_BCHW.shape)


def _cosines(size: int, device: torch.device) -> Tensor:
    """The orthonormal DCT-II: row k is the cosine of frequency k at the ``size`` pixels."""
    at_N = torch.arange(size, device=device, dtype=torch.float64)
    rows_KN = torch.cos(torch.outer(at_N, at_N + 0.5) * (math.pi / size)) * math.sqrt(2 / size)
    rows_KN[0] /= math.sqrt(2)
    return rows_KN


def low_frequencies(place: PerturbedPoint) -> Tensor:
    """Patterns of lowest frequency (P, H W), orthonormal: least i / H + j / W, or i + j in a
    square.

    Among equals the one nearest to the diagonal comes first, so that neither axis is preferred.
    """
    height, width = place.like_BCHW.shape[2:]
    device = place.like_BCHW.device
    i_H1 = torch.arange(height, device=device).unsqueeze(1)
    j_1W = torch.arange(width, device=device)
    sum_HW = i_H1 * width + j_1W * height
    apart_HW = (i_H1 * width - j_1W * height).abs()
    # Both are below 2 H W, so that one number sorts by the first and then by the second.
    order_N = (sum_HW * (2 * height * width) + apart_HW).flatten().argsort(stable=True)
    chosen_P = order_N[: place.patterns]
    rows_PH = _cosines(height, device)[chosen_P // width]
    columns_PW = _cosines(width, device)[chosen_P % width]
    patterns_PHW = rows_PH.unsqueeze(2) * columns_PW.unsqueeze(1)
    return patterns_PHW.flatten(1).to(place.like_BCHW.dtype)


def _dct(place: PerturbedPoint, rng: torch.Generator) -> Iterator[Tensor]:
    like_BCHW = place.like_BCHW
    patterns_PN = low_frequencies(place)
    while True:
        weights_BCP = _normal(like_BCHW.new_empty(*like_BCHW.shape[:2], len(patterns_PN)), rng)
        yield _unit((weights_BCP @ patterns_PN).view(like_BCHW.shape))


def _range(place: PerturbedPoint, rng: torch.Generator) -> Iterator[Tensor]:
    batch, channels, height, width = place.like_BCHW.shape
    features_BFHW = place.features_BFHW
    if features_BFHW is None or (len(features_BFHW), *features_BFHW.shape[2:]) != (
        batch,
        height,
        width,
    ):
        raise UserError(
            "direction range: expected an Objective with features_BFHW, what the generator's last "
            f"convolution reads, of {batch} images of {height} x {width}, got "
            f"{'none' if features_BFHW is None else tuple(features_BFHW.shape)}; take another "
            "direction"
        )
    features_BFHW = features_BFHW.detach().to(place.like_BCHW.dtype)
    # One group of channels per image gives every image a kernel of its own in a single convolution.
    read_1NHW = features_BFHW.reshape(1, -1, height, width)
    kernels = place.like_BCHW.new_empty(batch * channels, features_BFHW.shape[1], KERNEL, KERNEL)
    while True:
        v_1NHW = conv2d(read_1NHW, _normal(kernels, rng), padding=KERNEL // 2, groups=batch)
        yield _unit(v_1NHW.view(place.like_BCHW.shape))


DIRECTIONS: dict[DirectionName, Direction] = {
    "sphere": Direction(_independent(lambda like, rng: _unit(_normal(like, rng)))),
    "rademacher": Direction(_independent(_rademacher), scale=lambda _: 1.0),
    "orthogonal": Direction(_orthogonal),
    "dct": Direction(_dct, scale=lambda place: float(place.like_BCHW.shape[1] * place.patterns)),
    "range": Direction(_range),
}
