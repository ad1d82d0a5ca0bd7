"""Cells as processes of this machine, each on a GPU of its own where there are several."""

import os
import platform
import subprocess
from collections.abc import Callable

import torch

from dfme.audits.compare.engines import Task
from dfme.audits.compare.engines.pool import WorkerPool
from dfme.audits.compare.plan import Cell, ComparisonPlan
from dfme.audits.compare.processes import cores, free, start, threads_each


class Local(WorkerPool[Cell]):
    """``jobs`` processes at once, which share the cores."""

    def __init__(
        self, plan: ComparisonPlan, task: Callable[[Cell], Task], tell: Callable[[str], None]
    ) -> None:
        super().__init__(self._start, plan.jobs)
        self._task = task
        self._threads = threads_each(plan.jobs)
        beside = f"{plan.jobs} runs at once, of {self._threads} threads each"
        self.manner = f"{cores()} cores ({platform.machine()}), {beside}"

    def _start(self, cell: Cell, slot: int) -> subprocess.Popen[bytes]:
        task = self._task(cell)
        free(task.directory)
        return start(task.words, task.log, self._threads, gpu_of(slot, task.device))


def gpu_of(slot: int, device: str) -> str | None:
    """CUDA_VISIBLE_DEVICES of the run in a slot: round robin over this process's GPUs, or the machine's.

    None, to leave it as it is: for the CPU, for a device named by its number, and where there is no GPU.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    found = (
        map(str, range(torch.cuda.device_count())) if visible is None else map(str.strip, visible.split(","))
    )
    gpus = [*filter(None, found)] if device in ("auto", "cuda") else []
    return gpus[slot % len(gpus)] if gpus else None
