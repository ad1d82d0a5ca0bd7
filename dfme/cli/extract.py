"""``run.py extract``: clone a teacher by its answers alone."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from pydantic.dataclasses import dataclass

from dfme.cli.arguments import Arguments, CommandInputs
from dfme.cli.files import Recipe, default_recipe
from dfme.cli.teacher_side import check_teacher, price_problems
from dfme.config.fields import CONFIG, Basic
from dfme.config.messages import Problem
from dfme.config.settings import ExtractConfig, Job
from dfme.run.checks import find_problems
from dfme.run.directory import is_run
from dfme.run.job import document, resume_command
from dfme.run.recipes import fitted

SUMMARY = "clone a teacher by its answers alone; the command when none is named"


@dataclass(frozen=True, config=CONFIG)
class ExtractOptions(ExtractConfig):
    """The settings of a run, and what to do with them."""

    dry_run: Basic[bool] = False
    """say what the run would ask, cost and take, ask nothing and write nothing"""


INPUTS = CommandInputs(ExtractOptions, teacher=True, method=True, recipe=default_recipe)


def run(words: Sequence[str]) -> int:
    """Extract, to the end of the budget or to the first interruption."""
    asked = Arguments(words, INPUTS)
    job, only_planned = _job(asked), asked.settings(ExtractOptions).dry_run
    check_teacher(job.teacher, job.teacher_options)
    if only_planned:
        from dfme.run.plan import plan

        print(plan(job))
        return 0
    if waited_for := sys.stderr.isatty():  # what takes seconds to load comes after the first word
        from dfme.report.console import header

        print(header(document(job)), file=sys.stderr, flush=True)
    # Only what we import ourselves is frozen: it is never freed, which an extension may report at the exit.
    alone = "torch" not in sys.modules and ":" not in job.teacher.kind
    if alone:
        gc.disable()  # what is loaded stays: looking for what can go, over and over, takes a tenth of the time
    from dfme.run.build import run_job

    if alone:
        gc.enable()
        gc.freeze()
    result = run_job(job, resume=bool(job.config.resume), announced=waited_for, own_process=True)
    if result.finished:
        return 0
    print(
        f"stopped and kept after {result.summary['spent']:,} queries; go on with:\n"
        f"  {resume_command(result.run_dir, job)}"
    )
    return 130


def parse_extract(words: Sequence[str], recipe: Recipe | None = None) -> Job:
    """The job that the words after ``extract`` describe, checked as far as that goes without torch.

    ``recipe`` stands in the place of a file's. UserError is one line that names everything wrong.
    """
    return _job(Arguments(words, INPUTS, recipe), of_a_cell=recipe is not None)


def settled(asked: Arguments) -> ExtractConfig:
    """The settings of a run. Whether it goes on with one is settled: with ``resume`` of auto, where there is one."""
    config = asked.settings(ExtractConfig)
    return replace(config, resume=is_run(config.out)) if config.resume == "auto" and config.out else config


def checked(asked: Arguments, config: ExtractConfig, own: Callable[[Job], Iterable[Problem]]) -> Job:
    """The job of these settings, fitted to its budget. UserError with all that is wrong, the command's ``own`` too."""
    job = fitted(asked.job(config), asked.says)
    priced = [] if asked.has_budget else price_problems(asked.kind, "budget")
    asked.finish([*priced, *find_problems(job, asked.says), *own(job)])
    return job


def _job(asked: Arguments, of_a_cell: bool = False) -> Job:
    config = settled(asked)
    if of_a_cell:  # a comparison's, which have budgets of their own
        job = asked.job(config)
        asked.finish(find_problems(job))
        return job
    planned = bool(config.resume) and asked.settings(ExtractOptions).dry_run
    resumed = [Problem("dry_run", "expected no --resume with it, which goes on with what is planned")] * planned
    return checked(asked, config, lambda job: resumed)
