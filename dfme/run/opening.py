"""Opening the directory of a run: a new one, or that of a run to go on with or that is finished."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from dfme.config.settings import Job
from dfme.config.yaml_files import dump_yaml
from dfme.errors import UserError
from dfme.nets import find_net
from dfme.report.console import Console
from dfme.report.summary_file import read_summary
from dfme.run.checkpoint import load_checkpoint
from dfme.run.directory import RunDirectory, require_space
from dfme.run.job import document
from dfme.run.resuming import PLANNED
from dfme.run.run import Result
from dfme.run.student_file import load_student


def open_directory(job: Job, resume: bool, space: int) -> tuple[RunDirectory, dict[str, Any]]:
    """The run's directory, locked, and the state of its checkpoint; empty without one.

    UserError where a new run would find fewer than ``space`` bytes of free disk.
    """
    out = Path(job.config.out) if job.config.out else free_name(job, job.method)
    directory = RunDirectory.open_for_resume(out) if resume else RunDirectory.create(out)
    directory.is_new_run = not resume
    try:
        if resume:
            return directory, load_checkpoint(directory.checkpoint) if directory.has_checkpoint else {}
        require_space(out, space)
        directory.write_config(recipe(job))
    except BaseException as error:
        directory.__exit__(type(error))
        raise
    return directory, {}


def free_name(job: Job, what: str) -> Path:
    """A directory under runs/ that does not exist yet, named after the data, what is done with it, and the seed."""
    dataset = job.config.evaluation.dataset
    subject = "run" if dataset == "none" else Path(dataset).name
    return RunDirectory.free_name(Path("runs") / f"{subject}-{what}-seed{job.config.seed}")


def recipe(job: Job) -> str:
    """config.yaml: the job with every default, fit for --config; resuming is no part of a recipe."""
    return dump_yaml(document(replace(job, config=replace(job.config, resume=False))))


def finished_result(job: Job) -> Result | None:
    """The result of a run that came to the end of the job's budget before; none if there is something to do.

    Where summary or student cannot be read there is: to write them again, from the checkpoint.
    """
    path = Path(job.config.out or "")
    try:
        summary = read_summary(path / "summary.json")
        if summary is None:
            return None
        if summary.get("ended_by") == "until_agreement":
            goes_on = (job.config.until_agreement or 0.0) > (summary.get("held_back") or {}).get("goal", 1)
        else:
            goes_on = int(job.config.budget) > summary["budget"]
        if goes_on:
            return None
        student = load_student(path, job.nets.get("student.arch") or find_net(job.config.student.arch))
    except UserError:
        return None
    return Result(student, summary, path)


def tell_finished(job: Job, result: Result, shown: Console) -> None:
    """Say of a run that came to its end before how to go on, and show its table again."""
    spent, reached = result.summary["spent"], result.summary.get("ended_by") == "until_agreement"
    how, flag = ("at its goal, after", "--until-agreement") if reached else ("with all of its", "--budget")
    shown.note(
        f"{result.run_dir}: finished before {how} {spent:,} queries, nothing was asked now; to go on, "
        + (PLANNED if job.config.student.is_planned and not reached else f"give a larger {flag}")
    )
    shown.table(result.summary, result.run_dir)
