"""What an engine ships to a worker on any node: one cell, run in the worker's own process.

What it came to is a number in a file beside its log. The comparison reads that, ``summary.json`` and the log,
and never an object of the engine's: unpickling one could run what another user put there.
"""

import os
import signal
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from dfme.audits.compare.engines import LOST, STOPPED, Task
from dfme.audits.compare.processes import free, open_log
from dfme.files import remove, write_text

BEATS_SECONDS = 150.0
"""How long a worker waits for a directory that another node seems to hold: longer than a lost node's lock
lasts."""


def run_cell(words: list[str], log: str) -> int:
    """``dfme words`` in this process, all that it says at the end of ``log``; its exit code.

    Not in a child of it: with a worker that is killed its run must end too, so that the system frees its
    lock. SystemExit passes: it is how submitit gives a job back to the queue.
    """
    os.environ.pop("WANDB_NAME", None)  # each cell has a name of its own
    # Ray's workers have blocked them
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
    with open_log(Path(log)) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout = sys.stderr = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 (as long as the process)
    try:
        note = free(Path(words[words.index("--out") + 1]), BEATS_SECONDS)
        print(note, end="\n" * bool(note))
        return int(import_module("dfme.cli.main").main(words))  # which stands above this package
    except KeyboardInterrupt:  # before main could hear it
        return STOPPED
    except Exception:  # a bug, whose traceback belongs to the log
        traceback.print_exc()
        return 1


def outcome_file(log: str | Path) -> Path:
    """Where a cell's exit code is left."""
    return Path(log).with_suffix(".exit")


class Call:
    """A cell as a worker calls it; ``checkpoint`` and ``number`` (of its signal) are submitit's."""

    def __init__(self, task: Task, number: int = 0) -> None:
        self.words = [*task.words]
        self.log = str(task.log)
        self.folder = str(Path.cwd())
        self.number = number
        remove(outcome_file(task.log))

    def __call__(self) -> None:
        """Run it, and leave its exit code.

        Asked to make room it ends the step in progress first, so that no answer is lost, and is queued again.
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
        code = run_cell(self.words, self.log)
        if asked and code == STOPPED:
            requeue(*asked[0])
        write_text(outcome_file(self.log), f"{code}\n")

    def checkpoint(self) -> Any:
        """Itself: the run knows where it was."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class Shipped:
    """A ``Worker`` elsewhere: ``over`` tells whether it has ended, ``cancel`` stops it, at once if True."""

    def __init__(self, log: Path, over: Callable[[bool], bool], cancel: Callable[[bool], object]) -> None:
        self._log = log
        self._over = over
        self._cancel = cancel
        self._asked = False

    def poll(self) -> int | None:
        """Like ``Worker.poll``; a cell stopped by anything but the comparison was preempted, so LOST."""
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
