"""What must hold for a job before anything heavy is loaded or asked; every problem found, not only the first.

No torch here.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from pathlib import Path
from typing import Any

from dfme.config.messages import did_you_mean, listed
from dfme.config.options import leaves
from dfme.config.ranges import Problem, out_of_range
from dfme.config.settings import EvaluationConfig, ExtractConfig, Job, ScheduleConfig, TeacherConfig
from dfme.config.teacher_files import BUILT_IN_FILES
from dfme.errors import UserError
from dfme.run.directory import holds_something
from dfme.run.method_checks import method_problems
from dfme.spec import ImageSpec, LabelMode

DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")
_SUBJECT = re.compile(r"^(arch|data set|label mode|image \w+): ")
_UNITS = {"": 1, "k": 1_000, "m": 1_000_000}


def parse_count(value: int | str) -> int:
    """A number of images: 300000, 300_000, 300k, 2M, 1e6, 1.5M.

    Raises:
        ValueError: if it is no whole number in one of these forms.
    """
    text = str(value).strip().replace("_", "")
    unit = text[-1:].lower() if text[-1:].lower() in ("k", "m") else ""
    try:
        count = Decimal(text[: len(text) - len(unit)]) * _UNITS[unit]
        if count.is_finite() and abs(count) < 2**63 and count == count.to_integral_value():
            return int(count)
    except InvalidOperation:
        pass
    raise ValueError(f"expected a number of images such as 300000, 300k or 2M, got {value!r}")


def check(job: Job) -> None:
    """Raise one UserError that names everything wrong with the job."""
    problems = find_problems(job)
    if problems:
        raise UserError("; ".join(f"{problem.key}: {problem.text}" for problem in problems))


def find_problems(job: Job) -> list[Problem]:
    """Everything wrong with the job that can be seen without loading torch, the teacher or the data."""
    config = job.config
    return [
        *out_of_range(leaves(config) | leaves(job.teacher, "teacher.") | leaves(job.method_config, "method.")),
        *method_problems(job),
        *device_problems(config.device),
        *schedule_problems(config.schedule),
        *net_problems("student.arch", config.student.arch),
        *evaluation_problems(config.evaluation),
        *teacher_problems(job.teacher, job.teacher_options),
        *_run_directory_problems(config),
    ]


def device_problems(device: str) -> Iterator[Problem]:
    """A device in no known form; whether it is there, only torch knows."""
    if not DEVICE.fullmatch(device):
        yield Problem("device", f"expected auto, cpu, cuda or cuda:N, got {device!r}")


def evaluation_problems(config: EvaluationConfig) -> Iterator[Problem]:
    """An unknown or missing evaluation set, or a normalisation that is not one."""
    if config.dataset != "none":
        yield from dataset_problems("evaluation.dataset", config.dataset, config.root, config.download)
    yield from _normalisation_problems("evaluation.", config.mean, config.std, None)
    if (config.mean is None) != (config.std is None):
        yield Problem("evaluation.std" if config.std is None else "evaluation.mean", "expected mean and std together")


def teacher_problems(config: TeacherConfig, options: Mapping[str, Any]) -> Iterator[Problem]:
    """A teacher's description that contradicts itself, or whose files are not there."""
    label_mode = config.label_mode
    if label_mode is not None:
        yield from _caught("teacher.label_mode", lambda: LabelMode.parse(label_mode))
    shape, bounds, levels = config.shape or (1, 1, 1), config.bounds or (0.0, 1.0), config.levels
    yield from _caught("teacher.shape", lambda: ImageSpec(shape))
    yield from _caught("teacher.bounds", lambda: ImageSpec((1, 1, 1), bounds))
    yield from _caught("teacher.levels", lambda: ImageSpec((1, 1, 1), levels=levels))
    yield from _normalisation_problems("teacher.", config.mean, config.std, config.shape)
    if ":" not in config.kind:
        yield from out_of_range({f"teacher.{name}": value for name, value in options.items()})
    place = BUILT_IN_FILES.get(config.kind)
    if place is not None:
        yield from file_problems(f"teacher.{place.option}", options.get(place.option), place.remedy, place.folder)
        yield from net_problems("teacher.arch", options.get("arch"))
    if config.kind == "pt2" and not options.get("trust"):
        text = "expected true, since loading a .pt2 file runs code that is in it; say so where you trust its maker"
        yield Problem("teacher.trust", text)


def _normalisation_problems(
    prefix: str, mean: Sequence[float] | None, std: Sequence[float] | None, shape: Sequence[int] | None
) -> Iterator[Problem]:
    if std is not None and not all(0 < value < math.inf for value in std):
        yield Problem(prefix + "std", f"expected positive numbers, got {listed(std)}")
    if mean is not None and not all(map(math.isfinite, mean)):
        yield Problem(prefix + "mean", f"expected finite numbers, got {listed(mean)}")
    for name, values in (("mean", mean), ("std", std)):
        if values is not None and shape is not None and len(values) not in (1, shape[0]):
            yield Problem(prefix + name, f"expected {shape[0]} numbers, one per channel, got {listed(values)}")
    if shape is None and mean is not None and std is not None and len(mean) != len(std):
        yield Problem(prefix + "std", f"expected as many numbers as mean has ({len(mean)}), got {listed(std)}")


def schedule_problems(config: ScheduleConfig) -> Iterator[Problem]:
    """Milestones that are no increasing shares."""
    shares = (0.0, *config.milestones, 1.0)
    if not all(left < right for left, right in pairwise(shares)):
        text = f"expected increasing shares of the budget between 0 and 1, got {listed(config.milestones)}"
        yield Problem("schedule.milestones", text)


def dataset_problems(key: str, dataset: str, root: str, download: bool) -> Iterator[Problem]:
    """A data set that is not known, or whose files are neither there nor to be downloaded."""
    from dfme.data import check_dataset

    flag = f"--{key.partition('.')[0]}.download true"
    yield from _caught(key, lambda: check_dataset(dataset, root, download=download, download_flag=flag))


def net_problems(key: str, arch: str | None) -> Iterator[Problem]:
    """An unknown architecture; none and auto are left to the builder."""
    from dfme.nets import check_net

    if arch is not None and arch != "auto":
        yield from _caught(key, lambda: check_net(arch))


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
    if config.out is not None and os.path.exists(path) and not (path.is_dir() and not holds_something(path)):
        yield Problem("out", f"{config.out!r} exists; give another --out, or --resume to go on with the run in it")
        return
    parent = next(folder for folder in (path, *path.absolute().parents) if os.path.exists(folder))
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        yield Problem("out", f"expected a place that can be written, but {str(parent)!r} cannot")


def _caught(key: str, action: Callable[[], object]) -> Iterator[Problem]:
    """What ``action`` says is wrong, less the name that it begins with: the key stands there already."""
    try:
        action()
    except UserError as error:
        yield Problem(key, _SUBJECT.sub("", str(error)))
