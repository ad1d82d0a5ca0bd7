"""What must hold between the settings of a job, before anything heavy is loaded or asked: every problem found.

What one value by itself must be stands at its field. No torch here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from dfme.config.messages import Problem, did_you_mean, listed
from dfme.config.settings import EvaluationConfig, ExtractConfig, Job, TeacherConfig
from dfme.errors import UserError
from dfme.run.directory import holds_something
from dfme.run.method_checks import caught, method_problems


def check(job: Job) -> None:
    """Raise one UserError that names everything wrong with the job."""
    problems = [*find_problems(job), *teacher_problems(job.teacher)]
    if problems:
        raise UserError("; ".join(f"{problem.key}: {problem.text}" for problem in problems))


def find_problems(job: Job) -> list[Problem]:
    """Everything wrong with the job, its teacher apart, that can be seen without loading torch or the data."""
    return [
        *method_problems(job),
        *net_problems("student.arch", job.config.student.arch),
        *evaluation_problems(job.config.evaluation),
        *_run_directory_problems(job.config),
    ]


def evaluation_problems(config: EvaluationConfig) -> Iterator[Problem]:
    """An unknown or missing evaluation set, or a normalisation that is not one."""
    if config.dataset != "none":
        yield from dataset_problems("evaluation.dataset", config.dataset, config.root, config.download)
    yield from _normalisation_problems("evaluation.", config.mean, config.std, None)
    if (config.mean is None) != (config.std is None):
        yield Problem("evaluation.std" if config.std is None else "evaluation.mean", "expected mean and std together")


def teacher_problems(config: TeacherConfig) -> Iterator[Problem]:
    """A teacher's description that contradicts itself."""
    yield from _normalisation_problems("teacher.", config.mean, config.std, config.shape)


def _normalisation_problems(
    prefix: str, mean: Sequence[float] | None, std: Sequence[float] | None, shape: Sequence[int] | None
) -> Iterator[Problem]:
    for name, values in (("mean", mean), ("std", std)):
        if values is not None and shape is not None and len(values) not in (1, shape[0]):
            yield Problem(prefix + name, f"expected {shape[0]} numbers, one per channel, got {listed(values)}")
    if shape is None and mean is not None and std is not None and len(mean) != len(std):
        yield Problem(prefix + "std", f"expected as many numbers as mean has ({len(mean)}), got {listed(std)}")


def dataset_problems(key: str, dataset: str, root: str, download: bool) -> Iterator[Problem]:
    """A data set that is not known, or whose files are neither there nor to be downloaded."""
    from dfme.data import check_dataset

    flag = f"--{key.partition('.')[0]}.download true"
    yield from caught(key, lambda: check_dataset(dataset, root, download=download, download_flag=flag))


def net_problems(key: str, arch: str | None) -> Iterator[Problem]:
    """An unknown architecture; none and auto are left to the builder."""
    from dfme.nets import check_net

    if arch is not None and arch != "auto":
        yield from caught(key, lambda: check_net(arch))


def file_problems(key: str, path: str | None, remedy: str = "", folder: bool = False) -> Iterator[Problem]:
    """A path, if one was given, that is no file, or no folder; ``remedy`` is said where it is near no other."""
    if path is None:
        return
    place, kinds = Path(os.path.expanduser(path)), ("a file", "a directory")
    if not os.path.exists(place):  # unlike pathlib's, false for a name that no file can have
        beside = [entry.name for entry in place.parent.glob("*")] if os.path.isdir(place.parent) else []
        near = did_you_mean(place.name, beside)
        yield Problem(key, f"expected {kinds[folder]}, but {path!r} does not exist{near or remedy}")
    elif not (place.is_dir() if folder else place.is_file()):
        yield Problem(key, f"expected {kinds[folder]}, but {path!r} is {kinds[not folder]}")


def fresh_directory_problems(out: str | None) -> Iterator[Problem]:
    """A directory for results, if one was named, that holds something already."""
    if out is not None and (not out or (os.path.exists(out) and not _is_empty_directory(Path(out)))):
        yield Problem("out", f"expected a new or empty directory, got {out!r}; choose another --out")


def _is_empty_directory(path: Path) -> bool:
    return path.is_dir() and not holds_something(path)


def _run_directory_problems(config: ExtractConfig) -> Iterator[Problem]:
    if config.resume:
        if config.out is None:
            yield Problem("resume", "expected --out as well: the run directory to go on with")
        elif not os.path.isfile(Path(config.out) / "config.yaml"):
            yield Problem("out", f"expected a run directory to resume, but {config.out!r} has no config.yaml")
        return
    if config.out == "":
        yield Problem("out", "expected a directory, got an empty name; leave it out for a free one under runs/")
        return
    path = Path(config.out or "runs")
    if config.out is not None and os.path.exists(path) and not _is_empty_directory(path):
        yield Problem("out", f"{config.out!r} exists; give another --out, or --resume to go on with the run in it")
        return
    parent = next(folder for folder in (path, *path.absolute().parents) if os.path.exists(folder))
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        yield Problem("out", f"expected a place that can be written, but {str(parent)!r} cannot")
