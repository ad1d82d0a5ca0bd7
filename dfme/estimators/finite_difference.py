"""Forward and central finite differences along random directions, one gradient per image.

    forward   g = (s/m) sum_j (f(u + h v_j) - f(u)) / h * v_j                   m + 1 images per point
    central   g = (s/m) sum_j (f(u + h v_j) - f(u - h v_j)) / 2h * v_j          2 m images per point

with s from ``dfme.estimators.directions`` (D on the unit sphere), so that the mean over the directions is the
gradient itself, up to O(h) for forward and O(h^2) for central differences. Forward differences on the sphere
are DFME's estimator (Truong et al., CVPR 2021, arXiv 2011.14779). M directions, N images in one call.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dfme.errors import UserError
from dfme.estimators.base import Estimate, Objective
from dfme.estimators.directions import DIRECTIONS, DirectionName
from dfme.precision import ieee_fp32

Form = Literal["forward", "central"]

# Images per direction; forward differences need one at the point itself besides.
FORMS: dict[Form, int] = {"forward": 1, "central": 2}


@dataclass(frozen=True)
class FiniteDifference:
    """Estimates a gradient from the objective's values at nearby points.

    The step divided by is the one really made along v after rounding, <u + h v - u, v> / <v, v>: near 1,
    fp32 moves in units of 1.2e-7. Measured for u ~ N(0, I), D 3072, Rademacher directions: dividing by h puts
    the scale off by 3e-6 at h 1e-3 and by 1e-3 at h 1e-5, dividing by the step made by 2e-7 and 2e-5. On the
    sphere a coordinate of h v is only about h / sqrt(D), and what rounding does to the *direction* stays,
    whatever one divides by: 0.1 % of the derivative at h 1e-3, 1.4 % at 1e-4, 15 % at 1e-5.

    Args:
        directions: random directions per image (m)
        step: the h of u + h v: the length of a probe's way on the sphere, else its size per coordinate
        form: forward or central
        direction: a name in DIRECTIONS
        bounds: lowest and highest legal value, where the point is an image; the centre of the differences is
            moved inwards by the largest reach of a probe, so that every probe is legal and none is clipped.
            None: any real number is legal, as before the generator's squashing
        chunk: most images in one call of the objective; it changes no direction, and no result beyond the
            noise of floating-point sums. About as many probes, and at least one batch of them, are in memory
            at a time. None: all at once

    Raises:
        UserError: an argument is out of range, or the step does not fit between the bounds
    """

    directions: int = 1
    step: float = 1e-3
    form: Form = "forward"
    direction: DirectionName = "sphere"
    bounds: tuple[float, float] | None = None
    chunk: int | None = None

    def __post_init__(self) -> None:
        if self.directions < 1:
            raise UserError(f"directions: expected at least 1, got {self.directions}")
        if not (math.isfinite(self.step) and self.step > 0):
            raise UserError(f"step: expected a positive number, got {self.step}")
        if self.form not in FORMS:
            raise UserError(f"form: expected {' or '.join(FORMS)}, got {self.form!r}")
        if self.direction not in DIRECTIONS:
            raise UserError(f"direction: expected {', '.join(DIRECTIONS)}, got {self.direction!r}")
        if self.chunk is not None and self.chunk < 1:
            raise UserError(f"chunk: expected at least 1 image a call, got {self.chunk}")
        if self.bounds is not None and not 2 * self._reach < self.bounds[1] - self.bounds[0]:
            raise UserError(
                f"step {self.step}: expected probes that reach less than half of the bounds {self.bounds}, "
                f"got a reach of {self._reach} with {self.direction} directions; take a smaller step"
            )

    def cost(self, batch: int) -> int:
        """Images the objective is asked for: B (m + 1) forward, 2 B m central."""
        return batch * (self.directions * FORMS[self.form] + (self.form == "forward"))

    def estimate(self, objective: Objective, point_BCHW: Tensor, rng: torch.Generator) -> Estimate:
        """Estimate d objective / d point for every image by itself.

        ``objective`` is called under ``no_grad`` and IEEE fp32, with at most ``chunk`` images. Directions are
        drawn on the point's device, where ``rng`` must live too, one after the other for all images. Nothing
        here waits for an accelerator. A step too small to move any coordinate gives NaN; the seam refuses it.

        Raises:
            UserError: the point or the objective's answer has another form than stated in ``estimators.base``
        """
        _check_point(point_BCHW)
        with torch.no_grad(), ieee_fp32():
            centre_BCHW = self._legal_centre(point_BCHW)
            grad_BCHW = torch.zeros_like(centre_BCHW)
            values, differences = [], []
            for v_BCHW, made_B, plus_B, minus_B in self._pairs(objective, centre_BCHW, rng):
                difference_B = plus_B - minus_B
                slope_B = (difference_B / made_B).to(grad_BCHW.dtype)
                grad_BCHW.addcmul_(v_BCHW, slope_B.view(-1, 1, 1, 1))
                differences.append(difference_B)
                values.append((plus_B + minus_B) / 2 if self.form == "central" else minus_B)
            scale = DIRECTIONS[self.direction].scale(centre_BCHW[0].numel())
            grad_BCHW.mul_(scale / self.directions)
            value_B = torch.stack(values).mean(0) if self.form == "central" else values[0]
        return Estimate(grad_BCHW, value_B, torch.stack(differences, dim=1), self.cost(len(point_BCHW)))

    def _pairs(
        self, objective: Objective, centre_BCHW: Tensor, rng: torch.Generator
    ) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """For every direction: v, the step made along it, and the objective's values at its two ends."""
        batch, draw = len(centre_BCHW), DIRECTIONS[self.direction].draw
        base_B: Tensor | None = None
        for count in self._groups(batch):
            vs = [draw(centre_BCHW, rng) for _ in range(count)]
            plus = [self._probe(centre_BCHW, v_BCHW, self.step) for v_BCHW in vs]
            if self.form == "central":
                minus = [self._probe(centre_BCHW, v_BCHW, -self.step) for v_BCHW in vs]
                rows_RB = self._values(objective, plus + minus).view(-1, batch)
                plus_MB, minus_MB = rows_RB[:count], rows_RB[count:]
            else:
                minus = [centre_BCHW] * count
                first = [centre_BCHW] if base_B is None else []
                rows_RB = self._values(objective, first + plus).view(-1, batch)
                base_B = rows_RB[0] if base_B is None else base_B
                plus_MB, minus_MB = rows_RB[-count:], base_B.expand(count, batch)
            for v_BCHW, high, low, plus_B, minus_B in zip(vs, plus, minus, plus_MB, minus_MB, strict=True):
                yield v_BCHW, _step_made(high, low, v_BCHW), plus_B, minus_B

    def _groups(self, batch: int) -> Iterator[int]:
        """Numbers of directions to probe together, so that a group's probes about fill a chunk."""
        fitting = self.directions
        if self.chunk is not None:
            fitting = max(1, self.chunk // (batch * FORMS[self.form]))
        for start in range(0, self.directions, fitting):
            yield min(fitting, self.directions - start)

    def _values(self, objective: Objective, rows: list[Tensor]) -> Tensor:
        """The objective at all images of ``rows``, in calls of at most ``chunk`` images."""
        images_NCHW = torch.cat(rows) if len(rows) > 1 else rows[0]
        calls = images_NCHW.split(self.chunk or len(images_NCHW))
        return torch.cat([_checked_values(objective(call_NCHW), len(call_NCHW)) for call_NCHW in calls])

    @property
    def _reach(self) -> float:
        return self.step * DIRECTIONS[self.direction].reach

    def _legal_centre(self, point_BCHW: Tensor) -> Tensor:
        if self.bounds is None:
            return point_BCHW.detach()
        return point_BCHW.clamp(self.bounds[0] + self._reach, self.bounds[1] - self._reach)

    def _probe(self, centre_BCHW: Tensor, v_BCHW: Tensor, step: float) -> Tensor:
        probe_BCHW = torch.add(centre_BCHW, v_BCHW, alpha=step)
        # The centre leaves room for the whole reach; what the clamp can take is one rounding of the last bit.
        return probe_BCHW if self.bounds is None else probe_BCHW.clamp_(*self.bounds)


def _step_made(plus_BCHW: Tensor, minus_BCHW: Tensor, v_BCHW: Tensor) -> Tensor:
    """Length of the way from minus to plus along v, in units of v: (B,)."""
    along_B = ((plus_BCHW - minus_BCHW) * v_BCHW).sum((1, 2, 3))
    return along_B / v_BCHW.square().sum((1, 2, 3))


def _check_point(point_BCHW: Tensor) -> None:
    if point_BCHW.dim() != 4 or point_BCHW.numel() == 0:
        raise UserError(f"point: expected images (B, C, H, W), got shape {tuple(point_BCHW.shape)}")
    if point_BCHW.dtype not in (torch.float32, torch.float64):
        raise UserError(
            f"point: expected float32 or float64, got {point_BCHW.dtype}: too coarse for a difference; "
            "keep the generator out of autocast"
        )


def _checked_values(values: Tensor, images: int) -> Tensor:
    if values.shape != (images,) or not values.dtype.is_floating_point:
        raise UserError(
            f"objective: expected one floating-point number per image, shape ({images},), "
            f"got shape {tuple(values.shape)}, dtype {values.dtype}"
        )
    return values
