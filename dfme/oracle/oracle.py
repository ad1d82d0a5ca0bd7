"""The oracle: the only door to the teacher, and its meter. It takes images and gives paid answers.

No gradient passes: queries and answers are copied without their history. Queries are float32, rounded to the
teacher's pixel levels where it has any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dfme.answers.asking import Reader
from dfme.answers.reading import top_class
from dfme.compute import DeferredChecks, held_to, on_accelerator
from dfme.config.answer_settings import AnswersConfig
from dfme.errors import BudgetExhausted, RunError
from dfme.oracle import defended
from dfme.oracle.dispatch import Answered, Dispatcher, Part
from dfme.oracle.journal import Journal, digest
from dfme.oracle.ledger import CHARGED, Ledger, Purpose
from dfme.spec import Teacher

__all__ = ["BudgetExhausted", "Ledger", "Oracle"]

SLACK = 1e-4
"""How far beyond its bounds a query may reach, as a share of their range: rounding errors."""


class Oracle:
    """Asks ``teacher``, charges ``ledger`` before every send, records in ``journal`` before every use.

    With a journal that holds answers of an interrupted run, the same queries get those answers again,
    unpaid. ``deferred`` collects the conditions on an accelerator's values for the loop to verify; without
    one they are read after each call. ``tell`` is called with a line for each request to a service that fails.
    ``answered``: how often each class (K,) was the answer to what is charged; None for a run begun before 0.7.0.
    ``reader``: what is asked for an image that is charged, and made of the answers (``label_mode``); those of an
    evaluation are as the teacher gives them (``told``). Ledger and journal see every image that is sent.
    """

    def __init__(
        self,
        teacher: Teacher,
        ledger: Ledger,
        journal: Journal | None = None,
        deferred: DeferredChecks | None = None,
        tell: Callable[[str], None] | None = None,
        reader: Reader | None = None,
    ) -> None:
        self.spec = teacher.spec
        self.num_classes = teacher.num_classes
        self.told = teacher.label_mode
        self._reader = reader or Reader(AnswersConfig(), self.told, self.num_classes)
        self.label_mode, self.times = self._reader.mode, self._reader.times
        self.ledger = ledger
        self._device = torch.device(getattr(teacher, "device", None) or "cpu")
        self._journal = journal
        self._verify_each = deferred is None
        self._deferred = deferred or DeferredChecks()
        self.after_answer: Callable[[], None] = lambda: None  # called whenever a batch is answered and on file
        self._dispatcher = Dispatcher(teacher, ledger, journal, self._deferred, self._device)
        self.answered: Tensor | None = torch.zeros(self.num_classes, dtype=torch.int64)
        if tell is not None:
            self.report_to(tell)
        if not self.replaying:
            ledger.settle()

    @property
    def replaying(self) -> bool:
        """Whether answers come from the journal of the interrupted run, for now."""
        return self._journal is not None and self._journal.replaying

    def __call__(self, images_BCHW: Tensor, purpose: Purpose = "student") -> Tensor:
        """The answers, on the images' device: scores (B, K) float32 or labels (B,) int64.

        The whole batch, each image as often as it is asked, must fit the budget, then it is sent in parts of the
        teacher's ``max_batch``, several at once where its ``wire`` says so. Images of charged purposes must lie within
        the spec's bounds. No images cost nothing.

        Raises:
            ValueError: for images of another shape or dtype, or out of bounds; nothing was sent.
            BudgetExhausted: if the batch does not fit, and nothing was sent; or if it does not reach for asking again
                what a service failed to answer.
            TeacherError: if the teacher raised or answered what its label mode rules out; that stays charged.
            RunError: if a resumed run asks something else than it asked before, or the disk refuses.
        """
        queries_BCHW = self._checked(images_BCHW, purpose)
        read: Callable[[Tensor], Tensor] = self._reader.read if purpose in CHARGED else lambda answers: answers
        if purpose in CHARGED:
            queries_BCHW = self._reader.expand(queries_BCHW)
        self.ledger.require(len(queries_BCHW), purpose)
        if len(queries_BCHW) == 0:
            return read(self._no_answers().to(images_BCHW.device))
        whole = self._obtain(queries_BCHW, purpose)
        if self._verify_each:
            self._deferred.verify()
        self.after_answer()
        if purpose in CHARGED and self.answered is not None:
            # On an accelerator nothing waits, so what is out of range may not have been noticed yet.
            classes_B = top_class(whole).clamp(0, self.num_classes - 1)
            self.answered = self.answered.to(classes_B.device)
            self.answered.scatter_add_(0, classes_B, torch.ones_like(classes_B))
        return read(whole).to(images_BCHW.device)

    @property
    def remaining(self) -> int:
        """Images that may still be asked about, each as often as it is asked."""
        return self.ledger.remaining // self.times

    @property
    def reached(self) -> int:
        """Images charged; the whole budget once what is left of it is too little for one more."""
        return self.ledger.spent if self.remaining else self.ledger.budget

    @property
    def on_own_accelerator(self) -> bool:
        """Whether the teacher works in this process, on an accelerator."""
        return on_accelerator(self._device) and not self._dispatcher.is_service

    @property
    def service(self) -> dict[str, Any] | None:
        """Of a service, its refused and failed requests by reason, and seconds of this session; else None."""
        if not self._dispatcher.is_service:
            return None
        return {
            **{event: dict(self.ledger.reasons.get(event, {})) for event in ("refused", "failed")},
            "seconds_answering": round(self._dispatcher.seconds, 3),
            "seconds_waited": round(self._dispatcher.waited, 3),
        }

    @property
    def asking(self) -> bool:
        """Whether a request is on its way."""
        return self._dispatcher.asking

    @property
    def defences(self) -> dict[str, Any]:
        """Of a teacher with defences or a watch, the defences' texts, and what both ``report``; else nothing."""
        return defended.told(self._dispatcher.teacher)

    def keep_watch(self, path: Path) -> None:
        """Append to a file what the teacher's watch said since the last time, just before a checkpoint."""
        defended.keep_lines(self._dispatcher.teacher, path)

    def served(self, images_BCHW: Tensor) -> Tensor | None:
        """What an honest user would be answered now, outside the ledger; None where the teacher does not say."""
        return defended.served(self._dispatcher.teacher, self._checked(images_BCHW, "evaluation"))

    def report_to(self, tell: Callable[[str], None]) -> None:
        """Call ``tell`` with a line for each request to a service that fails; the same line for the same reason."""
        self._dispatcher.tell = self._reader.tell = tell

    def state_dict(self) -> dict[str, Any]:
        """Ledger and journal for a checkpoint; both files are on the disk when this returns."""
        self.ledger.sync()
        if self._journal is not None:
            self._journal.sync()
        return {
            "ledger": self.ledger.state_dict(),
            "journal": None if self._journal is None else self._journal.state_dict(),
            "answered": self.answered,
            **defended.state_of(self._dispatcher.teacher),
        }

    def take_up_answered(self, found: Any) -> None:
        """Go on from the counts of a checkpoint, None if it has none. ValueError for what cannot be counts."""
        if found is not None:
            assert self.answered is not None
            found = held_to(self.answered.cpu(), found, "answers by class").to(self.answered.device)
            if not 0 <= int(found.min()) <= int(found.max()) <= self.ledger.spent:
                raise ValueError("answers by class: expected counts within what is spent")
        self.answered = found

    def checkpointed(self) -> None:
        """Call once a checkpoint with this ``state_dict`` is saved: the journal drops what it covers."""
        if self._journal is not None:
            self._journal.rotate()

    def close(self) -> None:
        """Send nothing more and close the files of ledger and journal; closing twice is no error."""
        self._dispatcher.close()
        self.ledger.close()
        if self._journal is not None:
            self._journal.close()

    def _obtain(self, queries_BCHW: Tensor, purpose: Purpose) -> Tensor:
        """The answers on record, and those that are asked for now, in the order of the queries."""
        batch, position = len(queries_BCHW), self.ledger.useful
        answers = self._recorded(queries_BCHW, purpose) if self.replaying else []
        for start, stop in _unanswered(answers, batch):
            answers += self._ask(Part(start, queries_BCHW[start:stop], batch, position + start), purpose)
        parts = [part for _, part in sorted(answers, key=lambda answered: answered[0])]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _checked(self, images_BCHW: Tensor, purpose: Purpose) -> Tensor:
        """The query, quantised and without history, on the teacher's device."""
        if not images_BCHW.is_floating_point() or tuple(images_BCHW.shape[1:]) != self.spec.shape:
            raise ValueError(
                f"oracle: expected floating-point images (B, {', '.join(map(str, self.spec.shape))}), "
                f"got {images_BCHW.dtype} {tuple(images_BCHW.shape)}"
            )
        queries_BCHW = images_BCHW.detach().to(self._device, torch.float32, memory_format=torch.contiguous_format)
        if len(queries_BCHW):
            self._require_bounds(queries_BCHW, purpose)
        return queries_BCHW if self.spec.levels is None else self.spec.quantise(queries_BCHW)

    def _require_bounds(self, queries_BCHW: Tensor, purpose: Purpose) -> None:
        """Images of a method must lie within the bounds; those of an evaluation set need only be finite."""
        low, high = self.spec.bounds if purpose in CHARGED else (-3e38, 3e38)
        slack = SLACK * (high - low) if purpose in CHARGED else 0.0
        least, most = queries_BCHW.aminmax()
        self._deferred.expect(
            (least >= low - slack) & (most <= high + slack),
            lambda: ValueError(
                f"oracle: expected {purpose} images within {low:g} and {high:g}, "
                f"got values from {float(least):g} to {float(most):g}"
            ),
        )

    def _recorded(self, queries_BCHW: Tensor, purpose: Purpose) -> list[Answered]:
        """The answers to this batch that the journal holds: all, or those that came before a kill."""
        journal, answers, rest = self._journal, list[Answered](), len(queries_BCHW)
        while rest and journal is not None and journal.replaying:
            record = journal.peek()
            if record.abandoned:
                self._abandoned(journal, record.seq, rest, purpose)
                continue
            images, stop = len(record.answers), record.start + len(record.answers)
            part_BCHW = queries_BCHW[record.start : stop]
            if record.batch != len(queries_BCHW) or images > rest or digest(part_BCHW.cpu()) != record.digest:
                raise self._mismatch(journal, record.seq, len(queries_BCHW), purpose)
            self.ledger.replay(record.seq, images, purpose)
            self._dispatcher.witness(part_BCHW, record, purpose)
            journal.advance()
            answers.append((record.start, record.answers))
            rest -= images
            if rest == 0:
                self.ledger.replay_failures(self.ledger.position)
        if not self.replaying:
            self.ledger.settle()
        return answers

    def _abandoned(self, journal: Journal, seq: int, rest: int, purpose: Purpose) -> None:
        """Raise BudgetExhausted for the rest of this batch, as in the interrupted run; not under a larger budget."""
        self.ledger.replay_failures(seq)
        journal.advance()
        if not journal.replaying:
            self.ledger.settle()
        self.ledger.require(rest, purpose)

    def _mismatch(self, journal: Journal, seq: int, images: int, purpose: Purpose) -> RunError:
        return RunError(
            f"the resumed run asks something else ({images} images, {purpose}) than request {seq} "
            "on record: code, libraries, threads or device changed or do not repeat exactly: restore them"
            f", or delete {journal.folder} to pay again for what was answered since the checkpoint"
        )

    def _ask(self, batch: Part, purpose: Purpose) -> list[Answered]:
        """Ask the teacher; a batch given up half answered is recorded as such, so that a replay does the same."""
        try:
            return self._dispatcher.deliver(batch, purpose)
        except BudgetExhausted:
            if self._journal is not None:
                self._journal.abandon(self.ledger.requests)
            raise

    def _no_answers(self) -> Tensor:
        if self.told.kind == "label":
            return torch.empty(0, dtype=torch.int64)
        return torch.empty(0, self.num_classes)


def _unanswered(answers: Sequence[Answered], batch: int) -> Iterator[tuple[int, int]]:
    """The ranges (start, stop) of a batch that have no answers yet."""
    at = 0
    for start, part in sorted(answers, key=lambda answered: answered[0]):
        if start > at:
            yield at, start
        at = start + len(part)
    if at < batch:
        yield at, batch
