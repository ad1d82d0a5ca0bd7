"""What torchrun tells the processes that it starts, and what cannot be shared among them. No torch here."""

from __future__ import annotations

import os
from collections.abc import Iterator

from dfme.config.messages import Problem
from dfme.config.settings import Job


def world() -> tuple[int, int]:
    """The number of this process, and how many there are; (0, 1) of one that torchrun did not start."""
    number, count = (int(os.environ.get(name) or usual) for name, usual in (("RANK", "0"), ("WORLD_SIZE", "1")))
    return (number, count) if count > 1 else (0, 1)


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
