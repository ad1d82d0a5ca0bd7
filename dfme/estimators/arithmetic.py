"""In which arithmetic the student's part of a difference is computed: IEEE fp32, TF32, or TF32 while it is good enough.

What TF32 rounds off has nothing to do with what else parts a difference from the true slope (noise of the answers,
curvature). Then correlations multiply, corr(tf32, slope) = corr(tf32, ieee) corr(ieee, slope), and what TF32 keeps of
the correlation is that of the same differences computed either way: it takes no true slope and no query, only the
student's scores once more at images whose answers are paid for. The answers must be in it: late in a run student and
teacher nearly agree, their slopes cancel, and the student's roundings stay.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from dfme.compute import held_to
from dfme.config.estimator_settings import ArithmeticName
from dfme.estimators.base import Estimate, Estimator, Objective
from dfme.estimators.preflight.diagnostics import ObjectiveOfAnswers
from dfme.estimators.synthetic import Synthetic
from dfme.precision import arithmetic, has_tf32

KEEPS = 0.95
"""Share of IEEE fp32's correlation that TF32 must keep to be used; heuristic."""

EVERY = 50
"""Estimates that are paid for from one measurement to the next; heuristic. Each computes the student's part twice."""


class _SoFar(NamedTuple):
    tf32: bool  # the next estimate
    keeps: float = 0.0
    paid: int = 0  # estimates
    in_tf32: int = 0  # of these


class OwnArithmetic:
    """The arithmetic of the student's part of all estimates of a run.

    ``auto`` begins in IEEE fp32, measures at the first estimate that is paid for and at every ``EVERY``-th after it,
    and what it finds holds up to the next measurement. A device without TF32 has IEEE fp32 alone.
    """

    def __init__(self, setting: ArithmeticName, device: torch.device) -> None:
        self._setting, self._device = setting, device
        self._has_tf32 = setting != "ieee" and has_tf32(device)
        self._measures = setting == "auto" and self._has_tf32
        self._so_far, self._news = _SoFar(setting == "tf32" and self._has_tf32), list[str]()

    def value(self, value: ObjectiveOfAnswers) -> ObjectiveOfAnswers:
        """``value`` in the arithmetic in use; in IEEE fp32 as the caller computes, who pins it around a difference."""
        return arithmetic("tf32", self._device)(value) if self._so_far.tf32 else value

    def estimate(
        self, estimator: Estimator, objective: Objective, point_BCHW: Tensor, rng: torch.Generator
    ) -> Estimate:
        """The estimate with the objective's value in the arithmetic in use, which is measured where that is due."""
        value, others = self.value(objective.value), list[Tensor]()
        in_other = arithmetic("ieee" if self._so_far.tf32 else "tf32", self._device)(objective.value)

        def in_both(x_NCHW: Tensor, answers: Tensor) -> Tensor:
            if not x_NCHW.requires_grad:  # a prior's gradient is no difference
                others.append(in_other(x_NCHW, answers))
            return value(x_NCHW, answers)

        measures = self._measures and self._so_far.paid % EVERY == 0
        asked = replace(objective, value=in_both if measures else value)
        estimate, so_far = estimator.estimate(asked, point_BCHW, rng), self._so_far
        if estimate.queries:  # else it was predicted
            if measures:
                again = _replayed(estimator, objective, others, point_BCHW)
                self._choose(estimate.differences_BM, again.differences_BM)
            self._so_far = self._so_far._replace(paid=so_far.paid + 1, in_tf32=so_far.in_tf32 + so_far.tf32)
        return estimate

    def _choose(self, left_BM: Tensor, right_BM: Tensor) -> None:
        """By the same differences in either arithmetic. Here, and nowhere else, the host waits for the device."""
        alike = cosine_similarity(left_BM.double().flatten(), right_BM.double().flatten(), dim=0, eps=0.0)
        before, keeps = self._so_far, float(alike.nan_to_num(0.0).clamp(0.0, 1.0))
        self._so_far = before._replace(tf32=keeps >= KEEPS, keeps=keeps)
        if not before.paid or self._so_far.tf32 != before.tf32:
            self._news.append(self._found())

    def lines(self) -> tuple[str, ...]:
        """What is to be said before the first estimate."""
        if self._setting == "ieee":
            return ()
        if not self._has_tf32:
            idle = f"--estimator.arithmetic {self._setting} is idle on {self._device}, which has no TF32"
            return (f"arithmetic: IEEE fp32; {idle}",)
        if self._setting == "tf32":
            return ("arithmetic: TF32 in differences, whatever that leaves of them",)
        first = f"arithmetic: TF32 is measured at the first estimate, then every {EVERY} estimates; IEEE fp32 before"
        return (self._found() if self._so_far.paid else first,)

    def news(self) -> tuple[str, ...]:
        """What was chosen since this was last asked."""
        news, self._news = tuple(self._news), []
        return news

    @property
    def facts(self) -> dict[str, Any]:
        """For the run's summary; nothing of the default."""
        so_far, used = self._so_far, "tf32" if self._so_far.tf32 else "ieee"
        keeps = so_far.keeps if self._measures and so_far.paid else None
        told = {"arithmetic_at_end": used, "tf32_share": so_far.in_tf32 / max(1, so_far.paid), "tf32_keeps": keeps}
        return {} if self._setting == "ieee" else told

    def state_dict(self) -> dict[str, Any]:
        return self._so_far._asdict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        found = _SoFar(**held_to(self.state_dict(), state, "arithmetic"))
        self._so_far = found._replace(tf32=found.tf32 and self._has_tf32)

    def _found(self) -> str:
        name, kept = "TF32" if self._so_far.tf32 else "IEEE fp32", f"{self._so_far.keeps:.3f} ({KEEPS:g} is asked for)"
        return f"arithmetic: {name} from here on; of IEEE fp32's correlation with true slopes TF32 keeps {kept}"


def _replayed(estimator: Estimator, objective: Objective, values: list[Tensor], point_BCHW: Tensor) -> Estimate:
    """The estimate just made, from the same answers and other ``values``; of it only the differences mean something."""
    probed = estimator.inner if isinstance(estimator, Synthetic) else estimator
    answers, told = (answers for _, answers in objective.asked), iter(values)

    def value(x_NCHW: Tensor, answers: Tensor) -> Tensor:
        return objective.value(x_NCHW, answers) if x_NCHW.requires_grad else next(told)

    replay = replace(objective, query=lambda _: next(answers), value=value, asked=[])
    return probed.estimate(replay, point_BCHW, torch.Generator(point_BCHW.device).manual_seed(0))
