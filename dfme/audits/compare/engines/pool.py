"""Cells as processes, of this machine or of any node that an engine ships them to: how they start
and end, and the loop of engines that wait for them.
"""

import contextlib
import ctypes
import os
import platform
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

import torch

from dfme.audits.compare.engines import LOST, STOPPED, Task
from dfme.audits.compare.plan import Cell, ComparisonPlan
from dfme.errors import UserError
from dfme.files import disk_error, remove, write_text
from dfme.run.directory import DirectoryLock
from dfme.run.job import PROJECT

GRACE_SECONDS = 20.0  # how long a run of a killed comparison may take to end its step

PR_SET_PDEATHSIG = 1  # of prctl(2): which signal a process gets when the one that started it ends


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_each(jobs: int, among: int | None = None) -> int:
    """Threads per process, so that all together fill the cores; the user's own setting wins."""
    threads = os.environ.get("OMP_NUM_THREADS", "")
    return int(threads) if threads.isdecimal() else max(1, (among or cores()) // jobs)


def surroundings(threads: int) -> dict[str, str]:
    """The variables with which a process of ours finds dfme and takes so many threads."""
    path = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": path, "OMP_NUM_THREADS": str(threads)}


def open_log(log: Path) -> IO[bytes]:
    """A process's log, to be written at its end. RunError where the disk refuses."""
    try:
        if log.is_symlink():  # it would be written to what it leads to
            log.unlink()
        return log.open("ab")
    except OSError as error:
        raise disk_error("write", log, error) from error


def start(
    words: Sequence[str], log: Path, threads: int, gpu: str | None = None
) -> subprocess.Popen[bytes]:
    """Start ``python -m dfme words``, its output appended to ``log``, on this GPU alone if one is
    named.

    In a session of its own: Ctrl-C reaches it only from us, once. On Linux it stops, too, if we are
    killed.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    visible = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
    environment = {**os.environ, **surroundings(threads), **visible}
    environment.pop("WANDB_NAME", None)  # each cell has a name of its own
    with open_log(log) as file:
        return subprocess.Popen(  # noqa: S603 (our own interpreter and program)
            [sys.executable, "-m", "dfme", *words],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
            preexec_fn=None if prctl is None else partial(prctl, PR_SET_PDEATHSIG, signal.SIGINT),
        )


def free(directory: Path, seconds: float = GRACE_SECONDS) -> str:
    """Wait until no process works in a run's directory; what is to be said of a lock whose host is
    gone.
    """
    deadline = time.monotonic() + seconds
    while directory.is_dir() and time.monotonic() < deadline:
        try:
            lock = DirectoryLock(directory)
            lock.close()
            return lock.note
        except UserError:  # in use
            time.sleep(seconds / 400)
    return ""


def last_line(log: Path) -> str:
    """The last thing a process said: of one of ours that failed, the reason."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 8_192))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("dfme: ") if lines else ""


BEATS_SECONDS = 150.0
"""How long a worker waits for a directory that another node seems to hold: longer than a lost one's
lock.
"""


def run_cell(entry: Callable[[Sequence[str]], int], words: list[str], log: str) -> int:
    """``dfme words`` in this process, by the ``entry`` of the command line, all that it says at the
    end of ``log``; its exit code.

    Not in a child of it: with a worker that is killed its run must end too, so that the system
    frees its lock. SystemExit passes: it is how submitit gives a job back to the queue.
    """
    os.environ.pop("WANDB_NAME", None)  # each cell has a name of its own
    # Ray's workers have blocked them
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
    with open_log(Path(log)) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    # as long as the process
    sys.stdout = sys.stderr = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    try:
        note = free(Path(words[words.index("--out") + 1]), BEATS_SECONDS)
        if note:
            print(note)
        return entry(words)
    except KeyboardInterrupt:  # before main could hear it
        return STOPPED
    except Exception:  # a bug, whose traceback belongs to the log
        traceback.print_exc()
        return 1


def outcome_file(log: str | Path) -> Path:
    """Where a shipped cell's exit code is left.

    The comparison reads that, ``summary.json`` and the log, and never an object of the engine's:
    unpickling one could run what another user put there.
    """
    return Path(log).with_suffix(".exit")


class Call:
    """A cell as a worker calls it; ``checkpoint`` and ``number`` (of its signal) are submitit's."""

    def __init__(self, task: Task, number: int = 0) -> None:
        self.entry = task.entry
        self.words = [*task.words]
        self.log = str(task.log)
        self.folder = str(Path.cwd())
        self.number = number
        remove(outcome_file(task.log))

    def __call__(self) -> None:
        """Run it, and leave its exit code; asked to make room, end the step first, and be queued
        again.
        """
        os.chdir(self.folder)
        sys.path.insert(0, self.folder)
        requeue: Any = signal.getsignal(self.number) if self.number else None
        asked: list[Any] = []

        def make_room(*event: Any) -> None:
            asked.append(event)
            os.kill(os.getpid(), signal.SIGINT)

        if self.number:
            signal.signal(self.number, make_room)
        code = run_cell(self.entry, self.words, self.log)
        if asked and code == STOPPED:
            requeue(*asked[0])
        write_text(outcome_file(self.log), f"{code}\n")

    def checkpoint(self) -> Any:
        """Itself: the run knows where it was."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class Shipped:
    """A ``Worker`` elsewhere: ``over`` tells whether it has ended, ``cancel`` stops it, at once if
    True.
    """

    def __init__(
        self, log: Path, over: Callable[[bool], bool], cancel: Callable[[bool], object]
    ) -> None:
        self._log = log
        self._over = over
        self._cancel = cancel
        self._asked = False

    def poll(self) -> int | None:
        """Like ``Worker.poll``; a cell stopped by anything but the comparison was preempted, so
        LOST.
        """
        over = self._over(self._asked)
        try:
            code = int(outcome_file(self._log).read_bytes()[:9])
        except (OSError, ValueError):
            code = STOPPED
            if not over:
                return None
        return LOST if code == STOPPED and not self._asked else code

    def send_signal(self, sig: int, /) -> None:
        self._asked = True
        self._cancel(False)

    def kill(self) -> None:
        self._cancel(True)


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
