"""The dispatcher sends a batch to the teacher in requests, several at once; it charges each one before it is sent.

A request that the service says it did not serve (``Refused``) is given back. Whatever else an ask ends in without an
answer on record, Ctrl-C and a full disk included, leaves it charged as ``failed``: it may have been served. Refused
and ``Unanswered`` requests may be made again, by the ``RequestPolicy`` that the teacher carries. Every answer is in
the journal before it is handed on. Which answer belongs to which image never depends on timing.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import stamina
import torch
from torch import Tensor

from dfme.answers.reading import TeacherCall
from dfme.compute import DeferredChecks
from dfme.errors import BatchTooLarge, BudgetExhausted, DfmeError, Refused, RunError, TeacherError, Unanswered
from dfme.oracle import defended
from dfme.oracle.journal import Journal, Record, digest
from dfme.oracle.ledger import CHARGED, Ledger, Purpose
from dfme.oracle.retry import RateLimiter, RetryPolicy
from dfme.spec import RequestPolicy, Teacher

logging.getLogger("stamina").addHandler(logging.NullHandler())  # what it would print, ``tell`` says in our words

Answered = tuple[int, Tensor]
"""Where a part begins in its batch, and its answers."""


class Part(NamedTuple):
    """The images of one request: ``start`` is the place of the first in its batch, ``batch`` the size of that.

    ``position``: images that the teacher answered before these, in the whole run.
    """

    start: int
    query_BCHW: Tensor
    batch: int
    position: int


class Dispatcher:
    """Sends a batch in requests; charges each in ``ledger`` before it is sent; retries; records in ``journal``.

    ``tell`` is called with a line for each request that fails.
    """

    def __init__(
        self, teacher: Teacher, ledger: Ledger, journal: Journal | None, deferred: DeferredChecks, device: torch.device
    ) -> None:
        policy: RequestPolicy | None = getattr(teacher, "wire", None)
        self._policy, self.is_service = policy or RequestPolicy(), policy is not None
        self._max_batch: int | None = getattr(teacher, "max_batch", None)
        self._limited: int | None = None  # the most that the service said to take
        self._limiter = RateLimiter(self._policy)
        self._ledger, self._journal = ledger, journal
        to = device if journal is None else torch.device("cpu")
        self._ask = TeacherCall(teacher, deferred, ledger.run, to)
        truth: Teacher | None = getattr(teacher, "truth", None) if hasattr(teacher, "witness") else None
        self._ask_truth = self._ask if truth is None else TeacherCall(truth, deferred, ledger.run, to)
        who = "teacher" if policy is None else "service"
        self._more = f"the {who} tells more than {teacher.label_mode}; its answers are cut to that"
        self._asked = set[int]()  # charges whose request is on its way
        self._lock = threading.Lock()
        self._closed = False
        self._told: dict[str, str] = {}
        self._fits = False  # whether an answer came yet that has the form that is read
        self.tell: Callable[[str], None] = lambda line: None
        self.teacher = teacher
        self.seconds = 0.0

    def witness(self, part_BCHW: Tensor, record: Record, purpose: Purpose) -> None:
        """Let the teacher go on past an answer on record; not where its truth gave it, which remembers nothing."""
        if purpose in CHARGED or self._ask_truth is self._ask:
            defended.witness(self.teacher, part_BCHW, record)

    @property
    def waited(self) -> float:
        """Seconds that requests of this session waited, for the rate limit or to be made again."""
        return self._limiter.waited

    @property
    def asking(self) -> bool:
        """Whether a request is on its way, or its answer being written down."""
        return bool(self._asked) or self._lock.locked()

    def deliver(self, batch: Part, purpose: Purpose) -> list[Answered]:
        """The answers to a batch, sent in parts that the service takes, in the order in which they came.

        Raises:
            BudgetExhausted: if the budget does not cover making a failed request again.
            TeacherError: if the service failed for good; what was answered meanwhile is in the journal.
        """
        parts = self._split(batch, self._limit(len(batch.query_BCHW)))
        one_by_one = len(parts) == 1 or self._policy.in_flight == 1
        alone = len(parts) if one_by_one else int(not self._fits)  # the first of all may be in vain
        answers = [each for part in parts[:alone] for each in self._answer(part, purpose, lambda: False)]
        return answers + (self._side_by_side(parts[alone:], purpose) if parts[alone:] else [])

    def close(self) -> None:
        """Send nothing any more and end every wait; what is still on its way stays charged as failed."""
        self._limiter.close()
        with self._lock:
            self._closed = True
            while self._asked:
                with contextlib.suppress(RunError):
                    self._ledger.fail(self._asked.pop(), KeyboardInterrupt.__name__)

    def _limit(self, images: int) -> int:
        limits = [limit for limit in (self._max_batch, self._limiter.max_images) if limit]
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
        """Send several parts at once; after a failure no other is sent, but answers on their way are awaited.

        The threads are daemons: a second Ctrl-C does not wait for a service that does not answer.
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
            threading.Thread(target=work, name="dfme-dispatch", daemon=True)
            for _ in range(min(self._policy.in_flight, len(parts)))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise next((error for error in errors if not isinstance(error, BudgetExhausted)), errors[0])
        return answers

    def _answer(self, part: Part, purpose: Purpose, in_vain: Callable[[], bool]) -> list[Answered]:
        """The answers to one part, split further where the service says that it is too large."""
        try:
            return [(part.start, self._persist(part, purpose, in_vain))]
        except BatchTooLarge as error:
            images, limit = len(part.query_BCHW), error.limit
            if limit is None or (self._limited and images <= self._limited):  # one by one it could go down for ever
                limit = min(limit or images, images // 2)
            if not isinstance(limit, int) or not 1 <= limit < images:
                raise TeacherError(f"{error}; a request of {images} images cannot be made smaller to fit") from error
            self._limited = self._max_batch = min(limit, self._max_batch or limit)
            smaller = self._split(part, self._max_batch)
            return [each for one in smaller for each in self._answer(one, purpose, in_vain)]

    def _persist(self, part: Part, purpose: Purpose, in_vain: Callable[[], bool]) -> Tensor:
        """Ask until there is an answer, or until ``RetryPolicy`` gives up."""
        retry = RetryPolicy(self._policy, self._report, in_vain, self._fits)
        failed = list[Exception]()
        try:  # what answers at once, as a network in this process does, needs no machinery for asking again
            return self._attempt(part, purpose)
        except (Refused, Unanswered) as error:
            failed.append(error)
        try:
            for attempt in stamina.retry_context(
                on=retry, attempts=None, timeout=None, wait_initial=0.2, wait_max=30.0, wait_jitter=0.2
            ):
                self._limiter.add_wait(retry.since_failure())
                with attempt:
                    if failed:
                        raise failed.pop()
                    return self._attempt(part, purpose)
        except BatchTooLarge:
            raise
        except (Refused, Unanswered) as error:
            raise TeacherError(f"{error}{retry.summary()}") from error
        raise AssertionError("unreachable")

    def _attempt(self, part: Part, purpose: Purpose) -> Tensor:
        """Charge a part, ask once, and record the answer or what became of the charge."""
        left = self._limiter.wait(len(part.query_BCHW))
        code = digest(part.query_BCHW.cpu()) if self._journal is not None or self._ask.needs_key else b""
        with self._lock:
            self._require_open()
            seq = self._ledger.charge(len(part.query_BCHW), purpose)
            self._asked.add(seq)
        started = time.perf_counter()
        try:
            ask = self._ask if purpose in CHARGED else self._ask_truth
            answers = ask(part.query_BCHW, part.position, code)
        except BaseException as error:
            self._account(seq, error)
            self._limiter.learn(left, len(part.query_BCHW), error)
            raise
        self._limiter.learn(left, len(part.query_BCHW))
        with self._lock:
            self._require_open()
            self._fits = True
            self._asked.discard(seq)  # before it is on record: what is, must never be written down as failed
            self.seconds += time.perf_counter() - started
            self._record(Record(seq, code, answers, part.start, part.batch))
            if self._more and self._ask.tells_more:
                self.tell(self._more)
                self._more = ""
        return answers

    def _record(self, record: Record) -> None:
        try:
            if self._journal is not None:
                self._journal.append(record)
        except RunError:
            with contextlib.suppress(RunError):  # where the disk takes no line either, it is lost
                self._ledger.fail(record.seq, "answer not kept")
            raise
        self._ledger.answered(record.seq)

    def _account(self, seq: int, error: BaseException) -> None:
        """Give a refused charge back; keep one that may have been served."""
        with self._lock:
            self._require_open()
            self._asked.discard(seq)
            if isinstance(error, Refused):
                self._ledger.refuse(seq, error.reason)
            else:
                self._ledger.fail(seq, getattr(error, "reason", type(error).__name__))

    def _require_open(self) -> None:
        if self._closed:
            raise DfmeError("the run has ended; nothing more is sent")

    def _report(self, reason: str, line: str) -> None:
        """Tell of a failure, of all for one reason in the same words: whoever shows them counts what is the same."""
        with self._lock:
            self.tell(self._told.setdefault(reason, line))
