"""What an estimator takes and gives, where it perturbs, along which directions: pure mathematics
that knows no teacher, no budget and no label mode.

An objective is about images x = squash(u), gen_op needs the gradient by u. Here, and nowhere else
on the way to the teacher, an image is rounded to what the wire carries: both parts of an
``Objective`` see it so.

Directions are random, with the factor that makes each family's estimate unbiased.

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
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import conv2d

from dfme.answers.reading import unanswered
from dfme.config.sections import DirectionName, Space
from dfme.errors import UserError
from dfme.spec import ImageSpec

ImageFunction = Callable[[Tensor], Tensor]
"""Images, or what comes before them, (N, C, H, W) -> one number per image (N,) in any floating
dtype.
"""


@dataclass(frozen=True, eq=False)
class Objective:
    """f(x) = value(x, observe(x)), one number per image: the API's paid part and our free part.

    ``query``: images (N, C, H, W) -> answers, one row per image; N images are paid for; no
    gradient. ``value``: images and answers -> (N,); it asks for nothing, and autograd goes through
    both its arguments. ``carry``: points -> the images that ``query`` and ``value`` are given.
    Estimators set it to the generator's squashing and the wire's rounding, so that an image is
    rounded once for both. ``features_BFHW``: what the generator's last convolution read to make the
    points; none if nobody needs it. ``scores``: images -> the student's scores (N, K), free and
    differentiable; none where there is no student. ``asked`` collects every (images, answers) that
    was paid for, in the order asked.
    ``may_lack``: some images may get no answer (``unanswered``). Their value is NaN, and of no
    other: a difference that has one at either end counts as none.
    """

    query: ImageFunction
    value: Callable[[Tensor, Tensor], Tensor]
    features_BFHW: Tensor | None = None
    scores: ImageFunction | None = None
    carry: ImageFunction = lambda point_NCHW: point_NCHW
    asked: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    may_lack: bool = False

    def __call__(self, point_NCHW: Tensor) -> Tensor:
        """The values (N,) at points; as many images are paid for."""
        x_NCHW = self.carry(point_NCHW)
        answers = self.query(x_NCHW)
        self.asked.append((x_NCHW, answers))
        return self._value(x_NCHW, answers)

    @property
    def lacks(self) -> bool:
        """True if any image asked so far got no answer."""
        return self.may_lack and any(bool(unanswered(answers).any()) for _, answers in self.asked)

    def _value(self, x_NCHW: Tensor, answers: Tensor) -> Tensor:
        """The values (N,), NaN where the answer is missing. UserError where another is no number
        then.
        """
        value_N = self.value(x_NCHW, answers)
        if not self.may_lack or not bool((missing_N := unanswered(answers)).any()):
            return value_N
        if not bool(value_N[~missing_N].isfinite().all()):
            raise UserError(
                "objective: expected finite numbers where there is an answer, got NaN or infinity; "
                "look at "
                "the step and the learning rates"
            )
        return value_N.masked_fill(missing_N, torch.nan)

    def first_asked(self, count: int) -> tuple[Tensor, Tensor]:
        """The first ``count`` images asked and their answers; for forward differences, the
        points.
        """
        images, answers = zip(*self.asked, strict=True)
        return torch.cat(images)[:count], torch.cat(answers)[:count]


@dataclass(frozen=True, eq=False)
class Estimate:
    """An estimated gradient and the observations it was made of.

    ``grad_BCHW``: d objective / d point for each image by itself, NOT averaged over the batch.
    ``value_B``: the objective at the point or, with central differences, the mean over the pairs
    around it. ``differences_BM``: f(u + h v) - f(u), with central differences f(u + h v) - f(u - h
    v), undivided, in the objective's own dtype; no columns where nothing was asked. ``queries``:
    images the objective was asked for.
    """

    grad_BCHW: Tensor
    value_B: Tensor
    differences_BM: Tensor
    queries: int


class Estimator(Protocol):
    """Estimates the gradient of something that only gives values.

    Forward differences ask at the points first, in order: the first B rows asked are theirs.
    """

    def cost(self, batch: int, ahead: int = 0) -> int:
        """Images asked at ``batch`` points by the next estimate, or the one ``ahead`` estimates
        later.
        """
        return sum(self.calls(batch, ahead))

    def calls(self, batch: int, ahead: int = 0) -> list[int]:
        """Images in each call of the objective by that estimate."""

    def estimate(self, objective: Objective, point_BCHW: Tensor, rng: torch.Generator) -> Estimate:
        """Estimate d objective / d point with exactly ``cost(B)`` images; all chance comes from
        ``rng``.
        """

    def state_dict(self) -> dict[str, Any]:
        """State that the next estimate depends on besides its arguments: nothing, for most."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what ``state_dict`` gave."""
        return


Squash = Callable[[Tensor], Tensor]


def carried(x_NCHW: Tensor, spec: ImageSpec) -> Tensor:
    """The images as the wire carries them. Rounding lets gradients pass as if it were not there."""
    rounded_NCHW = spec.quantise(x_NCHW.detach())
    return x_NCHW + (rounded_NCHW - x_NCHW).detach() if x_NCHW.requires_grad else rounded_NCHW


@dataclass(frozen=True, eq=False)
class _InSpace(Estimator):
    """An estimator of the gradient by u, made of ``inner``; ``squash`` maps u to an image of
    ``spec``.
    """

    inner: Estimator
    squash: Squash
    spec: ImageSpec

    def calls(self, batch: int, ahead: int = 0) -> list[int]:
        return self.inner.calls(batch, ahead)


class BeforeSquash(_InSpace):
    """The inner estimator perturbs u: every probe is a legal image after squashing, whatever the
    step.
    """

    def estimate(self, objective: Objective, point_BCHW: Tensor, rng: torch.Generator) -> Estimate:
        objective = replace(objective, carry=lambda u: carried(self.squash(u), self.spec))
        return self.inner.estimate(objective, point_BCHW, rng)


class AfterSquash(_InSpace):
    """The inner estimator perturbs the image; autograd continues through the squashing exactly."""

    def estimate(self, objective: Objective, point_BCHW: Tensor, rng: torch.Generator) -> Estimate:
        with torch.enable_grad():
            u_BCHW = point_BCHW.detach().requires_grad_()
            x_BCHW = self.squash(u_BCHW)
        objective = replace(objective, carry=lambda x: carried(x, self.spec))
        over_images = self.inner.estimate(objective, x_BCHW.detach(), rng)
        (grad_BCHW,) = torch.autograd.grad(x_BCHW, u_BCHW, over_images.grad_BCHW)
        return replace(over_images, grad_BCHW=grad_BCHW)


SPACES: dict[Space, type[BeforeSquash | AfterSquash]] = {
    "pre_squash": BeforeSquash,
    "image": AfterSquash,
    "lattice": AfterSquash,
}


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
