"""Probing along directions: both ends, the images asked, and the length actually moved.

In whole numbers of levels (``lattice``) every end is an image that an 8-bit wire carries as it is.
The centre is the point rounded to the lattice and moved inwards, where it must be, so that no end
is clipped: a clipped end would be shorter on one side, and the estimate would lean towards it. Each
pixel then moves by +- ``step`` levels, by the sign of the direction there; of an isotropic
direction that is +-1 with equal chances.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from dfme.compute import DeferredChecks
from dfme.config.estimator_settings import Form
from dfme.errors import SeamError, UserError
from dfme.estimators.base import Estimator, ImageFunction, Objective

# Images per direction; forward differences need one at the point itself besides.
FORMS: dict[Form, int] = {"forward": 1, "central": 2}


@dataclass(frozen=True, eq=False)
class Probe:
    """A direction, and the objective at the two ends of the way made along it.

    ``v_BCHW``: the direction; on the lattice that of the way really made, at unit length.
    ``made_B``: the way's length in units of v. ``plus_B``, ``minus_B``: values; the latter is at
    the centre with forward differences. ``missing_B``: where the objective had no value at an end,
    which makes the difference zero.
    """

    v_BCHW: Tensor
    made_B: Tensor
    plus_B: Tensor
    minus_B: Tensor
    missing_B: Tensor | None = None

    @property
    def difference_B(self) -> Tensor:
        difference_B = self.plus_B - self.minus_B
        return (
            difference_B
            if self.missing_B is None
            else difference_B.masked_fill(self.missing_B, 0.0)
        )

    @property
    def slope_B(self) -> Tensor:
        """The derivative along v, to the order of the form."""
        return self.difference_B / self.made_B


@dataclass(frozen=True)
class Probing(Estimator):
    """Base of the estimators by differences: how far they probe, to which sides, and in calls of
    what size.

    Args:
        directions: directions per image (m) step: the h of u + h v: the length of a probe's way on
        the sphere, else its size per coordinate; on a
            lattice whole levels that every coordinate moves by
        form: forward or central bounds: of legal values, where the point is an image; the centre is
        moved inwards by the largest reach
            of a probe, so that none is clipped. None: any number is legal
        lattice: distance between the values a pixel can have on the wire. None: all within the
        bounds chunk: most images in one call of the objective, and about as many in memory; it
        changes no direction,
            and no result beyond the noise of floating-point sums. None: all at once

    Raises:
        UserError: an argument is out of range, or the step does not fit between the bounds
    """

    directions: int = 1
    step: float = 1e-3
    form: Form = "forward"
    bounds: tuple[float, float] | None = None
    lattice: float | None = None
    chunk: int | None = None

    @property
    def reach(self) -> float:
        """No coordinate of a direction is larger than this; of no effect on a lattice."""
        return 1.0

    def __post_init__(self) -> None:
        if self.directions < 1:
            raise UserError(f"expected at least 1, got {self.directions}", about="directions")
        if not (math.isfinite(self.step) and self.step > 0):
            raise UserError(f"expected a positive number, got {self.step}", about="step")
        if self.form not in FORMS:
            raise UserError(f"expected {' or '.join(FORMS)}, got {self.form!r}", about="form")
        if self.lattice is not None or self.bounds is None:
            return
        longest = self.step * self.reach
        if not 2 * longest < self.bounds[1] - self.bounds[0]:
            raise UserError(
                f"expected probes that reach less than half of the bounds {self.bounds}, got a "
                f"reach of {longest} with these directions; take a smaller step than {self.step}",
                about="step",
            )

    def calls(self, batch: int, ahead: int = 0) -> list[int]:
        return self.probe_calls(batch)

    def probe_calls(self, batch: int, centre: bool = True) -> list[int]:
        """Images in each call that ``along`` makes; ``centre``: it asks at the points themselves,
        too.
        """
        group = self._group(batch)
        sizes = list[int]()
        for start in range(0, self.directions, group):
            first = self.form == "forward" and centre and start == 0
            rows = min(group, self.directions - start) * FORMS[self.form] + first
            sizes += in_parts(rows * batch, self.chunk)
        return sizes

    def centre(self, point_BCHW: Tensor) -> Tensor:
        """The point, moved as little as it takes for every probe around it to be legal."""
        if self.bounds is None:
            return point_BCHW.detach()
        low, high = self.bounds
        if self.lattice is None:
            return point_BCHW.clamp(low + self.step * self.reach, high - self.step * self.reach)
        index_BCHW = ((point_BCHW - low) / self.lattice).round_()
        return self._carried(
            index_BCHW.clamp_(self.step, round((high - low) / self.lattice) - self.step)
        )

    def along(
        self,
        objective: ImageFunction,
        centre_BCHW: Tensor,
        stream: Iterator[Tensor],
        base_B: Tensor | None = None,
    ) -> Iterator[Probe]:
        """Probe along the next m directions, drawn as they are needed; for callers under
        ``no_grad``.

        Forward differences ask at the centre first, unless ``base_B`` says what the objective is
        there. About ``chunk`` probes, and at least one batch of them, are in memory at a time.
        """
        batch = len(centre_BCHW)
        group = self._group(batch)
        for start in range(0, self.directions, group):
            vs = list(islice(stream, min(group, self.directions - start)))
            plus = [self._end(centre_BCHW, v_BCHW, self.step) for v_BCHW in vs]
            if self.form == "central":
                minus = [self._end(centre_BCHW, v_BCHW, -self.step) for v_BCHW in vs]
                plus_MB, minus_MB = self._ask(objective, plus + minus).view(2, -1, batch)
            else:
                minus = [centre_BCHW] * len(vs)
                first = [centre_BCHW] if base_B is None else []
                rows_RB = self._ask(objective, first + plus).view(-1, batch)
                base_B = rows_RB[0] if base_B is None else base_B
                plus_MB = rows_RB[-len(vs) :]
                minus_MB = base_B.expand(len(vs), batch)
            lacks = isinstance(objective, Objective) and objective.lacks
            for v_BCHW, high, low, plus_B, minus_B in zip(
                vs, plus, minus, plus_MB, minus_MB, strict=True
            ):
                missing_B = (plus_B.isnan() | minus_B.isnan()) if lacks else None
                yield Probe(*self._way(high, low, v_BCHW), plus_B, minus_B, missing_B)

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
            return self._carried(index_BCHW.add_(signs(v_BCHW), alpha=step))
        end_BCHW = torch.add(centre_BCHW, v_BCHW, alpha=step)
        # The centre leaves room for the whole reach; what the clamp can take is one rounding of the
        # last bit.
        return end_BCHW if self.bounds is None else end_BCHW.clamp_(*self.bounds)

    def _way(self, plus_BCHW: Tensor, minus_BCHW: Tensor, v_BCHW: Tensor) -> tuple[Tensor, Tensor]:
        """The direction and, in units of it, the length (B,) of the way really made from minus to
        plus.
        """
        way_BCHW = plus_BCHW - minus_BCHW
        if self.lattice is None:
            return v_BCHW, (way_BCHW * v_BCHW).sum((1, 2, 3)) / v_BCHW.square().sum((1, 2, 3))
        length_B = torch.linalg.vector_norm(way_BCHW, dim=(1, 2, 3))
        return way_BCHW.div_(length_B.view(-1, 1, 1, 1)), length_B


def in_parts(images: int, most: int | None) -> list[int]:
    """The sizes of the parts, of at most so many images each, that ``split`` makes."""
    size = most or images
    whole, rest = divmod(images, size)
    parts = [size] * whole
    if rest > 0:
        parts.append(rest)
    return parts


def signs(v_BCHW: Tensor) -> Tensor:
    """+1 or -1 per coordinate; never 0, so that every way on a lattice has the same length."""
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
