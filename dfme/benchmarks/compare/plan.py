"""What a comparison consists of: its cells, each a complete job, in the order in which they run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from dfme.benchmarks.compare.attackers import AS_IT_IS, NO_DEFENCE, Attempt
from dfme.benchmarks.options import CompareConfig
from dfme.config.settings import Job
from dfme.run.recipes import fitted

OPTIONS = "comparison.yaml"
"""A comparison's own file of options, in its directory."""

IN_NO_NAME = re.compile(r"[^\w.+=-]")
"""What of a defence's text stands in no directory's name."""


@dataclass(frozen=True)
class Cell:
    """One entry of a comparison. ``name`` is that of its run and of the run's directory: some cells share one."""

    row: str
    mode: str
    budget: int
    seed: int
    job: Job
    attempt: Attempt = field(default_factory=Attempt)

    @property
    def name(self) -> str:
        here = self.attempt.runs, self.attempt.answers
        others = [IN_NO_NAME.sub("_", text) for text in here if text not in (NO_DEFENCE, AS_IT_IS)]
        parts = self.row.replace(":", "."), self.mode.replace(":", "_"), *others
        return "-".join([*parts, count_text(self.budget), f"seed{self.seed}"])

    @property
    def label(self) -> str:
        """The row, and its defence and attacker where one of them was asked for."""
        asked = (self.attempt.defence, self.attempt.answers)
        return self.row if asked == (NO_DEFENCE, AS_IT_IS) else ", ".join((self.row, *asked))


@dataclass(frozen=True)
class ComparisonPlan:
    """A comparison before it begins, its ``cells`` in the order in which they run.

    ``options`` is its own file of options, with the flags that were given; ``command`` are the words that asked for it.
    ``jobs`` cells run at once, by ``engine`` with its options; one that is killed is begun again ``retries`` times.
    ``bills``: what each stack of defences costs honest users. ``stem``: of the names of its tables and its picture,
    whose file has this ``format``.
    """

    out: Path
    student_steps: int
    jobs: int
    cells: tuple[Cell, ...]
    options: dict[str, Any]
    command: tuple[str, ...]
    engine: str = "local"
    engine_options: Mapping[str, str] = field(default_factory=dict)
    retries: int = 3
    bills: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    stem: str = "comparison"
    format: str = "png"

    @property
    def files(self) -> tuple[Path, ...]:
        """Its report, its data, its picture and its cells."""
        return tuple(self.out / f"{self.stem}.{suffix}" for suffix in ("md", "json", self.format, "csv"))

    @property
    def name(self) -> str:
        return self.out.resolve().name

    @property
    def engine_words(self) -> str:
        """The engine's options as they are typed."""
        return ",".join(f"{name}={text}" for name, text in self.engine_options.items())

    @property
    def runs(self) -> tuple[Cell, ...]:
        """A cell of every run, the first of those that share it."""
        first = {cell.name: cell for cell in reversed(self.cells)}
        return tuple(cell for cell in self.cells if first[cell.name] is cell)

    def directory(self, cell: Cell) -> Path:
        """The run directory of a cell."""
        return self.out / "cells" / cell.name


def cells_of(
    jobs: Mapping[tuple[str, str, Attempt], Job], seeds: Sequence[int], budgets: Sequence[int], out: Path
) -> tuple[Cell, ...]:
    """All cells of ``jobs``, which may have any seed and budget.

    The first seed of every row comes before the second of any: a table that is not finished is fair all the same.
    """
    cells = []
    for seed, budget, ((row, mode, attempt), job) in product(seeds, budgets, jobs.items()):
        cell = Cell(row, mode, budget, seed, job, attempt)
        config, directory = cell.job.config, str(out / "cells" / cell.name)
        group, name = config.wandb.group or out.resolve().name, cell.name
        wandb = replace(config.wandb, group=group, name=name)
        config = replace(config, seed=seed, budget=budget, out=directory, resume=False, wandb=wandb)
        cells.append(replace(cell, job=fitted(replace(cell.job, config=config))))
    return tuple(cells)


def rates_of(job: Job) -> dict[str, float]:
    """The rates at which the job's service may be asked, as far as anybody says."""
    rates = ("images_per_second", "requests_per_second")
    return {name: job.teacher_options[name] for name in rates if job.teacher_options.get(name)}


def as_asked(job: Job, sharing: int, away: bool) -> Job:
    """The job of one of so many cells that ask a service at once (0: none do), which share its rates.

    On other machines (``away``) its records wait for the disk. None of that decides a result.
    """
    if not sharing:
        return job
    shares = {name: rate / sharing for name, rate in rates_of(job).items()}
    config = replace(job.config, fsync=job.config.fsync or away)
    return replace(job, config=config, teacher_options={**job.teacher_options, **shares})


def own_options(config: CompareConfig, rows: Sequence[str]) -> dict[str, Any]:
    """The comparison's own options in its file."""
    lists = {key: list(getattr(config, key)) for key in ("seeds", "budgets", "label_modes", "defences", "answers")}
    single = {key: getattr(config, key) for key in ("student_steps", "jobs", "engine", "retries", "format")}
    return {"methods": list(rows), **lists, **single}


def count_text(images: int) -> str:
    """A budget as people write it: 500, 20k, 2M."""
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if images % size == 0:
            return f"{images // size}{letter}"
    return str(images)
