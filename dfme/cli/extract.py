"""``run.py extract``: clone a teacher by its answers alone."""

from __future__ import annotations

from collections.abc import Sequence

from dfme.cli.arguments import Arguments, CommandInputs
from dfme.cli.files import Recipe, default_recipe
from dfme.cli.teacher_side import check_teacher, price_problems
from dfme.config.settings import ExtractConfig, Job
from dfme.run.checks import find_problems
from dfme.run.job import resume_command
from dfme.run.recipes import fitted

SUMMARY = "clone a teacher by its answers alone; the command when none is named"
INPUTS = CommandInputs(ExtractConfig, teacher=True, method=True, recipe=default_recipe)


def run(words: Sequence[str]) -> int:
    """Extract, to the end of the budget or to the first interruption."""
    job = parse_extract(words)
    check_teacher(job.teacher, job.teacher_options)
    from dfme.run.build import run_job

    result = run_job(job, resume=job.config.resume)
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
    asked = Arguments(words, INPUTS, recipe)
    job = asked.job(asked.settings(ExtractConfig))
    if recipe is not None:  # a comparison's, whose cells have budgets of their own
        asked.finish(find_problems(job))
        return job
    priced = [] if asked.has_budget else price_problems(asked.kind, "budget")
    asked.finish([*priced, *find_problems(job, asked.says)])
    return fitted(job)
