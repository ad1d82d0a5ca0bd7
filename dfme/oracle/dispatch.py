"""Dispatcher: sends a batch in parallel requests, each charged before it is sent.

A request that the service says it did not serve (``Refused``) is given back. Whatever else an ask
ends in without an answer on record, Ctrl-C and a full disk included, leaves it charged as
``failed``: it may have been served. Every answer is in the journal before it is handed on. Which
answer belongs to which image never depends on timing.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dfme.answers.asking import TeacherCall
from dfme.compute.modules import DeferredChecks
from dfme.errors import (
    BatchTooLarge,
    BudgetExhausted,
    DfmeError,
    Refused,
    RunError,
    TeacherError,
    Unanswered,
)
from dfme.oracle.journal import Journal, Record, digest
from dfme.oracle.ledger import CHARGED, Ledger, Purpose
from dfme.oracle.retry import SHOWN, RateLimiter, Retries, gap_counts, require_classes
from dfme.spec import Teacher

Answered = tuple[int, Tensor]  # where a part begins in its batch, and its answers


class Part(NamedTuple):
    """Images of one request, from ``start`` on of ``batch``; ``position``: images that the run had
    before.
    """

    start: int
    query_BCHW: Tensor
    batch: int
    position: int


class Dispatcher:
    """Send a batch in requests; charge each first; retry by the teacher's policy; record in the
    journal.

    ``tell`` is called with a line for each request that fails.
    """

    def __init__(
        self,
        teacher: Teacher,
        ledger: Ledger,
        journal: Journal | None,
        deferred: DeferredChecks,
        device: torch.device,
    ) -> None:
        info = teacher.info
        self._policy = info.wire
        self.is_service = info.remote is not None
        self._max_batch = info.max_batch
        self._limited: int | None = None  # the most that the service said to take
        self._limiter = RateLimiter(self._policy)
        self._ledger = ledger
        self._journal = journal
        to = device if journal is None else torch.device("cpu")
        self._ask = TeacherCall(teacher, deferred, ledger.run, to)
        plain = info.undefended
        self._ask_undefended = TeacherCall(plain, deferred, ledger.run, to) if plain else self._ask
        who = "service" if self.is_service else "teacher"
        self._more = f"the {who} tells more than {teacher.label_mode}; its answers are cut to that"
        self._asked = set[int]()  # charges whose request is on its way
        self._lock = threading.Lock()
        self._closed = False
        self._told: dict[str, str] = {}
        self._ask.fits = self._ask_undefended.fits = self._has_fitted
        self.tell: Callable[[str], None] = lambda line: None
        self._teacher = teacher
        self.seconds = 0.0

    def replay_answer(self, part_BCHW: Tensor, record: Record, purpose: Purpose) -> None:
        """Move the teacher's state past a recorded answer; RunError where it would answer
        otherwise.
        """
        state = self._teacher.info.stateful
        if state is None or (purpose not in CHARGED and self._ask_undefended is not self._ask):
            return  # an undefended answer moves nothing
        try:
            with torch.no_grad(), torch.autocast(part_BCHW.device.type, enabled=False):
                state.replay_answer(
                    part_BCHW.clone(), record.answers.to(part_BCHW.device, copy=True)
                )
        except ValueError as error:
            raise RunError(
                f"the teacher answers otherwise than request {record.seq} on record "
                f"({' '.join(str(error).split())[:300]})"
                "; its key, files or settings changed: resume with them as they were, or start a "
                "new run"
            ) from error

    @property
    def waited(self) -> float:
        """Seconds that requests of this session waited."""
        return self._limiter.waited

    @property
    def asking(self) -> bool:
        """True if a request is on its way, or its answer being written down."""
        return bool(self._asked) or self._lock.locked()

    def deliver(self, batch: Part, purpose: Purpose) -> list[Answered]:
        """The answers to a batch, sent in parts that the service takes, in the order in which they
        came.

        Raises:
            BudgetExhausted: if the budget does not cover making a failed request again.
            TeacherError: if the service failed for good; what was answered meanwhile is in the
            journal.
        """
        limits = (self._max_batch, self._limiter.max_images)
        parts = self._split(batch, min([len(batch.query_BCHW), *filter(None, limits)]))
        one_by_one = len(parts) == 1 or self._policy.in_flight == 1
        alone = (
            len(parts) if one_by_one else int(not self._has_fitted())
        )  # the first of all may be in vain
        answers = [
            each for part in parts[:alone] for each in self._answer(part, purpose, lambda: False)
        ]
        return answers + (self._side_by_side(parts[alone:], purpose) if parts[alone:] else [])

    def close(self) -> None:
        """Send nothing any more and end every wait; what is still on its way stays charged as
        failed.
        """
        self._limiter.close()
        with self._lock:
            self._closed = True
            while self._asked:
                with contextlib.suppress(RunError):
                    self._ledger.fail(self._asked.pop(), KeyboardInterrupt.__name__)

    def _split(self, part: Part, most: int) -> list[Part]:
        starts = range(0, len(part.query_BCHW), most)
        return [
            Part(
                part.start + start,
                part.query_BCHW[start : start + most],
                part.batch,
                part.position + start,
            )
            for start in starts
        ]

    def _side_by_side(self, parts: Sequence[Part], purpose: Purpose) -> list[Answered]:
        """Send several parts at once; after a failure no other is sent; answers on their way are
        awaited.
        """
        waiting = deque(parts)
        answers = list[Answered]()
        errors = list[BaseException]()

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

        # Daemons: a second Ctrl-C does not wait for a service that does not answer.
        several = range(min(self._policy.in_flight, len(parts)))
        threads = [
            threading.Thread(target=work, name="dfme-dispatch", daemon=True) for _ in several
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise next(
                (error for error in errors if not isinstance(error, BudgetExhausted)), errors[0]
            )
        return answers

    def _answer(self, part: Part, purpose: Purpose, in_vain: Callable[[], bool]) -> list[Answered]:
        """The answers to one part, split further where the service says that it is too large."""
        try:
            return [(part.start, self._persist(part, purpose, in_vain))]
        except BatchTooLarge as error:
            images = len(part.query_BCHW)
            limit = error.limit
            # one by one it could go down for ever
            if limit is None or (self._limited and images <= self._limited):
                limit = min(limit or images, images // 2)
            if not isinstance(limit, int) or not 1 <= limit < images:
                raise TeacherError(
                    error.message + f"; a request of {images} images cannot be made smaller to fit"
                ) from error
            self._limited = self._max_batch = min(limit, self._max_batch or limit)
            smaller = self._split(part, self._max_batch)
            return [each for half in smaller for each in self._answer(half, purpose, in_vain)]

    def _persist(self, part: Part, purpose: Purpose, in_vain: Callable[[], bool]) -> Tensor:
        """Ask until there is an answer, or until ``Retries`` gives up."""
        retries = Retries(self._policy, self._report, in_vain, self._has_fitted())
        while True:
            try:
                return self._attempt(part, purpose)
            except BatchTooLarge:
                raise
            except (Refused, Unanswered) as error:
                seconds = retries.wait_after(error)
                if seconds is None:
                    raise TeacherError(error.message + retries.summary()) from error
            self._limiter.pause(seconds)

    def _attempt(self, part: Part, purpose: Purpose) -> Tensor:
        """Charge a part, ask once, and record the answer or what became of the charge."""
        sent_at = self._limiter.wait(len(part.query_BCHW))
        code = (
            digest(part.query_BCHW.cpu())
            if self._journal is not None or self._ask.needs_key
            else b""
        )
        with self._lock:
            self._require_open()
            seq = self._ledger.charge(len(part.query_BCHW), purpose)
            self._asked.add(seq)
        started = time.perf_counter()
        try:
            ask = self._ask if purpose in CHARGED else self._ask_undefended
            answers = ask(part.query_BCHW, part.position, code)
        except BaseException as error:
            self._account(seq, error)
            self._limiter.learn(sent_at, len(part.query_BCHW), error)
            raise
        self._limiter.learn(sent_at, len(part.query_BCHW))
        with self._lock:
            self._require_open()
            self._asked.discard(
                seq
            )  # before it is on record: what is, must never be written down as failed
            self.seconds += time.perf_counter() - started
            self._record(Record(seq, code, answers, part.start, part.batch))
            self._report_unknown()
            if self._more and self._ask.tells_more:
                self.tell(self._more)
                self._more = ""
        self.require_classes()
        return answers

    def _has_fitted(self) -> bool:
        """Whether an answer came yet, in any session, that has the form that is read."""
        return self._ledger.given.total() > 0

    def require_classes(self) -> None:
        """Unserved where what the service answers is too seldom a class; of no effect for
        others.
        """
        if self.is_service:
            require_classes(self._ledger, self._ask.unknown_names)

    def _report_unknown(self) -> None:
        """Tell the first few names that are none of the classes."""
        for name in list(self._ask.unknown_names)[:SHOWN]:
            if name not in self._told:
                self._told[name] = (
                    f"warning: the service answered {name}, which is none of the classes: such "
                    "images are "
                    "charged, counted and left out; if it is a class, name it in answer.classes"
                )
                self.tell(self._told[name])

    def _record(self, record: Record) -> None:
        if self.is_service:
            for reason, images in gap_counts(record.answers).items():
                self._ledger.leave_out(record.seq, reason, images)
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
        """Tell a failure: all for one reason in equal words, so that they can be counted."""
        with self._lock:
            self.tell(self._told.setdefault(reason, line))
