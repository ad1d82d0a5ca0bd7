"""The loop of engines that wait for their cells; and cells as processes of this machine."""

import contextlib
import os
import platform
import signal
import subprocess
import time
from collections.abc import Callable, Iterable

import torch

from dfme.audits.compare.engines import Task
from dfme.audits.compare.plan import Cell, ComparisonPlan
from dfme.audits.compare.processes import GRACE_SECONDS, Shipped, cores, free, start, threads_each

KILL_SECONDS = 5.0
"""For a run that was asked twice to stop; then it is killed. What it had paid for is in its
journal.
"""

Worker = subprocess.Popen[bytes] | Shipped  # a cell that was begun


class WorkerPool:
    """At most ``jobs`` workers at once, one per cell; ``manner``: where they run and how, in a few
    words.
    """

    poll_seconds = 0.05

    def __init__(
        self, plan: ComparisonPlan, task: Callable[[Cell], Task], tell: Callable[[str], None]
    ) -> None:
        self._plan = plan
        self._task = task
        self._tell = tell
        self._slots: dict[int, tuple[Cell, Worker]] = {}
        self.manner = self._prepare()

    def _prepare(self) -> str:
        """Read the engine's options; the manner. UserError for options that cannot be."""
        return ""

    def _begin(self, cell: Cell, slot: int) -> Worker:
        """Start a cell's worker in the slot of this number."""
        raise NotImplementedError

    @property
    def running(self) -> list[Cell]:
        return [cell for cell, _ in self._slots.values()]

    def run(
        self,
        cells: Iterable[Cell],
        ended: Callable[[Cell, int], bool],
        stopped: Callable[[], bool],
        watch: Callable[[], None] = lambda: None,
    ) -> None:
        """Run all cells, or, once ``stopped``, those that run to the end of their step in progress.

        ``ended`` hears each exit code as it comes, and says whether that cell is to be run once
        more; ``watch`` is called all the while. An interruption on top of that stops them at once.
        """
        waiting = list(cells)
        signalled = False
        with self.opened(), contextlib.ExitStack() as undo:
            undo.callback(self._end)
            while self._slots or (waiting and not stopped()):
                while waiting and len(self._slots) < self._plan.jobs and not stopped():
                    slot = min(set(range(self._plan.jobs)) - self._slots.keys())
                    cell = waiting.pop(0)
                    self._slots[slot] = cell, self._begin(cell, slot)
                if stopped() and not signalled:
                    self._signal()
                    signalled = True
                for slot, (cell, worker) in [*self._slots.items()]:
                    code = worker.poll()
                    if code is not None:
                        del self._slots[slot]
                        if ended(cell, code):
                            waiting.insert(0, cell)
                watch()
                time.sleep(self.poll_seconds)

    def opened(self) -> contextlib.AbstractContextManager[None]:
        """Resources that workers need, for as long as they run."""
        return contextlib.nullcontext()

    def _signal(self) -> None:
        for _, worker in self._slots.values():
            with contextlib.suppress(ProcessLookupError):
                worker.send_signal(signal.SIGINT)

    def _end(self) -> None:
        """Leave none behind, whatever happens."""
        self._signal()
        deadline = time.monotonic() + GRACE_SECONDS
        for _, worker in self._slots.values():
            if not _ends_by(deadline, worker):
                worker.kill()
                _ends_by(time.monotonic() + KILL_SECONDS, worker)
        self._slots = {}


def _ends_by(deadline: float, worker: Worker) -> bool:
    """Wait for a worker's end, but no longer than that."""
    while (running := worker.poll() is None) and time.monotonic() < deadline:
        time.sleep(WorkerPool.poll_seconds)
    return not running


class Local(WorkerPool):
    """``jobs`` processes at once, which share the cores, each on a GPU of its own where there are
    several.
    """

    def _prepare(self) -> str:
        self._threads = threads_each(self._plan.jobs)
        return (
            f"{cores()} cores ({platform.machine()}), {self._plan.jobs} runs at once, of "
            f"{self._threads} threads each"
        )

    def _begin(self, cell: Cell, slot: int) -> Worker:
        task = self._task(cell)
        free(task.directory)
        return start(task.words, task.log, self._threads, gpu_of(slot, task.device))


def gpu_of(slot: int, device: str) -> str | None:
    """CUDA_VISIBLE_DEVICES of the run in a slot: round robin over this process's GPUs, or the
    machine's.

    None, to leave it as it is: for the CPU, for a device named by its number, and where there is no
    GPU.
    """
    if device not in ("auto", "cuda"):
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        visible = ",".join(map(str, range(torch.cuda.device_count())))
    gpus = [name for part in visible.split(",") if (name := part.strip())]
    return gpus[slot % len(gpus)] if gpus else None
