"""The oracle: the only door to the teacher, and its meter. It takes images and gives paid
answers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dfme.answers.asking import Reader
from dfme.answers.reading import top_class, unanswered, unmarked
from dfme.compute.device import on_accelerator
from dfme.compute.modules import DeferredChecks
from dfme.config.sections import AnswersConfig
from dfme.errors import BudgetExhausted, RunError
from dfme.oracle.dispatch import Answered, Dispatcher, Part
from dfme.oracle.journal import ABANDONED, Journal, Record, digest
from dfme.oracle.ledger import CHARGED, Ledger, Purpose
from dfme.spec import Teacher

SLACK = (
    1e-4  # how far beyond its bounds a query may reach, as a share of their range: rounding errors
)


class Oracle:
    """Asks ``teacher``, charges ``ledger`` before every send, records in ``journal`` before every
    use.

    With a journal that holds answers of an interrupted run, the same queries get those answers
    again, unpaid. No gradient passes. ``deferred`` collects conditions on an accelerator's values
    for the loop to verify; without one they are read after each call. ``tell`` hears a line for
    each request that fails. ``reader``: what is asked for an image that is charged, and made of the
    answers (``label_mode``); an evaluation's are as the teacher gives them. ``answered``: how often
    each class (K,) was the answer to what is charged.
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
        self.raw_label_mode = teacher.label_mode
        self._reader = reader or Reader(AnswersConfig(), self.raw_label_mode, self.num_classes)
        self.label_mode = self._reader.mode
        self.times = self._reader.times
        self.ledger = ledger
        self._teacher = teacher.info
        self._device = torch.device(self._teacher.device)
        self._journal = journal
        self._verify_each = deferred is None
        self._deferred = deferred or DeferredChecks()
        self.after_answer: Callable[[], None] = lambda: None  # a batch is on file
        self._dispatcher = Dispatcher(teacher, ledger, journal, self._deferred, self._device)
        self.answered = torch.zeros(self.num_classes, dtype=torch.int64)
        if tell is not None:
            self.report_to(tell)
        if not self.replaying:
            ledger.settle()

    @property
    def replaying(self) -> bool:
        """True while answers come from the journal of the interrupted run."""
        return self._journal is not None and self._journal.replaying

    @property
    def is_service(self) -> bool:
        """True for a service: it may name no class for an image, which ``unanswered`` then
        marks.
        """
        return self._dispatcher.is_service

    def __call__(self, images_BCHW: Tensor, purpose: Purpose = "student") -> Tensor:
        """The answers, on the images' device: scores (B, K) float32 or labels (B,) int64.

        The whole batch, each image as often as it is asked, must fit the budget. Images of charged
        purposes are float32 within the spec's bounds, and rounded to its levels. No images cost
        nothing. An image to which a service names no class has the label ``NO_ANSWER``, or a row of
        NaN (``unanswered``).

        Raises:
            ValueError: for images of another shape or dtype, or out of bounds; nothing was sent.
            BudgetExhausted: if the batch does not fit, and nothing was sent; or if it does not
            reach for
                asking again what a service failed to answer.
            TeacherError: if the teacher raised or answered what its label mode rules out, or a
            service names
                a class too seldom (``require_classes``); that stays charged.
            RunError: if a resumed run asks something else than it asked before, or the disk
            refuses.
        """
        charged = purpose in CHARGED
        read: Callable[[Tensor], Tensor] = self._reader.read if charged else lambda answers: answers
        queries_BCHW = self._checked(images_BCHW, purpose)
        if charged:
            queries_BCHW = self._reader.expand(queries_BCHW)
        self.ledger.require(len(queries_BCHW), purpose)
        if len(queries_BCHW) == 0:
            return read(self._no_answers().to(images_BCHW.device))
        raw = self._obtain(queries_BCHW, purpose)
        if self._verify_each:
            self._deferred.verify()
        self.after_answer()
        if self.is_service:
            raw = unmarked(raw)
        if charged:
            # On an accelerator nothing waits, so what is out of range may not have been noticed
            # yet.
            classified = raw[~unanswered(raw)] if self.is_service else raw
            classes_B = top_class(classified).clamp(0, self.num_classes - 1)
            self.answered = self.answered.to(classes_B.device)
            self.answered.scatter_add_(0, classes_B, torch.ones_like(classes_B))
        return read(raw).to(images_BCHW.device)

    @property
    def remaining(self) -> int:
        """Images that may still be asked about, each as often as it is asked."""
        return self.ledger.remaining // self.times

    @property
    def images_counted(self) -> int:
        """Images charged; the whole budget once what is left of it is too little for one more."""
        return self.ledger.spent if self.remaining else self.ledger.budget

    @property
    def share(self) -> float:
        """Share of the budget that counts as spent, 0 to 1."""
        return self.images_counted / self.ledger.budget

    @property
    def on_own_accelerator(self) -> bool:
        """True if the teacher works in this process, on an accelerator."""
        return on_accelerator(self._device) and not self.is_service

    @property
    def service(self) -> dict[str, Any] | None:
        """A service's refused and failed requests by reason, and seconds of this session; else
        None.
        """
        if not self.is_service:
            return None
        reasons = self.ledger.reasons
        return {
            "refused": dict(reasons.get("refused", {})),
            "failed": dict(reasons.get("failed", {})),
            "no_answer": {
                reason: images.total() for reason, images in sorted(self.ledger.no_answer.items())
            },
            "seconds_answering": round(self._dispatcher.seconds, 3),
            "seconds_waited": round(self._dispatcher.waited, 3),
        }

    @property
    def asking(self) -> bool:
        """True if a request is on its way."""
        return self._dispatcher.asking

    def report_to(self, tell: Callable[[str], None]) -> None:
        """Call ``tell`` with a line per failed request; equal reasons have equal lines."""
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
            **({"teacher": stateful.state_dict()} if (stateful := self._teacher.stateful) else {}),
        }

    def load_teacher_state(self, state: Mapping[str, Any]) -> None:
        """Restore the teacher's state at the checkpoint. ValueError if only one of them has a
        state.
        """
        stateful = self._teacher.stateful
        if ("teacher" in state) != bool(stateful):
            raise ValueError(
                f"expected {'the' if stateful else 'no'} state of a teacher's defences"
            )
        if stateful:
            stateful.load_state_dict(state["teacher"])

    def checkpointed(self) -> None:
        """Call once a checkpoint with this ``state_dict`` is saved: the journal drops what it
        covers.
        """
        if self._journal is not None:
            self._journal.rotate()

    def close(self) -> None:
        """Send nothing more and close the files of ledger and journal; closing twice is no
        error.
        """
        self._dispatcher.close()
        self.ledger.close()
        if self._journal is not None:
            self._journal.close()

    def _obtain(self, queries_BCHW: Tensor, purpose: Purpose) -> Tensor:
        """The answers on record, and those that are asked for now, in the order of the queries."""
        batch = len(queries_BCHW)
        position = self.ledger.useful
        answers = self._recorded(queries_BCHW, purpose) if self.replaying else []
        self._dispatcher.require_classes()
        for start, stop in _unanswered(answers, batch):
            answers += self._ask(
                Part(start, queries_BCHW[start:stop], batch, position + start), purpose
            )
        parts = [part for _, part in sorted(answers, key=lambda answered: answered[0])]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _checked(self, images_BCHW: Tensor, purpose: Purpose) -> Tensor:
        """The query, quantised and without history, on the teacher's device."""
        if not images_BCHW.is_floating_point() or tuple(images_BCHW.shape[1:]) != self.spec.shape:
            raise ValueError(
                "oracle: expected floating-point images (B, "
                f"{', '.join(map(str, self.spec.shape))}), "
                f"got {images_BCHW.dtype} {tuple(images_BCHW.shape)}"
            )
        queries_BCHW = images_BCHW.detach().to(
            self._device, torch.float32, memory_format=torch.contiguous_format
        )
        if len(queries_BCHW):
            self._require_bounds(queries_BCHW, purpose)
        return queries_BCHW if self.spec.levels is None else self.spec.quantise(queries_BCHW)

    def _require_bounds(self, queries_BCHW: Tensor, purpose: Purpose) -> None:
        """Images of a method must lie within the bounds; those of an evaluation set need only be
        finite.
        """
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
        """The answers to this batch that the journal holds: all, or those that came before a
        kill.
        """
        journal = self._journal
        answers = list[Answered]()
        rest = len(queries_BCHW)
        while rest and journal is not None and journal.replaying:
            record = journal.peek()
            if record.digest == ABANDONED:
                self._abandoned(journal, record.seq, rest, purpose)
                continue
            images = len(record.answers)
            part_BCHW = queries_BCHW[record.start : record.start + images]
            if (
                record.batch != len(queries_BCHW)
                or images > rest
                or digest(part_BCHW.cpu()) != record.digest
            ):
                raise RunError(
                    f"the resumed run asks something else ({len(queries_BCHW)} images, {purpose}) "
                    "than "
                    f"request {record.seq} on record: code, libraries, threads or device changed "
                    "or do not "
                    f"repeat exactly: restore them, or delete {journal.folder} to pay again for "
                    "what was "
                    "answered since the checkpoint"
                )
            self.ledger.replay(record.seq, images, purpose)
            self._dispatcher.replay_answer(part_BCHW, record, purpose)
            journal.advance()
            self._dispatcher.require_classes()
            answers.append((record.start, record.answers))
            rest -= images
            if rest == 0:
                self.ledger.replay_failures(self.ledger.position)
        if not self.replaying:
            self.ledger.settle()
        return answers

    def _abandoned(self, journal: Journal, seq: int, rest: int, purpose: Purpose) -> None:
        """Raise BudgetExhausted as in the interrupted run; not under a larger budget."""
        self.ledger.replay_failures(seq)
        journal.advance()
        if not journal.replaying:
            self.ledger.settle()
        self.ledger.require(rest, purpose)

    def _ask(self, batch: Part, purpose: Purpose) -> list[Answered]:
        """Ask the teacher; record a batch given up half answered, so that a replay does the
        same.
        """
        try:
            return self._dispatcher.deliver(batch, purpose)
        except BudgetExhausted:
            if self._journal is not None:
                self._journal.append(Record(self.ledger.requests, ABANDONED, torch.empty(0), 0, 0))
            raise

    def _no_answers(self) -> Tensor:
        labels = self.raw_label_mode.kind == "label"
        return torch.empty(0, dtype=torch.int64) if labels else torch.empty(0, self.num_classes)


def _unanswered(answers: Sequence[Answered], batch: int) -> Iterator[tuple[int, int]]:
    """The ranges (start, stop) of a batch without answers."""
    at = 0
    for start, part in sorted(answers, key=lambda answered: answered[0]):
        if start > at:
            yield at, start
        at = start + len(part)
    if at < batch:
        yield at, batch
