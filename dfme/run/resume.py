"""A job's run directory: a new one, or the one of the run to go on with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from dfme.config.settings import Job
from dfme.config.yaml_files import dump_yaml, load_yaml
from dfme.errors import DfmeError, RunError, UserError
from dfme.run.checkpoint import load_checkpoint
from dfme.run.directory import RunDirectory
from dfme.run.job import differing_keys, document


def open_directory(job: Job, resume: bool, space: int) -> tuple[RunDirectory, dict[str, Any]]:
    """The run's directory, locked, and the state of its checkpoint; empty without one.

    UserError where a new run would find fewer than ``space`` bytes of free disk.
    """
    out = Path(job.config.out) if job.config.out else _free_name(job)
    directory = RunDirectory.open_for_resume(out) if resume else RunDirectory.create(out)
    try:
        if not resume:
            directory.require_space(space)
            directory.write_config(recipe(job))
            return directory, {}
        require_same_run(job, directory.config)
        state = load_checkpoint(directory.checkpoint) if directory.has_checkpoint else {}
    except BaseException:
        directory.close()
        raise
    return directory, state


@contextmanager
def fitting(checkpoint: Path) -> Iterator[None]:
    """RunError for whatever goes wrong with the state of a checkpoint that is whole, but not of this run.

    What a state must be is known by each part that takes its own up, so no error is excepted.
    """
    try:
        yield
    except DfmeError:
        raise
    except Exception as error:
        problem = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise RunError(
            f"{checkpoint}: is whole, but does not fit this run ({problem}); restore the one that belongs to it and "
            "is of this version, or start a new run in another --out"
        ) from error


def recipe(job: Job) -> str:
    """config.yaml: the job with every default, fit for --config; resuming is no part of a recipe."""
    return dump_yaml(document(replace(job, config=replace(job.config, resume=False))))


def require_same_run(job: Job, config: Path) -> None:
    """UserError, with the keys, where the run on record was started with values that decide another result."""
    keys = differing_keys(load_yaml(config), job)
    if keys:
        raise UserError(
            f"--resume: this run was started with other values of {', '.join(keys)} (see {config}); "
            "leave those flags out, or start a new run in another --out"
        )


def _free_name(job: Job) -> Path:
    """A directory under runs/ that does not exist yet, named after what is run."""
    dataset = job.config.evaluation.dataset
    subject = "run" if dataset == "none" else Path(dataset).name
    return RunDirectory.free_name(Path("runs") / f"{subject}-{job.method}-seed{job.config.seed}")
