"""The options of ``run.py gradients``. No torch: the command line reads this before anything heavy loads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from dfme.benchmarks.gradients.candidates import CANDIDATES
from dfme.benchmarks.gradients.conditions import CONDITIONS
from dfme.config.fields import CONFIG, Basic, Count, Device, Expected, Images, Seed, accepted_by
from dfme.config.messages import listed, unknown_choice
from dfme.config.settings import EvaluationConfig, ScheduleConfig, StudentConfig
from dfme.errors import UserError

EVERYTHING = ("all",)


def _require_stages(shares: tuple[float, ...]) -> None:
    if not shares or not 0 <= shares[0] <= shares[-1] <= 1 or not all(left < right for left, right in pairwise(shares)):
        raise UserError(f"expected increasing shares of the budget from 0 to 1, got {listed(shares) or 'none'}")


Stages = Annotated[tuple[float, ...], accepted_by(_require_stages)]


def _some_of(what: str, known: Iterable[str]) -> AfterValidator:
    """Names of what is known, at least one."""
    choices = [*EVERYTHING, *known]

    def require(names: tuple[str, ...]) -> None:
        wrong = next((name for name in names if name not in choices), None)
        if wrong is not None:
            raise UserError(unknown_choice(what, wrong, choices))
        if not names:
            raise UserError(f"expected at least one {what}, got none")

    return accepted_by(require)


def require_local(kind: str) -> None:
    """UserError for a kind of teacher whose gradients nobody has here."""
    if kind != "torch":
        raise UserError(
            f"--teacher {kind}: expected a network on this machine (kind torch, --teacher.checkpoint), since estimates "
            "are measured against the teacher's own gradients; run.py check probes a teacher behind an API"
        )


@dataclass(frozen=True, config=CONFIG)
class GradientsConfig:
    """One comparison of gradient estimators with the truth, for students on the way of a recipe."""

    batches: Basic[Annotated[int, Field(ge=2), Expected("at least 2, for a spread")]] = 8
    """batches that every figure is the mean of"""
    batch_size: Basic[Count] = 256
    """images per batch"""
    stages: Basic[Stages] = (0.0, 0.04, 1.0)
    """shares of the budget at which student and generator are taken, increasing, within 0 and 1; the recipe's own
    method trains them up to there"""
    conditions: Basic[Annotated[tuple[str, ...], _some_of("condition", CONDITIONS)]] = EVERYTHING
    """all that the machine has, or some of exact, 8bit, 6decimals, 4decimals, 3decimals, 2decimals, 8bit_4decimals,
    top3, tf32 (CUDA only), bf16"""
    estimators: Basic[Annotated[tuple[str, ...], _some_of("row", CANDIDATES)]] = EVERYTHING
    """all, or names of rows such as sphere (the published one), dct, lattice_dct, dct_kl, auto"""
    out: Basic[str | None] = None
    """directory of table and picture; by default a free name under runs/"""
    budget: Basic[Images] = 1_000_000
    """images the recipe's method would be charged, such as 300000, 300k or 2M; stages are shares of it"""
    seed: Basic[Seed] = 0
    """seed of everything random"""
    device: Basic[Device] = "auto"
    """auto, cpu, cuda or cuda:N"""
    channels_last: Literal["auto", "yes", "no"] = "auto"
    """memory format of convolutions; auto picks it where it is faster"""
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    """learning-rate schedule of the recipe"""
    student: StudentConfig = field(default_factory=StudentConfig)
    """the student"""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """what a stage's agreement is counted on; none counts it on generated images"""
