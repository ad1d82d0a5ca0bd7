"""Finite differences along random directions, one gradient per image.

    forward   g = (s/m) sum_j (f(u + h v_j) - f(u)) / h * v_j            m + 1 images per point
    central   g = (s/m) sum_j (f(u + h v_j) - f(u - h v_j)) / 2h * v_j     2 m images per point

with s from ``dfme.estimators.base`` (D on the unit sphere), so that the mean over the
directions is the gradient itself, up to O(h) for forward and O(h^2) for central differences.
Forward differences on the sphere are DFME's estimator (Truong et al., CVPR 2021, arXiv 2011.14779);
central ones are the antithetic pairs of evolution strategies (Salimans et al. 2017, arXiv
1703.03864).

On a lattice, in whole levels, every end is an image that an 8-bit wire carries as it is. The centre
is the point rounded to the lattice and moved inwards, where it must be, so that no end is clipped:
a clipped end would be shorter on one side, and the estimate would lean towards it. Each pixel then
moves by +- ``step`` levels, by the sign of the direction there. With delta_j that move,

    g = (D/m) sum_j (f(u + delta_j) - f(u)) / |delta_j|^2 * delta_j

is unbiased to the same order where the signs of the directions are independent and even, as those
of sphere, rademacher and orthogonal ones are; with dct and range D is a heuristic. M
directions, N images in one call.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from dfme.compute.device import ieee_fp32
from dfme.compute.modules import DeferredChecks
from dfme.config.sections import DirectionName, Form
from dfme.errors import SeamError, UserError
from dfme.estimators.base import (
    DIRECTIONS,
    Estimate,
    Estimator,
    ImageFunction,
    Objective,
    PerturbedPoint,
)

FORMS: dict[Form, int] = {"forward": 1, "central": 2}
"""Images per direction; forward differences need one more at the point itself."""


@dataclass(frozen=True, eq=False)
class Probe:
    """A direction, and the objective at the two ends of a move along it.

    ``v_BCHW``: the direction; on the lattice that of the actual move, at unit length. ``length_B``:
    of the move, in units of v. ``plus_B``, ``minus_B``: values; the latter is at the centre with
    forward differences. ``missing_B``: where the objective had no value at an end, which makes the
    difference zero.
    """

    v_BCHW: Tensor
    length_B: Tensor
    plus_B: Tensor
    minus_B: Tensor
    missing_B: Tensor | None = None

    @property
    def difference_B(self) -> Tensor:
        difference_B = self.plus_B - self.minus_B
        if self.missing_B is None:
            return difference_B
        return difference_B.masked_fill(self.missing_B, 0.0)

    @property
    def slope_B(self) -> Tensor:
        """The derivative along v, to the order of the form."""
        return self.difference_B / self.length_B


@dataclass(frozen=True)
class FiniteDifference(Estimator):
    """Estimates a gradient from the objective's values at nearby points.

    The step divided by is the actual one along v after rounding, <u + h v - u, v> / <v, v>: near 1,
    fp32 moves in units of 1.2e-7. On the sphere a coordinate of h v is only about h / sqrt(D), and
    what rounding does to the *direction* stays: 0.1 % of the derivative at h 1e-3, 15 % at 1e-5 (D
    3072).

    Args:
        directions: directions per image (m)
        step: the h of u + h v: the length of a move on the sphere, else its size per coordinate; on
            a lattice, whole levels that every coordinate moves by
        form: forward or central
        bounds: of legal values, where the point is an image; the centre is moved inwards by the
            step, so that no probe is clipped. None: any number is legal
        lattice: distance between the values a pixel can have on the wire. None: all within the
            bounds
        chunk: most images in one call of the objective, and about as many in memory; it changes no
            direction, and no result beyond the noise of floating-point sums. None: all at once
        direction: a name in DIRECTIONS
        frequencies: share of the frequencies that dct directions are made of

    Raises:
        UserError: an argument is out of range, or the step does not fit between the bounds
    """

    directions: int = 1
    step: float = 1e-3
    form: Form = "forward"
    bounds: tuple[float, float] | None = None
    lattice: float | None = None
    chunk: int | None = None
    direction: DirectionName = "sphere"
    frequencies: float = 0.125

    def __post_init__(self) -> None:
        if self.directions < 1:
            raise UserError(f"expected at least 1, got {self.directions}", about="directions")
        if not (math.isfinite(self.step) and self.step > 0):
            raise UserError(f"expected a positive number, got {self.step}", about="step")
        if self.form not in FORMS:
            raise UserError(f"expected {' or '.join(FORMS)}, got {self.form!r}", about="form")
        if self.lattice is not None or self.bounds is None:
            return
        if not 2 * self.step < self.bounds[1] - self.bounds[0]:
            raise UserError(
                "expected probes that reach less than half of the bounds "
                f"{self.bounds}, got {self.step}; take a smaller step",
                about="step",
            )

    def calls(self, batch: int, ahead: int = 0) -> list[int]:
        group = self._group(batch)
        sizes = list[int]()
        for start in range(0, self.directions, group):
            at_points = self.form == "forward" and start == 0
            rows = min(group, self.directions - start) * FORMS[self.form] + at_points
            sizes += _parts(rows * batch, self.chunk)
        return sizes

    def estimate(
        self, objective: ImageFunction, point_BCHW: Tensor, rng: torch.Generator
    ) -> Estimate:
        """Estimate d objective / d point for every image by itself.

        ``objective`` is called under ``no_grad`` and IEEE fp32. Directions are drawn on the point's
        device, where ``rng`` must live too, one after the other for all images. Nothing here waits
        for an accelerator. A step too small to move any coordinate gives NaN, which
        ``check_upstream`` refuses.

        Raises:
            UserError: the point or the objective's answer has another form than stated in
                ``estimators.base``, or the directions need features and the objective has none that
                fit
        """
        check_point(point_BCHW)
        family = DIRECTIONS[self.direction]
        with torch.no_grad(), ieee_fp32():
            centre_BCHW = self.centre(point_BCHW)
            features_BFHW = objective.features_BFHW if isinstance(objective, Objective) else None
            place = PerturbedPoint(centre_BCHW, features_BFHW, self.frequencies)
            grad_BCHW = torch.zeros_like(centre_BCHW)
            values = []
            differences = []
            for probe in self._probes(objective, centre_BCHW, family.stream(place, rng)):
                slope_B = probe.slope_B.to(grad_BCHW.dtype)
                grad_BCHW.addcmul_(probe.v_BCHW, slope_B.view(-1, 1, 1, 1))
                differences.append(probe.difference_B)
                values.append(
                    (probe.plus_B + probe.minus_B) / 2 if self.form == "central" else probe.minus_B
                )
            scale = family.scale(place) if self.lattice is None else place.size
            grad_BCHW.mul_(scale / self.directions)
            value_B = torch.stack(values).mean(0) if self.form == "central" else values[0]
        return Estimate(
            grad_BCHW, value_B, torch.stack(differences, dim=1), self.cost(len(point_BCHW))
        )

    def centre(self, point_BCHW: Tensor) -> Tensor:
        """The point, moved as little as it takes for every probe around it to be legal."""
        if self.bounds is None:
            return point_BCHW.detach()
        low, high = self.bounds
        if self.lattice is None:
            return point_BCHW.clamp(low + self.step, high - self.step)
        index_BCHW = ((point_BCHW - low) / self.lattice).round_()
        return self._carried(
            index_BCHW.clamp_(self.step, round((high - low) / self.lattice) - self.step)
        )

    def _probes(
        self, objective: ImageFunction, centre_BCHW: Tensor, stream: Iterator[Tensor]
    ) -> Iterator[Probe]:
        """Probe along the next m directions, drawn as they are needed; for callers under
        ``no_grad``.

        Forward differences ask at the centre first. About ``chunk`` probes, and at least one batch
        of them, are in memory at a time.
        """
        batch = len(centre_BCHW)
        group = self._group(batch)
        centre_B: Tensor | None = None
        for start in range(0, self.directions, group):
            vs = list(islice(stream, min(group, self.directions - start)))
            plus = [self._end(centre_BCHW, v_BCHW, self.step) for v_BCHW in vs]
            if self.form == "central":
                minus = [self._end(centre_BCHW, v_BCHW, -self.step) for v_BCHW in vs]
                plus_MB, minus_MB = self._ask(objective, plus + minus).view(2, -1, batch)
            else:
                minus = [centre_BCHW] * len(vs)
                first = [centre_BCHW] if centre_B is None else []
                rows_RB = self._ask(objective, first + plus).view(-1, batch)
                centre_B = rows_RB[0] if centre_B is None else centre_B
                plus_MB = rows_RB[-len(vs) :]
                minus_MB = centre_B.expand(len(vs), batch)
            lacks = isinstance(objective, Objective) and objective.lacks
            for v_BCHW, high, low, plus_B, minus_B in zip(
                vs, plus, minus, plus_MB, minus_MB, strict=True
            ):
                missing_B = (plus_B.isnan() | minus_B.isnan()) if lacks else None
                yield Probe(*self._move(high, low, v_BCHW), plus_B, minus_B, missing_B)

    def _ask(self, objective: ImageFunction, rows: list[Tensor]) -> Tensor:
        """The objective at all images of ``rows`` (N,), in calls of at most ``chunk`` images."""
        images_NCHW = torch.cat(rows) if len(rows) > 1 else rows[0]
        values = []
        for call_NCHW in images_NCHW.split(self.chunk or len(images_NCHW)):
            value_N = objective(call_NCHW)
            if value_N.shape != (len(call_NCHW),) or not value_N.dtype.is_floating_point:
                raise UserError(
                    "objective: expected one floating-point number per image, shape "
                    f"({len(call_NCHW)},), "
                    f"got shape {tuple(value_N.shape)}, dtype {value_N.dtype}"
                )
            values.append(value_N)
        return torch.cat(values)

    def _group(self, batch: int) -> int:
        """Directions that are probed together."""
        return (
            self.directions
            if self.chunk is None
            else max(1, self.chunk // (batch * FORMS[self.form]))
        )

    def _carried(self, index_BCHW: Tensor) -> Tensor:
        """Values of these levels, by the operations of ``ImageSpec.quantise``, bit for bit."""
        assert self.bounds is not None
        assert self.lattice is not None
        low, high = self.bounds
        return index_BCHW.mul_(self.lattice).add_(low).clamp_(low, high)

    def _end(self, centre_BCHW: Tensor, v_BCHW: Tensor, step: float) -> Tensor:
        if self.lattice is not None:
            assert self.bounds is not None
            index_BCHW = ((centre_BCHW - self.bounds[0]) / self.lattice).round_()
            return self._carried(index_BCHW.add_(_signs(v_BCHW), alpha=step))
        end_BCHW = torch.add(centre_BCHW, v_BCHW, alpha=step)
        # The centre leaves room for the whole step; what the clamp can take is one rounding of the
        # last bit.
        return end_BCHW if self.bounds is None else end_BCHW.clamp_(*self.bounds)

    def _move(self, plus_BCHW: Tensor, minus_BCHW: Tensor, v_BCHW: Tensor) -> tuple[Tensor, Tensor]:
        """The direction and, in units of it, the length (B,) of the move from minus to plus."""
        move_BCHW = plus_BCHW - minus_BCHW
        if self.lattice is None:
            return v_BCHW, (move_BCHW * v_BCHW).sum((1, 2, 3)) / v_BCHW.square().sum((1, 2, 3))
        length_B = torch.linalg.vector_norm(move_BCHW, dim=(1, 2, 3))
        return move_BCHW.div_(length_B.view(-1, 1, 1, 1)), length_B


def _parts(images: int, most: int | None) -> list[int]:
    """The sizes of the parts, of at most so many images each, that ``split`` makes."""
    size = most or images
    full, rest = divmod(images, size)
    parts = [size] * full
    if rest > 0:
        parts.append(rest)
    return parts


def _signs(v_BCHW: Tensor) -> Tensor:
    """+1 or -1 per coordinate; never 0, so that every move on a lattice has the same length."""
    return (v_BCHW < 0).to(v_BCHW.dtype).mul_(-2).add_(1)


def check_point(point_BCHW: Tensor) -> None:
    """Raise UserError unless these are images (B, C, H, W), at least one, precise enough for a
    difference.
    """
    images = point_BCHW.dim() == 4 and point_BCHW.numel()
    if not images or point_BCHW.dtype not in (torch.float32, torch.float64):
        raise UserError(
            "point: expected images (B, C, H, W) in float32 or float64, outside of autocast, got "
            f"{_describe(point_BCHW)}"
        )


def check_upstream(
    output: Tensor, upstream_grads: Tensor, deferred: DeferredChecks | None = None
) -> None:
    """Refuse, in words, a gradient that autograd must not be handed at ``output``.

    ``upstream_grads``: d loss / d output. With ``deferred``, non-finite values on an accelerator
    are reported by its ``verify`` instead of stalling the queue here.

    Raises:
        SeamError: the output has no graph, or the gradient does not fit it or is not finite
    """
    if output.grad_fn is None:
        raise SeamError(
            "generator output: expected a tensor with a graph behind it, got "
            f"requires_grad={output.requires_grad} and no grad_fn; was it detached, or made under "
            "no_grad?"
        )
    names = ("shape", "dtype", "device")
    unlike = [name for name in names if getattr(output, name) != getattr(upstream_grads, name)]
    if unlike:
        raise SeamError(
            f"upstream gradient: expected {_describe(output)} like the output, got "
            f"{_describe(upstream_grads)}; {' and '.join(unlike)} must match: convert it first"
        )
    finite = torch.isfinite(upstream_grads).sum()
    total = upstream_grads.numel()
    described = _describe(upstream_grads)

    def error() -> Exception:  # keeps a count, not the tensor, until it is read
        return SeamError(
            f"upstream gradient: expected finite numbers for an output of {described}, got "
            f"{total - int(finite)} of {total} that are NaN or infinite in a gradient of "
            f"{described}; "
            "look at the objective's values, the step and the learning rates"
        )

    checker = deferred if deferred is not None else DeferredChecks()
    checker.expect(finite == total, error)
    if deferred is None:
        checker.verify()


def _describe(tensor: Tensor) -> str:
    return f"shape {tuple(tensor.shape)}, dtype {tensor.dtype}, device {tensor.device}"
