"""Probing along given directions: where the two ends lie, what is asked there, and how long the way really was.

In whole numbers of levels (``lattice``) every end is an image that an 8-bit wire carries as it is. The centre
is the point rounded to the lattice and moved inwards, where it must be, so that no end is clipped: a clipped
end would be shorter on one side, and the estimate would lean towards it. Each pixel then moves by +- ``step``
levels, by the sign of the direction there; of an isotropic direction that is +-1 with equal chances.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import torch
from torch import Tensor

from dfme.errors import UserError
from dfme.estimators.base import ImageFunction

Form = Literal["forward", "central"]

# Images per direction; forward differences need one at the point itself besides.
FORMS: dict[Form, int] = {"forward": 1, "central": 2}


@dataclass(frozen=True, eq=False)
class Probe:
    """A direction, and the objective at the two ends of the way made along it.

    ``v_BCHW``: the direction; on the lattice that of the way really made, at unit length. ``made_B``: the way's
    length in units of v. ``plus_B``, ``minus_B``: values; the latter is at the centre with forward differences.
    """

    v_BCHW: Tensor
    made_B: Tensor
    plus_B: Tensor
    minus_B: Tensor

    @property
    def difference_B(self) -> Tensor:
        return self.plus_B - self.minus_B

    @property
    def slope_B(self) -> Tensor:
        """The derivative along v, to the order of the form."""
        return self.difference_B / self.made_B


@dataclass(frozen=True)
class Probing:
    """How to probe: how far, to which sides, within what limits, in calls of what size.

    Args:
        step: the h of u + h v: the length of a probe's way on the sphere, else its size per coordinate; on a
            lattice whole levels that every coordinate moves by
        form: forward or central
        bounds: lowest and highest legal value, where the point is an image; the centre of the differences is
            moved inwards by the largest reach of a probe, so that none is clipped. None: any number is legal
        lattice: distance between the values a pixel can have on the wire, from the lower bound on, so that the
            wire changes no probe. None: all values between the bounds exist
        chunk: most images in one call of the objective; it changes no direction, and no result beyond the noise
            of floating-point sums. About as many probes are in memory at a time. None: all at once
        reach: no coordinate of a direction is larger than this; of no effect on a lattice

    Raises:
        UserError: an argument is out of range, or the step does not fit between the bounds
    """

    step: float
    form: Form = "forward"
    bounds: tuple[float, float] | None = None
    lattice: float | None = None
    chunk: int | None = None
    reach: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.step) and self.step > 0):
            raise UserError(f"step: expected a positive number, got {self.step}")
        if self.form not in FORMS:
            raise UserError(f"form: expected {' or '.join(FORMS)}, got {self.form!r}")
        if self.chunk is not None and self.chunk < 1:
            raise UserError(f"chunk: expected at least 1 image a call, got {self.chunk}")
        if self.lattice is None:
            longest = self.step * self.reach
            if self.bounds is not None and not 2 * longest < self.bounds[1] - self.bounds[0]:
                raise UserError(
                    f"step {self.step}: expected probes that reach less than half of the bounds {self.bounds}, "
                    f"got a reach of {longest} with these directions; take a smaller step"
                )
            return
        if self.bounds is None:
            raise UserError("lattice: expected bounds with it, which its levels are counted from, got none")
        if not 0 < self.lattice <= self.bounds[1] - self.bounds[0]:
            text = f"expected a distance that fits between the bounds {self.bounds}, got {self.lattice}"
            raise UserError(f"lattice: {text}")
        if not (self.step >= 1 and self.step % 1 == 0):
            raise UserError(f"step {self.step}: expected a whole number of levels, such as 1 or 4, on a lattice")
        highest = self._highest
        if 2 * self.step > highest:
            raise UserError(
                f"step {self.step:g}: expected at most {highest // 2} of {highest + 1} levels, so that no probe is "
                "clipped; take a smaller step"
            )

    def cost(self, batch: int, directions: int) -> int:
        """Images asked for: B (m + 1) forward, 2 B m central."""
        return batch * (directions * FORMS[self.form] + (self.form == "forward"))

    def calls(self, batch: int, directions: int, centre: bool = True) -> list[int]:
        """Images in each call that ``along`` makes; ``centre``: it asks at the points themselves, too."""
        group, sizes = self._group(batch, directions), list[int]()
        for start in range(0, directions, group):
            first = self.form == "forward" and centre and start == 0
            rows = min(group, directions - start) * FORMS[self.form] + first
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
        return self._carried(index_BCHW.clamp_(self.step, self._highest - self.step))

    def ends(self, centre_BCHW: Tensor, v_BCHW: Tensor) -> tuple[Tensor, Tensor]:
        """The two points that a direction's difference is taken between, (plus, minus); nothing is asked."""
        plus_BCHW = self._end(centre_BCHW, v_BCHW, self.step)
        return plus_BCHW, self._end(centre_BCHW, v_BCHW, -self.step) if self.form == "central" else centre_BCHW

    def along(
        self,
        objective: ImageFunction,
        centre_BCHW: Tensor,
        directions: Iterator[Tensor],
        count: int,
        base_B: Tensor | None = None,
    ) -> Iterator[Probe]:
        """Probe along the next ``count`` directions, drawn as they are needed; for callers under ``no_grad``.

        Forward differences ask at the centre first, unless ``base_B`` says what the objective is there. About
        ``chunk`` probes, and at least one batch of them, are in memory at a time.
        """
        batch = len(centre_BCHW)
        group = self._group(batch, count)
        for start in range(0, count, group):
            fitting = min(group, count - start)
            vs = list(islice(directions, fitting))
            ends = [self.ends(centre_BCHW, v_BCHW) for v_BCHW in vs]
            plus, minus = [end[0] for end in ends], [end[1] for end in ends]
            if self.form == "central":
                rows_RB = self.ask(objective, plus + minus).view(-1, batch)
                plus_MB, minus_MB = rows_RB[:fitting], rows_RB[fitting:]
            else:
                first = [centre_BCHW] if base_B is None else []
                rows_RB = self.ask(objective, first + plus).view(-1, batch)
                base_B = rows_RB[0] if base_B is None else base_B
                plus_MB, minus_MB = rows_RB[-fitting:], base_B.expand(fitting, batch)
            for v_BCHW, high, low, plus_B, minus_B in zip(vs, plus, minus, plus_MB, minus_MB, strict=True):
                yield Probe(*self._way(high, low, v_BCHW), plus_B, minus_B)

    def ask(self, objective: ImageFunction, rows: list[Tensor]) -> Tensor:
        """The objective at all images of ``rows`` (N,), in calls of at most ``chunk`` images."""
        images_NCHW = torch.cat(rows) if len(rows) > 1 else rows[0]
        values = []
        for call_NCHW in images_NCHW.split(self.chunk or len(images_NCHW)):
            value_N = objective(call_NCHW)
            if value_N.shape != (len(call_NCHW),) or not value_N.dtype.is_floating_point:
                raise UserError(
                    f"objective: expected one floating-point number per image, shape ({len(call_NCHW)},), "
                    f"got shape {tuple(value_N.shape)}, dtype {value_N.dtype}"
                )
            values.append(value_N)
        return torch.cat(values)

    def _group(self, batch: int, directions: int) -> int:
        """Directions that are probed together."""
        return directions if self.chunk is None else max(1, self.chunk // (batch * FORMS[self.form]))

    @property
    def _highest(self) -> int:
        """Number of the highest level, the lowest being 0."""
        assert self.bounds is not None
        assert self.lattice is not None
        return round((self.bounds[1] - self.bounds[0]) / self.lattice)

    def _carried(self, index_BCHW: Tensor) -> Tensor:
        """The values of these levels, by the operations of ``ImageSpec.quantise``, so that it changes no bit."""
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
        # The centre leaves room for the whole reach; what the clamp can take is one rounding of the last bit.
        return end_BCHW if self.bounds is None else end_BCHW.clamp_(*self.bounds)

    def _way(self, plus_BCHW: Tensor, minus_BCHW: Tensor, v_BCHW: Tensor) -> tuple[Tensor, Tensor]:
        """The direction and, in units of it, the length (B,) of the way really made from minus to plus."""
        way_BCHW = plus_BCHW - minus_BCHW
        if self.lattice is None:
            return v_BCHW, (way_BCHW * v_BCHW).sum((1, 2, 3)) / v_BCHW.square().sum((1, 2, 3))
        length_B = torch.linalg.vector_norm(way_BCHW, dim=(1, 2, 3))
        return way_BCHW.div_(length_B.view(-1, 1, 1, 1)), length_B


def in_parts(images: int, most: int | None) -> list[int]:
    """The sizes of the parts, of at most so many images each, that ``split`` makes."""
    whole, rest = divmod(images, most or images)
    return [most or images] * whole + [rest] * (rest > 0)


def signs(v_BCHW: Tensor) -> Tensor:
    """+1 or -1 per coordinate; never 0, so that every way on a lattice has the same length."""
    return (v_BCHW < 0).to(v_BCHW.dtype).mul_(-2).add_(1)


def check_point(point_BCHW: Tensor) -> None:
    """Raise UserError unless these are images (B, C, H, W), at least one, precise enough for a difference."""
    if point_BCHW.dim() != 4 or point_BCHW.numel() == 0:
        raise UserError(f"point: expected images (B, C, H, W), got shape {tuple(point_BCHW.shape)}")
    if point_BCHW.dtype not in (torch.float32, torch.float64):
        raise UserError(
            f"point: expected float32 or float64, got {point_BCHW.dtype}: too coarse for a difference; "
            "keep the generator out of autocast"
        )
