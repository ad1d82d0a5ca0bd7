"""Runs as processes of their own, a few side by side: started, waited for, and stopped politely."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from dfme.errors import UserError
from dfme.files import disk_error
from dfme.run.job import PROJECT
from dfme.run.lock import DirectoryLock

T = TypeVar("T")

POLL_SECONDS = 0.05
GRACE_SECONDS = 20.0
"""For a run that was asked twice to stop; then it is killed. What it had paid for is in its journal."""

LOG_END = 8_192

PR_SET_PDEATHSIG = 1
"""Of prctl(2): which signal a process gets when the one that started it ends."""


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_each(jobs: int) -> int:
    """Threads of each of so many processes, so that together they fill the cores; what the user has set stays."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdecimal() else max(1, cores() // jobs)


def start(words: Sequence[str], log: Path, threads: int) -> subprocess.Popen[bytes]:
    """``python -m dfme words`` with all that it says at the end of ``log``.

    In a session of its own: Ctrl-C reaches it only from us, once, and so it stops after the step in progress. Where
    the system can (Linux), it stops so too if we are killed: nobody would see what it goes on to spend.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    path = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": str(threads)}
    environment.pop("WANDB_NAME", None)  # each cell has a name of its own
    try:
        if log.is_symlink():  # it would be written to what it leads to
            log.unlink()
        file = log.open("ab")
    except OSError as error:
        raise disk_error("write", log, error) from error
    with file:
        return subprocess.Popen(  # noqa: S603 (our own interpreter and program)
            [sys.executable, "-m", "dfme", *words],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
            preexec_fn=None if prctl is None else partial(prctl, PR_SET_PDEATHSIG, signal.SIGINT),
        )


def free(directory: Path) -> None:
    """Wait until no process works in a run's directory: a killed comparison's may still be ending its step."""
    deadline = time.monotonic() + GRACE_SECONDS
    while directory.is_dir() and time.monotonic() < deadline:
        try:
            return DirectoryLock(directory).close()
        except UserError:  # in use
            time.sleep(POLL_SECONDS)


class WorkerPool(Generic[T]):
    """At most ``jobs`` processes at once, one per task; ``begin`` starts a task's."""

    def __init__(self, begin: Callable[[T], subprocess.Popen[bytes]], jobs: int) -> None:
        self._begin, self._jobs = begin, jobs
        self._running: list[tuple[T, subprocess.Popen[bytes]]] = []

    @property
    def running(self) -> list[T]:
        return [task for task, _ in self._running]

    def run(
        self,
        tasks: Iterable[T],
        ended: Callable[[T, int], None],
        stopped: Callable[[], bool],
        watch: Callable[[], None] = lambda: None,
    ) -> None:
        """Run all tasks, or, once ``stopped``, those that run to the end of their step in progress.

        ``ended`` hears each task's exit code, as it ends; ``watch`` is called all the while. An interruption on top of
        that stops them at once.
        """
        waiting, signalled = list(tasks), False
        try:
            while self._running or (waiting and not stopped()):
                while waiting and len(self._running) < self._jobs and not stopped():
                    task = waiting.pop(0)
                    self._running.append((task, self._begin(task)))
                if stopped() and not signalled:
                    self._signal(signal.SIGINT)
                    signalled = True
                done = [(task, process) for task, process in self._running if process.poll() is not None]
                self._running = [pair for pair in self._running if pair[1].returncode is None]
                for task, process in done:
                    ended(task, process.returncode)
                watch()
                time.sleep(POLL_SECONDS)
        finally:
            self._end()

    def _signal(self, number: signal.Signals) -> None:
        for _, process in self._running:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    def _end(self) -> None:
        """Leave no process behind, whatever happened."""
        self._signal(signal.SIGINT)
        deadline = time.monotonic() + GRACE_SECONDS
        for _, process in self._running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running = []


def last_line(log: Path) -> str:
    """The last thing a process said: of one of ours that failed, the reason."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_END))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("dfme: ") if lines else ""
