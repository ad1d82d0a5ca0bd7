"""The courier: takes the parts of a batch to the teacher, several at once, and pays for every attempt.

An attempt is charged before it is sent. One that the service says it did not serve (``Refused``) is given back; one
that may have been served (``Unanswered``) stays charged; either may be made again, as the teacher's ``wire`` says.
Every answer is in the journal before it is handed on. Which answer belongs to which image never depends on timing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import stamina
import torch
from torch import Tensor

from dfme.answers import TeacherCall
from dfme.compute import DeferredChecks
from dfme.errors import BatchTooLarge, BudgetExhausted, DfmeError, Refused, TeacherError, Unanswered
from dfme.oracle.journal import Journal, Record, digest
from dfme.oracle.ledger import Ledger, Purpose
from dfme.oracle.retry import RateLimiter, RetryPolicy
from dfme.spec import RequestPolicy, Teacher

logging.getLogger("stamina").addHandler(logging.NullHandler())  # what it would print, ``tell`` says in our words

Answered = tuple[int, Tensor]
"""Where a part begins in its batch, and its answers."""


class Part(NamedTuple):
    """Some images of a batch: the number of the first, how many the batch has, and how many were answered before."""

    start: int
    query_BCHW: Tensor
    batch: int
    position: int


class Dispatcher:
    """Asks ``teacher``, charges ``ledger``, records in ``journal``, in one order for each attempt.

    ``tell`` is called with a line, now and then, while a service makes trouble.
    """

    def __init__(
        self, teacher: Teacher, ledger: Ledger, journal: Journal | None, deferred: DeferredChecks, device: torch.device
    ) -> None:
        wire: RequestPolicy | None = getattr(teacher, "wire", None)
        self._wire, self.is_service = wire or RequestPolicy(), wire is not None
        self._most: int | None = getattr(teacher, "max_batch", None)
        self._pace = RateLimiter(self._wire)
        self._ledger, self._journal = ledger, journal
        self._ask = TeacherCall(teacher, deferred, ledger.run, device if journal is None else torch.device("cpu"))
        self._lock = threading.Lock()
        self._closed = False
        self._told = -10.0
        self.tell: Callable[[str], None] = lambda line: None
        self.seconds = 0.0

    @property
    def waited(self) -> float:
        """Seconds that requests of this session waited for their turn or for the service."""
        return self._pace.waited

    def deliver(self, batch: Part, purpose: Purpose) -> list[Answered]:
        """The answers to a batch, by parts of what the service takes, in the order in which they came.

        Raises:
            BudgetExhausted: if the budget does not reach for asking again what failed.
            TeacherError: if the service failed for good; what was answered meanwhile is in the journal.
        """
        parts = self._split(batch, self._limit(len(batch.query_BCHW)))
        if len(parts) == 1 or self._wire.in_flight == 1:
            return [each for part in parts for each in self._answer(part, purpose, lambda: False)]
        return self._side_by_side(parts, purpose)

    def close(self) -> None:
        """Send nothing any more; whoever waits stops waiting."""
        self._pace.close()
        with self._lock:
            self._closed = True

    def _limit(self, images: int) -> int:
        limits = [limit for limit in (self._most, self._pace.most_images) if limit]
        return min([images, *limits])

    def _split(self, part: Part, most: int) -> list[Part]:
        if len(part.query_BCHW) <= most:
            return [part]
        starts = range(0, len(part.query_BCHW), most)
        return [
            Part(part.start + start, part.query_BCHW[start : start + most], part.batch, part.position + start)
            for start in starts
        ]

    def _side_by_side(self, parts: Sequence[Part], purpose: Purpose) -> list[Answered]:
        """Several parts at once; after a failure none is begun any more, but those on their way are awaited.

        The threads are daemons: an impatient second Ctrl-C does not wait for a service that does not answer.
        """
        waiting, answers, errors = deque(parts), list[Answered](), list[BaseException]()

        def work() -> None:
            while not errors:
                try:
                    part = waiting.popleft()
                except IndexError:
                    return
                try:
                    answers.extend(self._answer(part, purpose, lambda: bool(errors)))
                except BaseException as error:
                    errors.append(error)

        threads = [
            threading.Thread(target=work, name="dfme-courier", daemon=True)
            for _ in range(min(self._wire.in_flight, len(parts)))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise next((error for error in errors if not isinstance(error, BudgetExhausted)), errors[0])
        return answers

    def _answer(self, part: Part, purpose: Purpose, in_vain: Callable[[], bool]) -> list[Answered]:
        """One part, or the smaller ones that it falls into where the service says it is too large."""
        try:
            return [(part.start, self._persist(part, purpose, in_vain))]
        except BatchTooLarge as error:
            images = len(part.query_BCHW)
            limit = error.limit or images // 2
            if not 1 <= limit < images:
                raise TeacherError(f"{error}; a request of {images} images cannot be made smaller to fit") from error
            self._most = min(limit, self._most or limit)
            return [
                each for smaller in self._split(part, self._most) for each in self._answer(smaller, purpose, in_vain)
            ]

    def _persist(self, part: Part, purpose: Purpose, in_vain: Callable[[], bool]) -> Tensor:
        """Ask until there is an answer, or until patience or sense say that there will be none that is of use."""
        patience = RetryPolicy(self._wire, self._report, in_vain)
        try:
            for attempt in stamina.retry_context(
                on=patience, attempts=None, timeout=None, wait_initial=0.2, wait_max=30.0, wait_jitter=0.2
            ):
                self._pace.waited_for(patience.rested())
                with attempt:
                    return self._attempt(part, purpose)
        except BatchTooLarge:
            raise
        except (Refused, Unanswered) as error:
            raise TeacherError(f"{error}{patience.spent()}") from error
        raise AssertionError("unreachable")

    def _attempt(self, part: Part, purpose: Purpose) -> Tensor:
        """Charge, ask once, and settle the charge by what came of it."""
        self._pace.wait(len(part.query_BCHW))
        code = digest(part.query_BCHW.cpu()) if self._journal is not None or self._ask.needs_key else b""
        with self._lock:
            self._require_open()
            seq = self._ledger.charge(len(part.query_BCHW), purpose)
        started = time.perf_counter()
        try:
            answers = self._ask(part.query_BCHW, part.position, code)
        except (Refused, Unanswered) as error:
            self._account(seq, error)
            raise
        with self._lock:
            self._require_open()
            self.seconds += time.perf_counter() - started
            if self._journal is not None:
                self._journal.append(Record(seq, code, answers, part.start, part.batch))
            self._ledger.answered(seq)
        return answers

    def _account(self, seq: int, error: Refused | Unanswered) -> None:
        """Give a refused charge back; keep one that may have been served."""
        with self._lock:
            self._require_open()
            if isinstance(error, Unanswered):
                self._ledger.fail(seq, error.reason)
                return
            self._ledger.refuse(seq, error.reason)
        self._pace.hold(error.retry_after or 0.0)

    def _require_open(self) -> None:
        if self._closed:
            raise DfmeError("the run has ended; nothing more is sent")

    def _report(self, line: str) -> None:
        """Say what goes on, at most every ten seconds."""
        now = time.monotonic()
        if now - self._told >= 10:
            self._told = now
            self.tell(line)
