"""The options of ``run.py bench``, ``run.py compare`` and ``run.py gradients``. No torch here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from dfme.benchmarks.compare.engines import require_engine
from dfme.benchmarks.gradients.candidates import CANDIDATES, CONDITIONS
from dfme.config.fields import (
    CONFIG,
    Basic,
    Count,
    Device,
    Expected,
    Images,
    LabelModeText,
    Natural,
    Positive,
    Seed,
    accepted_by,
    parse_count,
)
from dfme.config.messages import listed, unknown_choice
from dfme.config.settings import EvaluationConfig, ScheduleConfig, StudentConfig
from dfme.errors import UserError


def _require_count(text: str) -> str:
    if parse_count(text) < 1:
        raise ValueError(f"expected at least 1 each, got {text}")
    return text


Budget = Annotated[str, AfterValidator(_require_count)]


@dataclass(frozen=True, config=CONFIG)
class BenchConfig:
    """How long the framework's own loop takes beside the bare kernels of the same work."""

    cases: tuple[str, ...] = ("digits", "digits_paper", "resnet")
    """what to time: digits (cnn_small on 1x8x8, four replay steps a batch), digits_paper (the same without replay) and
    resnet (ResNet-34-8x to ResNet-18-8x on 3x32x32, without replay)"""
    against: Literal["bare", "published"] = "bare"
    """what the loop is timed beside: bare (the kernels of the same work) or published (the published loop, which has no
    replay, written anew from its description: TF32 throughout, probes made on the host)"""
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
    compile: bool = False
    """run student and generator through torch.compile"""
    suite: Literal["none", "gpu"] = "none"
    """gpu: measure everything at once, beside the published loop, each option alone and together; a toy on a CPU"""
    minutes: Positive = 9.0
    """of the suite: rows for which there is no time are left for --resume"""
    out: str | None = None
    """of the suite: the directory of its table and its figures; by default a free name under runs/"""
    resume: bool = False
    """of the suite: go on with the one in --out"""


@dataclass(frozen=True, config=CONFIG)
class CompareConfig:
    """One comparison: rows x seeds x budgets x label modes x defences x attackers, each cell a run or shared."""

    methods: Basic[tuple[str, ...]] = ()
    """rows in the order of the tables, such as static,dfme: names under rows of the file, or methods, which have their
    defaults then; none: all rows"""
    seeds: Basic[tuple[Seed, ...]] = (0, 1, 2)
    """seeds of everything random, such as 0,1,2"""
    budgets: Basic[tuple[Budget, ...]] = ("30k",)
    """images that may be charged, such as 30k,100k"""
    label_modes: Basic[tuple[LabelModeText, ...]] = ("probabilities",)
    """forms of the teacher's answers, such as probabilities,label"""
    defences: Basic[tuple[str, ...]] = ("none",)
    """what a teacher on this machine is defended by in turn, each one defence or several joined by +, such as
    none,lattice:n=10,modelguard_w:epsilon=1 (docs/defences.md)"""
    answers: Basic[tuple[str, ...]] = ("auto",)
    """attackers of each defence: what they learn (auto: as the row says; scores, kl, label), how they undo the defence,
    which they know (table, net), repeat=N and vote=N, joined by +, such as scores,kl,label,table,net,kl+repeat=4; they
    recover what answers tell, and hide nothing"""
    student_steps: Basic[Count] = 3_000
    """optimiser steps of each student over the whole run, the same in every cell"""
    jobs: Basic[Count | None] = None
    """runs side by side; each has its share of the cores. None: 1, or all that slurm or ray has room for"""
    engine: Basic[Annotated[str, accepted_by(require_engine)]] = "local"
    """who runs them: local (processes of this machine, each on a GPU of its own), commands (a list, and an array of
    SLURM jobs, for you to run), slurm (submitit) or ray. All of them read and write --out"""
    engine_options: Basic[tuple[str, ...]] = ()
    """KEY=VALUE of the engine's own: partition=gpu,time=240,gpus_per_node=1,cpus_per_task=4 of slurm;
    address=HOST:6379,num_cpus=4,num_gpus=0.25 of ray; of commands, what the array says to sbatch"""
    retries: Basic[Natural] = 3
    """how many times a run that was killed or preempted, or lost its node, is gone on with; one that fails is not"""
    format: Basic[Literal["png", "pdf"]] = "png"
    """of the picture: png or pdf"""
    out: Basic[str | None] = None
    """directory of tables, curves and runs; by default a free name under runs/"""
    resume: Basic[bool] = False
    """go on with the comparison in --out: what is finished is kept, what was interrupted is resumed"""


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
    free: Basic[bool] = False
    """run the recipe once more with the true gradient for nothing in place of every estimate: no estimate is worth
    more"""
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
