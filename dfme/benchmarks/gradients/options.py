"""The options of ``run.py gradients``. No torch: the command line reads this before anything heavy loads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from dfme.config.settings import EvaluationConfig, ScheduleConfig, StudentConfig
from dfme.errors import UserError

EVERYTHING = ("all",)


def require_local(kind: str) -> None:
    """UserError for a kind of teacher whose gradients nobody has here."""
    if kind != "torch":
        raise UserError(
            f"--teacher {kind}: expected a network on this machine (kind torch, --teacher.checkpoint), since estimates "
            "are measured against the teacher's own gradients; run.py check probes a teacher behind an API"
        )


@dataclass(frozen=True)
class GradientsConfig:
    """One comparison of gradient estimators with the truth, for students on the way of a recipe.

    Args:
        batches: batches that every figure is the mean of
        batch_size: images per batch
        stages: shares of the budget at which student and generator are taken, increasing, within 0 and 1; the
            recipe's own method trains them up to there
        conditions: all that the machine has, or some of exact, 8bit, 6decimals, 4decimals, 3decimals, 2decimals,
            8bit_4decimals, top3, tf32 (CUDA only), bf16
        estimators: all, or names of rows such as sphere (the published one), dct, lattice_dct, dct_kl, auto
        out: directory of table and picture; by default a free name under runs/
        budget: images the recipe's method would be charged, such as 300000, 300k or 2M; stages are shares of it
        seed: seed of everything random
        device: auto, cpu, cuda or cuda:N
        channels_last: memory format of convolutions; auto picks it where it is faster
        schedule: learning-rate schedule of the recipe
        student: the student
        evaluation: what a stage's agreement is counted on; none counts it on generated images
    """

    batches: int = 8
    batch_size: int = 256
    stages: tuple[float, ...] = (0.0, 0.04, 1.0)
    conditions: tuple[str, ...] = EVERYTHING
    estimators: tuple[str, ...] = EVERYTHING
    out: str | None = None
    budget: int | str = 1_000_000
    seed: int = 0
    device: str = "auto"
    channels_last: Literal["auto", "yes", "no"] = "auto"
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    student: StudentConfig = field(default_factory=StudentConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
