"""What torchrun tells the processes that it starts, and what cannot be shared among them. No torch here."""

from __future__ import annotations

import os
from collections.abc import Iterator

from dfme.config.messages import Problem
from dfme.config.settings import Job
from dfme.errors import UserError


def world() -> tuple[int, int]:
    """The number of this process, and how many there are; (0, 1) of one that torchrun did not start."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return 0, 1
    try:
        number, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except ValueError:
        number, count = -1, 0
    if not 0 <= number < count:
        raise UserError(
            f"RANK and WORLD_SIZE: expected two numbers as torchrun gives them, got {os.environ['RANK']!r} and "
            f"{os.environ['WORLD_SIZE']!r}; start the run with torchrun, or without these variables"
        )
    return number, count


def rank_problems(job: Job) -> Iterator[Problem]:
    """What a run of several processes cannot do."""
    if world()[1] == 1:
        return
    alone = "or start the run without torchrun"
    if job.config.compile:
        yield Problem("compile", f"sums over several processes cannot be compiled; leave it out, {alone}")
    if job.config.graphs:
        yield Problem("graphs", f"sums over several processes are not captured; leave it out, {alone}")
    if job.config.student.replay_store == "disk":
        yield Problem("student.replay_store", f"each process keeps the whole replay; say memory, {alone}")
    if job.config.device.partition(":")[2]:
        yield Problem("device", f"torchrun gives each process its own GPU; say cuda, cpu or auto, {alone}")
