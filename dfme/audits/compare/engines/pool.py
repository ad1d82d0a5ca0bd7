"""The loop of engines that wait for their cells: start so many at once, poll them, stop them politely."""

import contextlib
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")

POLL_SECONDS = 0.05
GRACE_SECONDS = 20.0
KILL_SECONDS = 5.0
"""For a run that was asked twice to stop; then it is killed, and gone. What it had paid for is in its
journal."""


class Worker(Protocol):
    """A cell that was begun: a process, or what an engine has in its place."""

    def poll(self) -> int | None:
        """Its exit code, or None while it has none."""

    def send_signal(self, sig: int, /) -> None:
        """Ask it to stop after its step in progress."""

    def kill(self) -> None:
        """End it at once."""


class WorkerPool(Generic[T]):
    """At most ``jobs`` workers at once, one per task; ``begin`` starts a task's in the slot of this number.

    ``manner`` says in a few words where they run and how.
    """

    manner = ""

    def __init__(
        self, begin: Callable[[T, int], Worker], jobs: int, poll_seconds: float = POLL_SECONDS
    ) -> None:
        self._begin = begin
        self._jobs = jobs
        self._poll_seconds = poll_seconds
        self._slots: dict[int, tuple[T, Worker]] = {}

    @property
    def running(self) -> list[T]:
        return [task for task, _ in self._slots.values()]

    def run(
        self,
        tasks: Iterable[T],
        ended: Callable[[T, int], bool],
        stopped: Callable[[], bool],
        watch: Callable[[], None] = lambda: None,
    ) -> None:
        """Run all tasks, or, once ``stopped``, those that run to the end of their step in progress.

        ``ended`` hears each exit code as it comes, and says whether that task is to be run once more;
        ``watch`` is called all the while. An interruption on top of that stops them at once.
        """
        waiting = list(tasks)
        signalled = False
        with self.opened(), ExitStack() as undo:
            undo.callback(self._end)
            while self._slots or (waiting and not stopped()):
                while waiting and len(self._slots) < self._jobs and not stopped():
                    slot = min(set(range(self._jobs)) - self._slots.keys())
                    task = waiting.pop(0)
                    self._slots[slot] = task, self._begin(task, slot)
                if stopped() and not signalled:
                    self._signal()
                    signalled = True
                for slot, (task, worker) in [*self._slots.items()]:
                    code = worker.poll()
                    if code is not None:
                        del self._slots[slot]
                        if ended(task, code):
                            waiting.insert(0, task)
                watch()
                time.sleep(self._poll_seconds)

    def opened(self) -> AbstractContextManager[None]:
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
        time.sleep(POLL_SECONDS)
    return not running
