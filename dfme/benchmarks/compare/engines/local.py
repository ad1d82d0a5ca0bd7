"""Cells as processes of this machine, each on a GPU of its own where there are several."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Callable

import torch

from dfme.benchmarks.compare.engines import Task
from dfme.benchmarks.compare.engines.pool import WorkerPool
from dfme.benchmarks.compare.plan import Cell, ComparisonPlan
from dfme.benchmarks.compare.processes import cores, free, start, threads_each


class Local(WorkerPool[Cell]):
    """``jobs`` processes at once, which share the cores."""

    def __init__(self, plan: ComparisonPlan, task: Callable[[Cell], Task], tell: Callable[[str], None]) -> None:
        super().__init__(self._start, plan.jobs)
        self._task, self._threads = task, threads_each(plan.jobs)
        beside = f"{plan.jobs} runs at once, of {self._threads} threads each"
        self.manner = f"{cores()} cores ({platform.machine()}), {beside}"

    def _start(self, cell: Cell, slot: int) -> subprocess.Popen[bytes]:
        task = self._task(cell)
        free(task.directory)
        return start(task.words, task.log, self._threads, gpu_of(slot, task.device))


def gpu_of(slot: int, device: str) -> str | None:
    """What CUDA_VISIBLE_DEVICES is for the run in a slot: round robin over those of this process, or of the machine.

    None, to leave it as it is: for the CPU, for a device named by its number, and where there is no GPU.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    found = map(str, range(torch.cuda.device_count())) if visible is None else map(str.strip, visible.split(","))
    gpus = [*filter(None, found)] if device in ("auto", "cuda") else []
    return gpus[slot % len(gpus)] if gpus else None
