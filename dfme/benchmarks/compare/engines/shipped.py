"""What an engine ships to a worker on any node: one cell, run in the worker's own process, as plain text.

The worker gets this file's content and not its name, and so it finds dfme where the comparison runs from: nothing of
dfme is imported up here. What the cell came to is a number in a file beside its log. The comparison reads that,
``summary.json`` and the log, and never an object of the engine's: unpickling one could run what another user put there.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

STOPPED, LOST = 130, -256
BEATS_SECONDS = 150.0
"""How long a worker waits for a directory that another node seems to hold: longer than a lost node's lock lasts."""


def run_cell(words: list[str], log: str) -> int:
    """``dfme words`` in this process, all that it says at the end of ``log``; its exit code.

    Not in a child of it: with a worker that is killed its run must end too, so that the system frees its lock.
    SystemExit passes: it is how submitit gives a job back to the queue.
    """
    from dfme.benchmarks.compare.processes import free, open_log
    from dfme.cli.main import main

    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))  # Ray's workers have blocked them
    with open_log(Path(log)) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout = sys.stderr = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 (as long as the process)
    try:
        note = free(Path(words[words.index("--out") + 1]), BEATS_SECONDS)
        print(note, end="\n" * bool(note))
        return main(words)
    except KeyboardInterrupt:  # before main could hear it
        return STOPPED
    except Exception:  # a bug, whose traceback belongs to the log
        traceback.print_exc()
        return 1


def settle(folder: str, project: str, threads: int) -> None:
    """Make a worker's process what a cell of ``--engine local`` finds, before torch is loaded."""
    os.chdir(folder)
    sys.path[:0] = [folder, project]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [project, os.environ.get("PYTHONPATH")]))
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ.pop("WANDB_NAME", None)  # each cell has a name of its own


def outcome_file(log: Path) -> Path:
    """Where a cell's exit code is left."""
    return log.with_suffix(".exit")


def write_outcome(log: str, code: int) -> None:
    """Leave a cell's exit code, whole or not at all."""
    from dfme.files import write_text

    write_text(outcome_file(Path(log)), f"{code}\n")


def work(words: list[str], log: str, place: tuple[str, str, int]) -> None:
    """Run a cell in a worker's process, and leave its exit code."""
    settle(*place)
    write_outcome(log, run_cell(words, log))


class Resumable:
    """What submitit runs and, asked to make room, puts into the queue again as it is: the run knows where it was."""

    def __init__(self, words: list[str], log: str, place: tuple[str, str, int], number: int) -> None:
        """``number``: of the signal by which submitit is asked."""
        self.words, self.log, self.place, self.number = words, log, place, number

    def __call__(self) -> None:
        """Run the cell. Asked to make room it ends the step in progress first, so that no answer is lost."""
        requeue: Any = signal.getsignal(self.number)
        asked: list[Any] = []

        def make_room(*event: Any) -> None:
            asked.append(event)
            os.kill(os.getpid(), signal.SIGINT)

        signal.signal(self.number, make_room)
        settle(*self.place)
        code = run_cell(self.words, self.log)
        if asked and code == STOPPED:
            requeue(*asked[0])
        write_outcome(self.log, code)

    def checkpoint(self) -> Any:
        """Itself, to be queued."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class Shipped(ABC):
    """A cell that a worker elsewhere has, as the comparison sees it: a ``Worker``."""

    def __init__(self, log: Path) -> None:
        self._log, self.asked = log, False

    @abstractmethod
    def over(self) -> bool:
        """Whether the engine has ended the worker, or lost it."""

    @abstractmethod
    def cancel(self, at_once: bool) -> None:
        """Ask the engine to stop the worker."""

    def poll(self) -> int | None:
        """As ``Worker.poll``; a cell that something else than the comparison stopped was preempted, and is LOST."""
        over = self.over()
        try:
            code = int(outcome_file(self._log).read_bytes()[:9])
        except (OSError, ValueError):
            if not over:
                return None
            code = STOPPED
        if code == STOPPED:
            return STOPPED if self.asked else LOST
        return code

    def send_signal(self, sig: int, /) -> None:
        self.asked = True
        self.cancel(at_once=False)

    def kill(self) -> None:
        self.cancel(at_once=True)
