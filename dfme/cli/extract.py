"""``run.py extract``: clone a teacher by its answers alone."""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from pydantic.dataclasses import dataclass

from dfme.cli.arguments import Arguments, CommandInputs, arguments_of
from dfme.cli.flags import Flag, Recipe, default_recipe
from dfme.cli.teacher_side import check_teacher, price_problems
from dfme.config.fields import CONFIG, Basic
from dfme.config.settings import ExtractConfig, Job
from dfme.config.values import narrowed
from dfme.errors import Problem
from dfme.run.checks import find_problems
from dfme.run.directory import is_run
from dfme.run.job import document, resume_command
from dfme.run.recipes import fitted, with_larger

SUMMARY = "clone a teacher by its answers alone; the command when none is named"


@dataclass(frozen=True, config=CONFIG)
class ExtractOptions(ExtractConfig):
    """The settings of a run, and what to do with them."""

    dry_run: Basic[bool] = False
    """say what the run would ask, cost and take, ask nothing and write nothing"""


INPUTS = CommandInputs(ExtractOptions, teacher=True, method=True, recipe=default_recipe)


def run(words: Sequence[str]) -> int:
    """Extract, to the end of the budget or to the first interruption."""
    asked = arguments_of(words, INPUTS)
    job = _job(asked)
    check_teacher(job.teacher, job.teacher_options)
    if asked.config.dry_run:
        from dfme.run.plan import plan

        print(plan(job))
        return 0
    if waited_for := sys.stderr.isatty():  # what takes seconds to load comes after the first word
        from dfme.report.console import header

        print(header(document(job)), file=sys.stderr, flush=True)
    from dfme.run.build import run_job

    result = run_job(job, resume=bool(job.config.resume), announced=waited_for, own_process=True)
    if result.finished:
        return 0
    print(f"stopped and kept after {result.summary['spent']:,} queries; go on with:")
    print(f"  {resume_command(result.run_dir, job)}")
    return 130


def job_of_cell(flags: Sequence[Flag], recipe: Recipe) -> Job:
    """The job of one cell of a comparison: its complete recipe, and the flags above it."""
    asked = Arguments(flags, INPUTS, recipe)
    job = asked.job(settled(asked))
    asked.finish(find_problems(job))
    return job


def settled(asked: Arguments) -> ExtractConfig:
    """Settings of a run, with ``resume`` resolved: auto means True where there is a run."""
    config = narrowed(ExtractConfig, asked.config)
    return (
        replace(config, resume=is_run(config.out))
        if config.resume == "auto" and config.out
        else config
    )


def checked(
    asked: Arguments, config: ExtractConfig, own: Callable[[Job], Iterable[Problem]]
) -> Job:
    """The job of these settings, fitted to its budget. UserError with all problems, ``own`` too."""
    job = with_larger(fitted(asked.job(config), asked.says), asked.recipe_below, asked.gives)
    priced = [] if asked.has_budget else price_problems(asked.kind, "budget")
    asked.finish([*priced, *find_problems(job, asked.says), *own(job)])
    return job


def _job(asked: Arguments) -> Job:
    config = settled(asked)
    problems = list[Problem]()
    if config.resume and asked.config.dry_run:
        text = "expected no --resume with it, which goes on with what is planned"
        problems.append(Problem("dry_run", text))
    return checked(asked, config, lambda job: problems)
