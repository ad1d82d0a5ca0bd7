"""The options of ``run.py compare``, and its cells, each a complete job, in the order in which they
run.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic.dataclasses import dataclass as as_model

from dfme.audits.compare.engines import require_engine
from dfme.config.defences import Quota, parse_defences, stated
from dfme.config.sections import AnswersConfig
from dfme.config.settings import Job
from dfme.config.values import (
    CONFIG,
    Basic,
    Count,
    Images,
    LabelModeText,
    Natural,
    Seed,
    accepted_by,
    from_mapping,
)
from dfme.errors import UserError
from dfme.spec import LabelMode

NO_DEFENCE = "none"
AS_IT_IS = "auto"

WORDS = {
    AS_IT_IS: "learn",
    "scores": "learn",
    "kl": "learn",
    "label": "learn",
    "table": "recover",
    "net": "recover",
}
"""Words of an attacker, and the option of the section answers that each sets."""
COUNTED = ("repeat", "vote")
"""Options of that section that an attacker sets by name and number."""
ANSWERS_UNTOUCHED = ("quota", "pow")  # defences that change no answer
WITHOUT_MAP = ("watermark", "misinform", "modelguard_s")
"""Defences whose answers cannot be worked out from their name and options."""


@dataclass(frozen=True)
class Attempt:
    """A defence and an attacker as asked for, and what they come to in a label mode.

    ``stack``: of the defence what changes answers. ``runs``: the stack of the run that stands for
    the pair. ``reason``: why there is none, or nothing. ``limit``: images after which a quota ends
    it.
    """

    defence: str = NO_DEFENCE
    answers: str = AS_IT_IS
    stack: str = NO_DEFENCE
    runs: str = NO_DEFENCE
    reason: str = ""
    limit: int | None = None

    @property
    def settings(self) -> AnswersConfig:
        """What the attacker makes of the answers."""
        if self.reason:
            return AnswersConfig()
        options = parse_attacker(self.answers)
        knows = {"knows": self.runs} if "recover" in options else {}
        return from_mapping(AnswersConfig, {**options, **knows})

    @property
    def defences(self) -> str | None:
        """What the run's teacher is defended by; None if by nothing."""
        return None if self.reason or self.runs == NO_DEFENCE else self.runs


def attempt(defence: str, answers: str, mode: str) -> Attempt:
    """The run that answers for a pair of defence and attacker in a label mode.

    The label of a defence that keeps the top class, and is not random, is the undefended one: who
    learns labels alone is run without it. Not where probabilities are rounded, which makes ties.
    """
    stack = parse_defences(defence)
    options = parse_attacker(answers)
    form = LabelMode.parse(mode)
    texts = [text.strip() for text in defence.split("+")]
    at_work = [part for part in stack if part.name not in ANSWERS_UNTOUCHED]
    changed = "+".join(
        text for text, part in zip(texts, stack, strict=False) if part.name not in ANSWERS_UNTOUCHED
    )
    facts = stated(at_work, 10)  # of any number of classes: what is asked does not depend on it
    undoes = "recover" in options
    secret = [part.name for part in at_work if part.name in WITHOUT_MAP or not part.has_map]
    reason = ""
    if form.kind == "label" and (undoes or options.get("learn") in ("scores", "kl")):
        reason = "answers are labels"
    elif undoes and not at_work:
        reason = "there is nothing to undo"
    elif undoes and secret:
        reason = (
            f"what {' and '.join(secret)} answers cannot be worked out from probabilities, name "
            "and options"
        )
    elif "repeat" in options and at_work and not facts.random:
        reason = "an image gets the same answer again"
    labels_alone = form.kind == "label" or (options.get("learn") == "label" and not undoes)
    same = labels_alone and form.decimals is None and not facts.random and facts.keeps_top == "yes"
    return Attempt(
        defence,
        answers,
        stack=changed or NO_DEFENCE,
        runs=NO_DEFENCE if not changed or (same and not reason) else changed,
        reason=reason,
        limit=min((part.images for part in stack if isinstance(part, Quota)), default=None),
    )


def parse_attacker(text: str) -> dict[str, str]:
    """The options of the section answers that an attacker sets. UserError for one that is none.

    It is what it learns (``auto``: as the row says), how it undoes the defence, which it knows,
    ``repeat=N`` and ``vote=N``, joined by +. One that undoes learns by ``kl`` unless told, as
    ModelGuard's adaptive ones.
    """
    options: dict[str, str] = {}
    for part in text.split("+"):
        name, _, count = part.strip().partition("=")
        key = WORDS.get(name)
        if count:
            key = name if name in COUNTED else None
        if key is None or key in options:
            raise UserError(
                f"expected an attacker of {', '.join(WORDS)}, repeat=N and vote=N, joined "
                f"by + as in table+repeat=4; got {text!r}"
            )
        options[key] = count or name
    if "recover" in options:
        options.setdefault("learn", "kl")
    from_mapping(AnswersConfig, options, prefix=f"{text!r}: ")
    return options


@as_model(frozen=True, config=CONFIG)
class CompareConfig:
    """One comparison: rows x seeds x budgets x label modes x defences x attackers; cells may share
    a run.
    """

    methods: Basic[tuple[str, ...]] = ()
    """rows in the order of the tables, such as static,dfme: names under rows of the file, or
    methods, which have their defaults then; none: all rows"""
    seeds: Basic[tuple[Seed, ...]] = (0, 1, 2)
    """seeds of everything random, such as 0,1,2"""
    budgets: Basic[tuple[Images, ...]] = (30_000,)
    """images that may be charged, such as 30k,100k"""
    label_modes: Basic[tuple[LabelModeText, ...]] = ("probabilities",)
    """forms of the teacher's answers, such as probabilities,label"""
    defences: Basic[tuple[str, ...]] = ("none",)
    """what a teacher on this machine is defended by in turn, each one defence or several joined by
    +, such as none,lattice:n=10,modelguard_w:epsilon=1 (docs/defences.md)"""
    answers: Basic[tuple[str, ...]] = ("auto",)
    """attackers of each defence: what they learn (auto: as the row says; scores, kl, label), how
    they undo the defence, which they know (table, net), repeat=N and vote=N, joined by +, such as
    scores,kl,label,table,net,kl+repeat=4; they recover what answers tell, and hide nothing"""
    student_steps: Basic[Count] = 3_000
    """optimiser steps of each student over the whole run, the same in every cell"""
    jobs: Basic[Count | None] = None
    """runs side by side; each has its share of the cores. None: 1, or all that slurm or ray has
    room for
    """
    engine: Basic[Annotated[str, accepted_by(require_engine)]] = "local"
    """who runs them: local (processes of this machine, each on a GPU of its own), commands (a list,
    and an array of SLURM jobs, for you to run), slurm (submitit) or ray. All of them read and write
    --out"""
    engine_options: Basic[tuple[str, ...]] = ()
    """KEY=VALUE of the engine's own: partition=gpu,time=240,gpus_per_node=1,cpus_per_task=4 of
    slurm; address=HOST:6379,num_cpus=4,num_gpus=0.25 of ray; of commands, what the array says to
    sbatch"""
    retries: Basic[Natural] = 3
    """how many times a run that was killed or preempted, or lost its node, is gone on with; one
    that fails is not"""
    format: Basic[Literal["png", "pdf"]] = "png"
    """of the picture: png or pdf"""
    out: Basic[str | None] = None
    """directory of tables, curves and runs; by default a free name under runs/"""
    resume: Basic[bool] = False
    """go on with the comparison in --out: what is finished is kept, what was interrupted is resumed
    """
    dry_run: Basic[bool] = False
    """say how many images the cells would ask, and their time; ask nothing and write nothing"""


OPTIONS = "comparison.yaml"  # a comparison's own file of options, in its directory
UNKEPT = ("out", "resume", "dry_run", "engine_options")  # which no file of options has


@dataclass(frozen=True)
class Cell:
    """One entry of a comparison. ``name`` is that of its run directory, which some cells share.

    ``run``: the name of another comparison's run that stands for it, and whose job it has.
    """

    row: str
    mode: str
    budget: int
    seed: int
    job: Job
    attempt: Attempt = field(default_factory=Attempt)
    run: str = ""

    @property
    def name(self) -> str:
        if self.run:
            return self.run
        parts = [self.row.replace(":", "."), self.mode.replace(":", "_")]
        for text in (self.attempt.runs, self.attempt.answers):
            if text not in (NO_DEFENCE, AS_IT_IS):
                parts.append(re.sub(r"[^\w.+=-]", "_", text))
        return "-".join([*parts, count_text(self.budget), f"seed{self.seed}"])

    @property
    def label(self) -> str:
        """The row, and its defence and attacker where one of them was asked for."""
        pair = (self.attempt.defence, self.attempt.answers)
        return self.row if pair == (NO_DEFENCE, AS_IT_IS) else ", ".join((self.row, *pair))


@dataclass(frozen=True)
class ComparisonPlan:
    """A comparison before it begins, its ``cells`` in the order in which they run.

    ``options``: its file of options, with the flags that were given. ``command``: the words that
    asked for it. ``entry``: runs the words of a cell. ``bills``: what each stack of defences costs
    honest users. ``stem``: of its files' names.
    """

    out: Path
    config: CompareConfig
    jobs: int
    cells: tuple[Cell, ...]
    options: dict[str, Any]
    command: tuple[str, ...]
    entry: Callable[[Sequence[str]], int]
    bills: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    stem: str = "comparison"

    @property
    def files(self) -> tuple[Path, ...]:
        """Its report, data, picture and cells."""
        return tuple(
            self.out / f"{self.stem}.{kind}" for kind in ("md", "json", self.config.format, "csv")
        )

    @property
    def engine_options(self) -> dict[str, str]:
        """The engine's options by name."""
        return dict(text.split("=", 1) for text in self.config.engine_options)

    @property
    def runs(self) -> tuple[Cell, ...]:
        """A cell of every run, the first of those that share it."""
        first = {cell.name: cell for cell in reversed(self.cells)}
        return tuple(cell for cell in self.cells if first[cell.name] is cell)

    def directory(self, cell: Cell) -> Path:
        """The run directory of a cell."""
        return self.out / "cells" / cell.name


RATES = ("images_per_second", "requests_per_second")


def rates_of(job: Job) -> dict[str, float]:
    """The rates at which the job's service may be asked, if anybody says."""
    options = job.teacher_options
    return {name: options[name] for name in RATES if options.get(name)}


def as_asked(job: Job, sharing: int, away: bool) -> Job:
    """The job of one of so many cells that ask a service at once (0: none do), which share its
    rates.

    On other machines (``away``) its records wait for the disk.
    """
    if not sharing:
        return job
    shares = {name: rate / sharing for name, rate in rates_of(job).items()}
    config = replace(job.config, fsync=job.config.fsync or away)
    return replace(job, config=config, teacher_options={**job.teacher_options, **shares})


def own_options(config: Any) -> dict[str, Any]:
    """The own options of a comparison or an audit as its file has them."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(config).items()
        if name not in UNKEPT
    }


def count_text(images: int) -> str:
    """A budget as people write it: 500, 20k, 2M."""
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if images % size == 0:
            return f"{images // size}{letter}"
    return str(images)
