"""``run.py extract``: clone a teacher by its answers alone."""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from pydantic.dataclasses import dataclass

from dfme.cli.arguments import Arguments, CommandInputs, arguments_of
from dfme.cli.flags import default_recipe
from dfme.config.settings import ExtractConfig, Job
from dfme.config.values import CONFIG, Basic, narrowed
from dfme.errors import Problem
from dfme.owner_side import check_teacher, price_problems, recording_problems
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
    arguments = arguments_of(words, INPUTS)
    job = _job(arguments)
    check_teacher(job.teacher, job.teacher_options)
    if arguments.config.dry_run:
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


def settled(arguments: Arguments) -> ExtractConfig:
    """Settings of a run, with ``resume`` resolved: auto means True where there is a run."""
    config = narrowed(ExtractConfig, arguments.config)
    return (
        replace(config, resume=is_run(config.out))
        if config.resume == "auto" and config.out
        else config
    )


def checked(
    arguments: Arguments,
    config: ExtractConfig,
    own: Callable[[Job], Iterable[Problem]] = lambda job: (),
) -> Job:
    """The job of these settings, fitted to its budget. UserError with all problems, ``own`` too."""
    settings = arguments.settings
    given = frozenset(filter(settings.says, arguments.options))
    job = replace(fitted(arguments.job(config), settings.says), given=given)
    priced = [] if arguments.has_budget else price_problems(arguments.kind, "budget")
    here = recording_problems(arguments.kind, config.record_queries)
    arguments.finish([*priced, *here, *find_problems(job, settings.says), *own(job)])
    return job


def _job(arguments: Arguments) -> Job:
    config = settled(arguments)
    if config.resume and arguments.config.dry_run:
        arguments.report(
            [Problem("dry_run", "expected no --resume with it, which goes on with what is planned")]
        )
    return checked(arguments, config)
