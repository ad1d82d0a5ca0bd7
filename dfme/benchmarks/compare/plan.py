"""What a comparison consists of: its cells, each a complete job, in the order in which they run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from dfme.benchmarks.options import CompareConfig
from dfme.config.settings import Job
from dfme.run.recipes import fitted

OPTIONS = "comparison.yaml"
"""A comparison's own file of options, in its directory."""


@dataclass(frozen=True)
class Cell:
    """One run of a comparison. ``name`` is that of its directory too."""

    row: str
    mode: str
    budget: int
    seed: int
    job: Job

    @property
    def name(self) -> str:
        return f"{self.row.replace(':', '.')}-{self.mode.replace(':', '_')}-{count_text(self.budget)}-seed{self.seed}"


@dataclass(frozen=True)
class ComparisonPlan:
    """A comparison before it begins, its ``cells`` in the order in which they run.

    ``options`` is its own file of options, with the flags that were given; ``command`` are the words that asked for it.
    ``jobs`` cells run at once, by ``engine`` with its options; one that is killed is begun again ``retries`` times.
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

    @property
    def name(self) -> str:
        return self.out.resolve().name

    @property
    def engine_words(self) -> str:
        """The engine's options as they are typed."""
        return ",".join(f"{name}={text}" for name, text in self.engine_options.items())

    def directory(self, cell: Cell) -> Path:
        """The run directory of a cell."""
        return self.out / "cells" / cell.name


def cells_of(
    jobs: Mapping[tuple[str, str], Job], seeds: Sequence[int], budgets: Sequence[int], out: Path
) -> tuple[Cell, ...]:
    """All cells of ``jobs``, one job per row and label mode, which may have any seed and budget.

    The first seed of every row comes before the second of any: a table that is not finished is fair all the same.
    """
    rows, modes = (dict.fromkeys(pair[place] for pair in jobs) for place in (0, 1))
    cells = []
    for seed, budget, mode, row in product(seeds, budgets, modes, rows):
        cell = Cell(row, mode, budget, seed, jobs[row, mode])
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
    lists = {key: list(getattr(config, key)) for key in ("seeds", "budgets", "label_modes")}
    single = {key: getattr(config, key) for key in ("student_steps", "jobs", "engine", "retries")}
    return {"methods": list(rows), **lists, **single}


def count_text(images: int) -> str:
    """A budget as people write it: 500, 20k, 2M."""
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if images % size == 0:
            return f"{images // size}{letter}"
    return str(images)
