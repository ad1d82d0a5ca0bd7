"""What the cells of a comparison are variations of: one job for each row. No torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from dfme.audits.compare.engines import EXTRAS
from dfme.audits.compare.plan import (
    Attempt,
    Cell,
    CompareConfig,
    ComparisonPlan,
    own_options,
)
from dfme.audits.compare.plan import attempt as attempt_of
from dfme.audits.compare.rows import require_same
from dfme.config.imports import find_target
from dfme.config.imports import own_options as parameters_of
from dfme.config.layers import Settings
from dfme.config.settings import Job
from dfme.config.values import read_value
from dfme.errors import UserError
from dfme.run.checks import find_problems, teacher_problems
from dfme.run.recipes import fitted
from dfme.spec import LabelMode


@dataclass(frozen=True)
class Row:
    """A row's job, of which its cells are variations, and who says each of its options."""

    job: Job
    settings: Settings


@dataclass(frozen=True)
class ComparisonBase:
    """The rows from which comparisons of one teacher are planned.

    ``record``: what the file of options has besides the comparison's own. ``command``: the words
    that asked for it. ``entry``: runs the words of a cell.
    """

    rows: Mapping[str, Row]
    record: Mapping[str, Any]
    command: tuple[str, ...]
    entry: Callable[[Sequence[str]], int]

    @property
    def job(self) -> Job:
        """A job whose teacher and evaluation are those of every row."""
        return next(iter(self.rows.values())).job

    def changed(self, change: Callable[[str, Job], Job]) -> "ComparisonBase":
        """The same with the job of every row changed."""
        rows = {name: replace(row, job=change(name, row.job)) for name, row in self.rows.items()}
        return replace(self, rows=rows)

    def plan(self, config: CompareConfig, out: Path) -> ComparisonPlan:
        """A comparison whose own options have been checked. UserError: all that is wrong."""
        names = config.methods or tuple(self.rows)
        cells = self._cells(config, names, out)
        options = {**own_options(config), "methods": list(names), **self.record}
        at_once = config.jobs or (len(cells) if config.engine in EXTRAS else 1)
        plan = ComparisonPlan(out, config, at_once, cells, options, self.command, self.entry)
        require_same(plan)
        return plan

    def _cells(self, config: CompareConfig, names: tuple[str, ...], out: Path) -> tuple[Cell, ...]:
        """All cells, the first seed of every row first: a table that is not finished is fair."""
        jobs = self._jobs(config, names)
        cells = []
        for seed, budget, (place, job) in product(config.seeds, config.budgets, jobs.items()):
            row, mode, attempt = place
            cell = Cell(row, mode, budget, seed, job, attempt)
            settings = replace(
                job.config,
                seed=seed,
                budget=budget,
                out=str(out / "cells" / cell.name),
                resume=False,
                wandb=replace(
                    job.config.wandb,
                    group=job.config.wandb.group or out.resolve().name,
                    name=cell.name,
                ),
            )
            cells.append(replace(cell, job=fitted(replace(job, config=settings))))
        return tuple(cells)

    def _jobs(
        self, config: CompareConfig, names: tuple[str, ...]
    ) -> dict[tuple[str, str, Attempt], Job]:
        """A job for each label mode, defence, attacker and row. What is wrong with several rows is
        said once.
        """
        jobs = {}
        problems: dict[str, list[str]] = {}
        for text, defence, answers in product(config.label_modes, config.defences, config.answers):
            mode = str(LabelMode.parse(text))
            attempt = attempt_of(defence, answers, mode)
            for name in names:
                row = self.rows[name]
                job = varied(row.job, mode, attempt, config.student_steps)
                jobs[name, mode, attempt] = job
                try:
                    row.settings.finish([*teacher_problems(job.teacher), *find_problems(job)])
                except UserError as error:
                    rows = problems.setdefault(str(error), [])
                    rows += [] if name in rows else [name]
        if problems:
            raise UserError(
                "; ".join(
                    text if len(rows) == len(names) else f"{', '.join(rows)}: {text}"
                    for text, rows in problems.items()
                )
            )
        return jobs


def varied(job: Job, mode: str, attempt: Attempt, student_steps: int) -> Job:
    """The job of a run that answers for a defence and an attacker, in one label mode."""
    student = replace(job.config.student, steps=student_steps)
    config = replace(job.config, student=student, answers=attempt.settings)
    job = with_teacher(replace(job, config=config), label_mode=mode)
    return job if attempt.defences is None else with_teacher(job, defences=attempt.defences)


def with_teacher(job: Job, **changes: Any) -> Job:
    """The job with other common options of its teacher.

    A custom teacher's parameters that are named like them get the same values.
    """
    options = dict(job.teacher_options)
    shared = changes.keys() & options.keys()
    if shared and ":" in job.teacher.kind:
        for option in parameters_of(find_target(job.teacher.kind), {}):
            if option.name in shared:
                options[option.name] = read_value(option, changes[option.name])[0]
    return replace(job, teacher=replace(job.teacher, **changes), teacher_options=options)
