"""Opening the directory of a run: a new one, or that of a run to go on with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from dfme.config.settings import Job
from dfme.config.yaml_files import dump_yaml
from dfme.run.checkpoint import load_checkpoint
from dfme.run.directory import RunDirectory, require_space
from dfme.run.job import document


def open_directory(job: Job, resume: bool, space: int) -> tuple[RunDirectory, dict[str, Any]]:
    """The run's directory, locked, and the state of its checkpoint; empty without one.

    UserError where a new run would find fewer than ``space`` bytes of free disk.
    """
    out = Path(job.config.out) if job.config.out else free_name(job, job.method)
    directory = RunDirectory.open_for_resume(out) if resume else RunDirectory.create(out)
    try:
        if resume:
            return directory, load_checkpoint(directory.checkpoint) if directory.has_checkpoint else {}
        require_space(out, space)
        directory.write_config(recipe(job))
    except BaseException:
        directory.close()
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
