"""The owner's side, as the command line reaches it: the one file of cli/ that imports ``teachers``. No torch here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dfme import teachers
from dfme.config.messages import Problem
from dfme.config.settings import Job, TeacherConfig
from dfme.run.checks import file_problems, net_problems
from dfme.spec import Teacher
from dfme.teachers import KINDS
from dfme.teachers.options import ServeConfig, TrainTeacherConfig, check_training
from dfme.teachers.remote.options import ServiceOptions

__all__ = ["KINDS", "ServeConfig", "TrainTeacherConfig", "check_teacher", "check_training", "kind_problems"]


def check_teacher(config: TeacherConfig, options: Mapping[str, Any]) -> None:
    """Check a teacher before anything heavy is loaded, and say, as a command's first line, which secrets go where."""
    if said := teachers.check_teacher(config, options):
        print(said, file=sys.stderr, flush=True)


def kind_problems(kind: str, options: Mapping[str, Any]) -> Iterator[Problem]:
    """What a built-in kind reads from this machine and is not there."""
    file = KINDS[kind].file if kind in KINDS else None
    if file is not None:
        yield from file_problems(f"teacher.{file.option}", options.get(file.option), file.remedy, file.folder)
    if kind in KINDS:
        yield from net_problems("teacher.arch", options.get("arch"))


def write_adapter(sample: str, path: str) -> str:
    """Write a first adapter of kind json from one sample answer; a line that says what was found."""
    from dfme.teachers.remote.json_api.sample import write_adapter as write

    return write(sample, path)


def price_problems(kind: str, key: str) -> Iterator[Problem]:
    """What is said where nobody named a budget, option ``key``, and every image may cost money."""
    if kind in KINDS and issubclass(KINDS[kind].options, ServiceOptions):
        text = f"expected how many images the service may be asked for, such as --{key} 10k; for a service there is no "
        yield Problem(key, f"{text}default, since each may cost money (--teacher.price-per-1000 PRICE shows how much)")


def make(config: TeacherConfig, options: Mapping[str, Any], device: str) -> Teacher:
    """The teacher, on a device as the flag names it."""
    from dfme.compute import choose_device
    from dfme.teachers.build import make_teacher

    return make_teacher(config, options, choose_device(device))


def train(config: TrainTeacherConfig, show: Callable[[dict[str, float]], None]) -> Any:
    """What comes of training a teacher: its path, its card, its seconds."""
    from dfme.teachers.training.train import train_teacher

    return train_teacher(config, show)


def serve(config: ServeConfig, teacher: TeacherConfig, options: Mapping[str, Any], tell: Callable[[str], None]) -> str:
    """Serve until interrupted; a last line."""
    from dfme.teachers.serve.server import serve as serve_teacher

    return serve_teacher(make(teacher, options, config.device), config, tell=tell)


def open_white_box(job: Job) -> Any:
    """The job's teacher with its gradients."""
    from dfme.compute import choose_device
    from dfme.teachers.local.white_box import open_white_box as open_box

    return open_box(job.teacher, job.teacher_options, choose_device(job.config.device))
