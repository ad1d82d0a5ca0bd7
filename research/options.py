"""Options of the scripts. No torch here."""

from collections.abc import Iterable
from dataclasses import field
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from dfme.config.messages import listed, unknown_choice
from dfme.config.settings import EvaluationConfig, ScheduleConfig, StudentConfig
from dfme.config.values import (
    CONFIG,
    Basic,
    Count,
    Device,
    Expected,
    Images,
    Natural,
    Positive,
    Seed,
    accepted_by,
)
from dfme.errors import UserError
from research.candidates import CANDIDATES, CONDITIONS

EVERYTHING = "all"


@dataclass(frozen=True, config=CONFIG)
class BenchConfig:
    """Options of ``research.bench``."""

    cases: tuple[str, ...] = ("digits", "digits_paper", "resnet")
    """what to time: digits (cnn_small on 1x8x8, four replay steps a batch), digits_paper (the same
    without replay), digits28 (LeNet-5 to ResNet-18-8x on 1x28x28, without replay) and resnet
    (ResNet-34-8x to ResNet-18-8x on 3x32x32, without replay)"""
    against: Literal["bare", "published"] = "bare"
    """what the loop is timed beside: bare (the kernels of the same work) or published (the
    published loop, which has no replay, written anew from its description: TF32 throughout, probes
    made on the host)"""
    rounds: Count = 5
    """pairs of timings; the median of the ratios is reported"""
    seconds: Positive = 5.0
    """about how long one timing takes"""
    batch_size: Natural = 0
    """images per batch; 0 is 256, or 16 for resnet on a CPU"""
    device: Device = "auto"
    """auto, cpu, cuda or cuda:N"""
    precision: Literal["fp32", "bf16"] = "fp32"
    """of the student's training steps: fp32 or bf16"""
    channels_last: Literal["auto", "yes", "no"] = "auto"
    """memory format of convolutions; auto picks it where it is faster"""
    options: tuple[str, ...] = ()
    """options of a run that the loop is timed with, such as
    deterministic=true,teacher.precision=bf16"""


def _require_stages(shares: tuple[float, ...]) -> None:
    inside = shares and min(shares) >= 0 and max(shares) <= 1
    if not inside or sorted(set(shares)) != list(shares):
        raise UserError(
            f"expected increasing shares of the budget from 0 to 1, got {listed(shares) or 'none'}"
        )


def _some_of(kind: str, known: Iterable[str]) -> AfterValidator:
    """Require at least one name, and all of them known."""
    choices = [EVERYTHING, *known]

    def require(names: tuple[str, ...]) -> None:
        wrong = next((name for name in names if name not in choices), None)
        if wrong is not None:
            raise UserError(unknown_choice(kind, wrong, choices))
        if not names:
            raise UserError(f"expected at least one {kind}, got none")

    return accepted_by(require)


@dataclass(frozen=True, config=CONFIG)
class GradientsConfig:
    """Options of ``research.gradients``."""

    batches: Basic[Annotated[int, Field(ge=2), Expected("at least 2, for a spread")]] = 8
    """batches that every figure is the mean of"""
    batch_size: Basic[Count] = 256
    """images per batch"""
    stages: Basic[Annotated[tuple[float, ...], accepted_by(_require_stages)]] = (0.0, 0.04, 1.0)
    """shares of the budget at which student and generator are taken, increasing, within 0 and 1;
    the recipe's own method trains them up to there"""
    conditions: Basic[Annotated[tuple[str, ...], _some_of("condition", CONDITIONS)]] = (EVERYTHING,)
    """all that the machine has, or some of exact, 8bit, 6decimals, 4decimals, 3decimals, 2decimals,
    8bit_4decimals, top3, tf32 (CUDA only), bf16"""
    estimators: Basic[Annotated[tuple[str, ...], _some_of("row", CANDIDATES)]] = (EVERYTHING,)
    """all, or names of rows such as sphere (the published one), dct, lattice_dct, dct_kl, auto"""
    free: Basic[bool] = False
    """run the recipe once more with the true gradient for nothing in place of every estimate: no
    estimate is worth more"""
    out: Basic[str | None] = None
    """directory of table and picture; by default a free name under runs/"""
    budget: Basic[Images] = 1_000_000
    """images the recipe's method would be charged, such as 300000, 300k or 2M; stages are shares of
    it
    """
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
