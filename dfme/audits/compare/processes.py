"""Runs as processes of their own: their surroundings, their logs, and how they are started."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import IO

from dfme.errors import UserError
from dfme.files import disk_error
from dfme.run.job import PROJECT
from dfme.run.lock import DirectoryLock

GRACE_SECONDS = 20.0
"""How long a run of a killed comparison may take to end its step."""

LOG_END = 8_192

PR_SET_PDEATHSIG = 1
"""Of prctl(2): which signal a process gets when the one that started it ends."""


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_each(jobs: int, among: int | None = None) -> int:
    """Threads per process, so that all together fill the cores; the user's own setting wins."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdecimal() else max(1, (among or cores()) // jobs)


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


def start(words: Sequence[str], log: Path, threads: int, gpu: str | None = None) -> subprocess.Popen[bytes]:
    """Start ``python -m dfme words``, its output appended to ``log``, on this GPU alone if one is named.

    In a session of its own: Ctrl-C reaches it only from us, once, and so it stops after the step in progress.
    Where the system can (Linux), it stops so too if we are killed: nobody would see what it goes on to spend.
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
    """Wait until no process works in a run's directory: a killed comparison's may still be ending its step.

    What is to be said of the lock, if it was one of a host that is gone.
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
            file.seek(max(0, log.stat().st_size - LOG_END))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("dfme: ") if lines else ""
