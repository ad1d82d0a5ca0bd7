"""Cells as processes of this machine, each on a GPU of its own where there are several."""

from __future__ import annotations

import os
import platform
import subprocess
from typing import TypeVar

from dfme.benchmarks.compare.engines import Terms, require_options
from dfme.benchmarks.compare.engines.pool import WorkerPool
from dfme.benchmarks.compare.processes import cores, free, start, threads_each

T = TypeVar("T")


class Local(WorkerPool[T]):
    """``jobs`` processes at once, which share the cores."""

    def __init__(self, terms: Terms[T]) -> None:
        require_options("local", terms.options, ())
        super().__init__(self._start, terms.jobs)
        self._terms, self._threads = terms, threads_each(terms.jobs)
        self.manner = (
            f"{cores()} cores ({platform.machine()}), {terms.jobs} runs at once, of {self._threads} threads each"
        )

    def _start(self, cell: T, slot: int) -> subprocess.Popen[bytes]:
        task = self._terms.task(cell)
        free(task.directory)
        return start(task.words, task.log, self._threads, gpu_of(slot, task.device))


def gpu_of(slot: int, device: str) -> str | None:
    """What CUDA_VISIBLE_DEVICES is for the run in a slot: round robin over those of this process, or of the machine.

    None, to leave it as it is: for the CPU, for a device named by its number, and where there is no GPU.
    """
    if device not in ("auto", "cuda"):
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        import torch

        gpus = [str(number) for number in range(torch.cuda.device_count())]
    else:
        gpus = [name.strip() for name in visible.split(",") if name.strip()]
    return gpus[slot % len(gpus)] if gpus else None
