"""The oracle: the only door to the teacher, and the meter on it. Images go in, paid answers come out.

No gradient passes: queries are copied without their history, and so are answers. What is asked is what the
wire can carry: float32, rounded to the image lattice where the teacher takes 8-bit pixels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dfme.answers import read_answers
from dfme.errors import BudgetExhausted, DfmeError, RunError, TeacherError
from dfme.journal import Journal, Record, digest
from dfme.ledger import CHARGED, Ledger, Purpose
from dfme.sentinel import Sentinel
from dfme.spec import Teacher

__all__ = ["BudgetExhausted", "Ledger", "Oracle"]

SLACK = 1e-4
"""How far beyond its bounds a query may reach, as a share of their range: rounding errors."""


class Oracle:
    """Asks ``teacher``, charges ``ledger`` before every send, records in ``journal`` before every use.

    With a journal that holds answers of an interrupted run, the same queries get those answers again,
    unpaid. ``sentinel`` collects the conditions on an accelerator's values for the loop to verify; without
    one they are read after each call.
    """

    def __init__(
        self,
        teacher: Teacher,
        ledger: Ledger,
        journal: Journal | None = None,
        sentinel: Sentinel | None = None,
    ) -> None:
        self.spec = teacher.spec
        self.num_classes = teacher.num_classes
        self.label_mode = teacher.label_mode
        self.ledger = ledger
        self._teacher = teacher
        self._device = torch.device(getattr(teacher, "device", None) or "cpu")
        self._max_batch: int | None = getattr(teacher, "max_batch", None)
        self._journal = journal
        self._verify_each = sentinel is None
        self._sentinel = sentinel or Sentinel()
        if not self.replaying:
            ledger.settle()

    @property
    def replaying(self) -> bool:
        """Whether answers come from the journal of the interrupted run, for now."""
        return self._journal is not None and self._journal.replaying

    def __call__(self, images_BCHW: Tensor, purpose: Purpose = "student") -> Tensor:
        """The teacher's answers, on the images' device: scores (B, K) float32 or labels (B,) int64.

        The whole batch must fit the budget, then it is sent in parts of the teacher's ``max_batch``. Images
        of charged purposes must lie within the spec's bounds. No images cost nothing.

        Raises:
            ValueError: for images of another shape or dtype, or out of bounds; nothing was sent.
            BudgetExhausted: if the batch does not fit; nothing was sent.
            TeacherError: if the teacher raised or answered what its label mode rules out; that stays charged.
            RunError: if a resumed run asks something else than it asked before, or the disk refuses.
        """
        queries_BCHW = self._admit(images_BCHW, purpose)
        batch = len(queries_BCHW)
        self.ledger.require(batch, purpose)
        if batch == 0:
            return self._nothing().to(images_BCHW.device)
        limit = self._max_batch or batch
        parts = [queries_BCHW] if batch <= limit else torch.split(queries_BCHW, limit)
        answers = [self._answer(part_BCHW, purpose) for part_BCHW in parts]
        if self._verify_each:
            self._sentinel.verify()
        return (answers[0] if len(answers) == 1 else torch.cat(answers)).to(images_BCHW.device)

    def state_dict(self) -> dict[str, Any]:
        """Ledger and journal for a checkpoint; both files are on the disk when this returns."""
        self.ledger.sync()
        if self._journal is not None:
            self._journal.sync()
        return {
            "ledger": self.ledger.state_dict(),
            "journal": None if self._journal is None else self._journal.state_dict(),
        }

    def checkpointed(self) -> None:
        """Call once a checkpoint with this ``state_dict`` is saved: the journal lets go of what it covers."""
        if self._journal is not None:
            self._journal.rotate()

    def close(self) -> None:
        """Let go of the files of ledger and journal; closing twice is no error."""
        self.ledger.close()
        if self._journal is not None:
            self._journal.close()

    def _admit(self, images_BCHW: Tensor, purpose: Purpose) -> Tensor:
        """The query as the wire carries it, in memory of its own: a teacher may write into it."""
        if not images_BCHW.is_floating_point() or tuple(images_BCHW.shape[1:]) != self.spec.shape:
            raise ValueError(
                f"oracle: expected floating-point images (B, {', '.join(map(str, self.spec.shape))}), "
                f"got {images_BCHW.dtype} {tuple(images_BCHW.shape)}"
            )
        queries_BCHW = images_BCHW.detach().to(
            self._device, torch.float32, copy=True, memory_format=torch.contiguous_format
        )
        if len(queries_BCHW):
            self._require_bounds(queries_BCHW, purpose)
        return queries_BCHW if self.spec.levels is None else self.spec.quantise(queries_BCHW)

    def _require_bounds(self, queries_BCHW: Tensor, purpose: Purpose) -> None:
        """Bounds for what a method made; only finite values for images of an evaluation set."""
        low, high = self.spec.bounds if purpose in CHARGED else (-3e38, 3e38)
        slack = SLACK * (high - low) if purpose in CHARGED else 0.0
        least, most = queries_BCHW.aminmax()
        self._sentinel.expect(
            (least >= low - slack) & (most <= high + slack),
            lambda: ValueError(
                f"oracle: expected {purpose} images within {low:g} and {high:g}, "
                f"got values from {float(least):g} to {float(most):g}"
            ),
        )

    def _answer(self, query_BCHW: Tensor, purpose: Purpose) -> Tensor:
        if self._journal is None:
            seq = self.ledger.charge(len(query_BCHW), purpose)
            answers = self._send(query_BCHW, self._device)
            self.ledger.answered(seq)
            return answers
        code = digest(query_BCHW.cpu())
        if self._journal.replaying:
            return self._replay(self._journal, code, len(query_BCHW), purpose)
        seq = self.ledger.charge(len(query_BCHW), purpose)
        answers = self._send(query_BCHW, torch.device("cpu"))
        self._journal.append(Record(seq, code, answers))
        self.ledger.answered(seq)
        return answers

    def _replay(self, journal: Journal, code: bytes, images: int, purpose: Purpose) -> Tensor:
        record = journal.peek()
        if record.digest != code:
            raise RunError(
                f"the resumed run asks something else ({images} images, {purpose}) than request {record.seq} "
                "on record: code, libraries, threads or device changed or do not repeat exactly: restore them"
                f", or delete {journal.folder} to pay again for what was answered since the checkpoint"
            )
        self.ledger.replay(record.seq, images, purpose)
        journal.advance()
        if not journal.replaying:
            self.ledger.settle()
        return record.answers

    def _send(self, query_BCHW: Tensor, device: torch.device) -> Tensor:
        """Ask the teacher, outside autograd and autocast; the answers, checked, on ``device``."""
        batch = len(query_BCHW)
        try:
            with torch.no_grad(), torch.autocast(self._device.type, enabled=False):
                raw = self._teacher(query_BCHW)
        except DfmeError:
            raise
        except (Exception, SystemExit) as error:  # a client may give up the whole process: it is not its own here
            reason = " ".join(str(error).split())
            raise TeacherError(
                f"teacher: expected answers to {batch} images {tuple(query_BCHW.shape)}, but it raised "
                f"{type(error).__name__}: {reason}"
            ) from error
        return read_answers(raw, batch, self.num_classes, self.label_mode, self._sentinel, device)

    def _nothing(self) -> Tensor:
        if self.label_mode.kind == "label":
            return torch.empty(0, dtype=torch.int64)
        return torch.empty(0, self.num_classes)
