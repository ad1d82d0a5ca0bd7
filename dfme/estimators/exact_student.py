"""The student's part of the gradient by autograd, the teacher's by differences.

The objective is f(x) = value(x, a(x)) with the answers a from the API: its gradient is g = g_S + g_T, where
g_S = d value / d x with the answers held is free and exact, and g_T goes through the answers and must be probed.
With the student held at the point, slope_T = (value(x, a(x + h v)) - value(x, a(x))) / h estimates <g_T, v>, and

    g(c) = (1 - c) g_S + (s/m) sum_j v_j (slope_T_j + c <g_S, v_j>)

has the mean g_S + g_T for every c: <g_S, v> is a control variate, whose mean is known. The variance is that of
probing g_T + c g_S, in proportion to |g_T + c g_S|^2, so the best c is

    c* = - <g_T, g_S> / |g_S|^2

c = 0 is the exact student: g_S without noise, all of the noise of g_T. c = 1 is, to first order in the step, the
plain difference of f, since slope_T + <g_S, v> is its slope. For L1, f = - mean_k |S_k - T_k|, the two terms are
g_S = - mean_k sign_k grad S_k and g_T = mean_k sign_k grad T_k with the same signs: they do not shrink as the
student learns, they cancel. A student close to its teacher has g_T near - g_S, hence c* near 1, and removing "its"
noise by c = 0 brings back what the plain difference had cancelled. A student that has learnt nothing has g_S and
g_T without relation, c* near 0, and there the exact term helps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from dfme.compute import ieee_fp32
from dfme.errors import UserError
from dfme.estimators.base import Estimate, ImageFunction, Objective
from dfme.estimators.differences import check_point
from dfme.estimators.directions import DIRECTIONS, PerturbedPoint
from dfme.estimators.finite_difference import FiniteDifference
from dfme.estimators.priors import in_two_parts, observed, student_term


@dataclass(frozen=True, eq=False)
class _Probed:
    """(s/m) sum_j slope_j v_j of the teacher's and of the student's term, their slopes, the teacher's differences."""

    teachers_BCHW: Tensor
    students_BCHW: Tensor
    slopes_T_BM: Tensor
    slopes_S_BM: Tensor
    differences_BM: Tensor


@dataclass(frozen=True)
class ExactStudent:
    """Estimates a gradient with the student's term known and used as a control variate.

    c = auto is a regression over the batch, - sum slope_T slope_S / sum slope_S^2 with slope_S = <g_S, v>, which
    tends to c* and is exactly 1 where the terms cancel. Each image's c is made from the other images alone, so
    that no direction weighs itself and the estimate stays unbiased; through c, and only so, images of a batch
    depend on each other. A single image has no others: its c is 1, the plain difference.

    Args:
        control: c, or auto
        inner: which directions, how many, how far, within what limits; forward, since all of it rests on the
            answers at the points themselves

    Raises:
        UserError: ``control`` is no finite number, or the form is central
    """

    control: float | Literal["auto"]
    inner: FiniteDifference

    def __post_init__(self) -> None:
        if self.control != "auto" and not math.isfinite(self.control):
            raise UserError(f"control: expected a finite number or auto, got {self.control!r}")
        if self.inner.form != "forward":
            raise UserError(
                f"form {self.inner.form}: expected forward with kind exact_student, which needs the answers at the "
                "points themselves; use --estimator.form forward, or --estimator.kind finite_difference"
            )

    def cost(self, batch: int, ahead: int = 0) -> int:
        """Images asked for: B (m + 1)."""
        return self.inner.cost(batch, ahead)

    def estimate(self, objective: ImageFunction, point_BCHW: Tensor, rng: torch.Generator) -> Estimate:
        """Estimate d objective / d point; the points themselves are asked about first.

        ``differences_BM`` are the teacher's: value(x, a(x + h v)) - value(x, a(x)). The directions are those that
        ``inner`` would draw. Runs under IEEE fp32; nothing here waits for an accelerator.

        Raises:
            UserError: the objective is not in two parts, or as of ``inner``
        """
        check_point(point_BCHW)
        objective = in_two_parts(objective, "exact_student")
        with torch.no_grad(), ieee_fp32():
            centre_BCHW = self.inner.probing.centre(point_BCHW)
            answers = observed(objective, centre_BCHW, self.inner.chunk)
            base_B = objective.value(centre_BCHW, answers)
            own_BCHW = student_term(objective, centre_BCHW, answers)
            probed = self._probed(objective, centre_BCHW, base_B, own_BCHW, rng)
            control_B111 = self._control(probed).to(own_BCHW.dtype)
            noisy_BCHW = probed.teachers_BCHW + control_B111 * probed.students_BCHW
            grad_BCHW = (1 - control_B111) * own_BCHW + noisy_BCHW
        return Estimate(grad_BCHW, base_B, probed.differences_BM, self.cost(len(point_BCHW)))

    def state_dict(self) -> dict[str, Any]:
        """Nothing: every estimate stands by itself."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to load."""

    def _probed(
        self, objective: Objective, centre_BCHW: Tensor, base_B: Tensor, own_BCHW: Tensor, rng: torch.Generator
    ) -> _Probed:
        """Both terms seen through the same directions: the teacher's as it was probed, the student's as it is."""
        inner = self.inner
        family, place = (
            DIRECTIONS[inner.direction],
            PerturbedPoint(centre_BCHW, objective.features_BFHW, inner.frequencies),
        )
        sums = torch.zeros_like(centre_BCHW), torch.zeros_like(centre_BCHW)
        slopes: list[tuple[Tensor, Tensor]] = []
        differences = []
        held = _Held(objective, centre_BCHW)
        for probe in inner.probing.along(held, centre_BCHW, family.stream(place, rng), inner.directions, base_B):
            pair = probe.slope_B.to(own_BCHW.dtype), (probe.v_BCHW * own_BCHW).sum((1, 2, 3))
            for sum_BCHW, slope_B in zip(sums, pair, strict=True):
                sum_BCHW.addcmul_(probe.v_BCHW, slope_B.view(-1, 1, 1, 1))
            slopes.append(pair)
            differences.append(probe.difference_B)
        scale = (family.scale(place) if inner.lattice is None else place.size) / inner.directions
        slopes_T_BM, slopes_S_BM = (torch.stack(column, dim=1).double() for column in zip(*slopes, strict=True))
        teachers_BCHW, students_BCHW = (sum_BCHW.mul_(scale) for sum_BCHW in sums)
        return _Probed(teachers_BCHW, students_BCHW, slopes_T_BM, slopes_S_BM, torch.stack(differences, dim=1))

    def _control(self, probed: _Probed) -> Tensor:
        """c of every image, (B, 1, 1, 1)."""
        square_B = probed.slopes_S_BM.square().sum(1)
        if self.control != "auto":
            return torch.full_like(square_B, self.control).view(-1, 1, 1, 1)
        product_B = (probed.slopes_T_BM * probed.slopes_S_BM).sum(1)
        others_B = square_B.sum() - square_B
        control_B = torch.where(others_B > 0, (product_B - product_B.sum()) / others_B, torch.ones_like(others_B))
        return control_B.view(-1, 1, 1, 1)


class _Held:
    """The objective with the student held at the centre: only the answers are those of the rows asked.

    Rows come in whole batches, one after the other, however they are split into calls; so a row's place in the
    sequence tells which image it belongs to.
    """

    def __init__(self, objective: Objective, centre_BCHW: Tensor) -> None:
        self._objective = objective
        self._centre_BCHW = centre_BCHW
        self._asked = 0

    def __call__(self, rows_NCHW: Tensor) -> Tensor:
        place_N = torch.arange(self._asked, self._asked + len(rows_NCHW), device=rows_NCHW.device)
        self._asked += len(rows_NCHW)
        own_NCHW = self._centre_BCHW[place_N % len(self._centre_BCHW)]
        return self._objective.value(own_NCHW, self._objective.observe(rows_NCHW))
