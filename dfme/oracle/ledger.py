"""Ledger: images paid by purpose, and the budget left; charges are on file before a send.

How a run resumes: ``ledger.jsonl`` is the true history, and may be ahead of a checkpoint's
counters. A resumed ledger starts with those and repeats history: ``replay`` counts the charge of
each answer that the journal still holds. Then ``settle`` writes off as ``lost`` every charge whose
answer nobody has: these images are not in ``spent``, so the budget buys what an uninterrupted run
buys. A charge that ``failed`` stays charged. A changed budget comes into force at ``settle``.
"""

import contextlib
import json
import secrets
import zlib
from collections import Counter, defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dfme.errors import BudgetExhausted, OptionError, RunError, say
from dfme.files import AppendFile
from dfme.oracle.ledger_log import (
    CHARGED,
    PURPOSES,
    Charge,
    History,
    LedgerState,
    Purpose,
    Totals,
    audit,
    read_history,
    require_same_teacher,
)

__all__ = ["CHARGED", "PURPOSES", "Ledger", "Purpose", "Totals", "audit"]


class Ledger:
    """Counts images by purpose and refuses what would exceed ``budget`` (images, at least 1).

    ``path``: the file; without one nothing is written. ``state``: from a checkpoint's
    ``state_dict``. ``facts``: what the teacher is, plain JSON, for the file's first line.
    ``fsync``: a line is on the disk when it counts. ``position``: number of the last charge that is
    counted. ``given``: images with an answer to learn from, by purpose; ``no_answer``: those that
    were answered without a class, by reason. Raises UserError for a budget below 1 or what is spent
    and for facts that are not those on record, RunError for a damaged file or one that the
    checkpoint does not fit.
    """

    def __init__(
        self,
        budget: int,
        path: Path | None = None,
        state: LedgerState | None = None,
        facts: Mapping[str, Any] | None = None,
        fsync: bool = False,
    ) -> None:
        if budget < 1:
            raise OptionError("budget", f"expected at least 1 image, got {budget}")
        state = state or {
            "seq": 0,
            "images": {},
            "requests": 0,
            "refused": 0,
            "failed": 0,
            "lost": 0,
        }
        history = _history(path, state)
        if budget < history.spent:
            raise OptionError(
                "budget", f"expected at least the {history.spent} images spent so far, got {budget}"
            )
        if history.teacher is not None and facts is not None:
            require_same_teacher(history.teacher, facts)
        self.teacher = history.teacher if history.budgets else facts
        self.position: int = state["seq"]
        self._images: dict[Purpose, int] = dict.fromkeys(PURPOSES, 0) | state["images"]
        self.spent: int = sum(self._images[purpose] for purpose in CHARGED)
        ahead = {seq: charge for seq, charge in history.kept.items() if seq > self.position}
        self._unanswered = {
            seq: charge for seq, charge in ahead.items() if seq not in history.failed
        }
        self._failed_ahead = {seq: charge for seq, charge in ahead.items() if seq in history.failed}
        self.given = Counter[Purpose]()
        self.no_answer: defaultdict[str, Counter[Purpose]] = defaultdict(Counter)
        self._left_out = {
            seq: history.no_answer.pop(seq) for seq in ahead if seq in history.no_answer
        }
        for seq, charge in history.kept.items():
            if seq <= self.position and seq not in history.failed:
                self._count_answers(charge, history.no_answer.get(seq))
        self._history = history
        self._wanted_budget = budget
        self._settled = False
        self.stretches = list(history.stretches)
        self._begins = False
        self.run = history.run or secrets.token_hex(8)
        self.requests = history.requests
        self.refused = history.refused
        self.lost = history.lost
        self.beside = history.beside
        self.reasons = history.reasons
        self.failed: int = state["failed"]
        self._check = history.check
        self._file = None if path is None else AppendFile(path, history.size, fsync)

    @property
    def budget(self) -> int:
        """Images that may be charged; the one of old while a resumed run repeats what it did under
        it.
        """
        old = None if self._settled else self._history.budget(self.position)
        return old or self._wanted_budget

    @property
    def remaining(self) -> int:
        """Images that may still be charged."""
        return self.budget - self.spent

    @property
    def share(self) -> float:
        """Share of the budget that is spent, from 0 to 1."""
        return self.spent / self.budget

    @property
    def spent_by_purpose(self) -> dict[str, int]:
        """Images charged, by purpose."""
        return {purpose: self._images[purpose] for purpose in CHARGED}

    @property
    def evaluation_queries(self) -> int:
        """Images of evaluation, recorded and not charged."""
        return self._images["evaluation"]

    def totals(self) -> Totals:
        """Every figure at once; once settled, what ``audit`` makes of the file."""
        benign = self._images["benign"] + self.beside
        return Totals(
            budget=self.budget,
            spent=self.spent,
            spent_by_purpose=self.spent_by_purpose,
            evaluation_queries=self.evaluation_queries,
            requests=self.requests,
            refused=self.refused,
            failed=self.failed,
            lost=self.lost,
            transfer_queries=self._images["transfer"],
            benign_queries=benign,
            no_answer=sum(images.total() for images in self.no_answer.values()),
        )

    @property
    def paid_without_answer(self) -> int:
        """Charged images that were answered without a class; they are left out of training."""
        total = 0
        for images in self.no_answer.values():
            total += sum(images[purpose] for purpose in CHARGED)
        return total

    @property
    def paid_with_answer(self) -> int:
        """Charged images with an answer to learn from."""
        return sum(self.given[purpose] for purpose in CHARGED)

    @property
    def useful(self) -> int:
        """Images with answers, of all purposes: equal at equal points of every session of a run."""
        return sum(self._images.values()) - self.failed

    def require(self, images: int, purpose: Purpose) -> None:
        """Raise BudgetExhausted if charging so many images would exceed the budget."""
        if purpose not in PURPOSES:
            raise ValueError(f"purpose: expected one of {', '.join(PURPOSES)}, got {purpose!r}")
        if purpose in CHARGED and images > self.remaining:
            raise BudgetExhausted(
                say(
                    "query budget: {} images ({}) were asked for, {} of {} are left; nothing was "
                    "sent: give a larger {budget} (to go on, with {resume})",
                    images,
                    purpose,
                    self.remaining,
                    self.budget,
                )
            )

    def charge(self, images: int, purpose: Purpose) -> int:
        """Charge a request that is about to be sent, on file first; its number.

        Raises BudgetExhausted, or RunError if the file cannot be written; nothing is charged then.
        """
        self.settle()
        self.replay_failures(
            self.requests
        )  # of the request that was in flight: they belong to this one
        self.require(images, purpose)
        if images < 1:
            raise ValueError(f"images: expected at least 1 in a request, got {images}")
        seq = self.requests + 1
        spent = self.spent + (images if purpose in CHARGED else 0)
        self._write(
            f'{{"seq":{seq},"event":"charge","purpose":"{purpose}",'
            f'"images":{images},"spent":{spent}'
        )
        self.requests = seq
        self._unanswered[seq] = Charge(images, purpose)
        self._count(seq, images, purpose)
        return seq

    def leave_out(self, seq: int, reason: str, images: int) -> None:
        """Note on file, before ``answered``, how many images of a charge were answered without a
        class.
        """
        self._write_event("no_answer", seq, images=images, reason=reason)
        self._left_out.setdefault(seq, Counter())[reason] += images

    def answered(self, seq: int) -> None:
        """Note that charge ``seq`` has a usable answer, recorded if there is a journal."""
        self._count_answers(self._unanswered.pop(seq), self._left_out.pop(seq, None))

    def refuse(self, seq: int, reason: str) -> None:
        """Give charge ``seq`` back: the server said that it did not serve it."""
        images, purpose = self._write_off("refused", seq, reason)
        self.refused += images
        self.reasons["refused"][reason] += 1
        self._count(self.position, -images, purpose)

    def fail(self, seq: int, reason: str) -> None:
        """Keep charge ``seq``, which may have been served, though there will be no answer to it."""
        self.failed += self._write_off("failed", seq, reason).images
        self.reasons["failed"][reason] += 1

    def record_beside(self, images: int) -> None:
        """Record images asked outside the run's queries, such as ``benign`` ones, before they are
        sent.
        """
        self._write_event("beside", self.position, purpose="benign", images=images)
        self.beside += images

    def replay(self, seq: int, images: int, purpose: Purpose) -> None:
        """Count charge ``seq`` again, whose answer comes from the journal; nothing is written.

        Raises RunError if the file knows no such charge without an answer.
        """
        charge = self._unanswered.get(seq)
        if charge != (images, purpose):
            raise RunError(
                f"ledger: expected charge {seq} to be {images} images for {purpose}, as the "
                "journal and this "
                f"run have it, got {charge}; ledger.jsonl and journal/ are not of one run, restore "
                "both"
            )
        charge = self._unanswered.pop(seq)
        self._count(max(seq, self.position), *charge)
        self._count_answers(charge, self._left_out.pop(seq, None))

    def replay_failures(self, seq: int) -> None:
        """Count again the failed charges up to number ``seq``; nothing is written."""
        for number in [number for number in self._failed_ahead if number <= seq]:
            charge = self._failed_ahead.pop(number)
            self.failed += charge.images
            self._count(max(number, self.position), *charge)

    def settle(self) -> None:
        """End the replay: write off charges whose answers are lost, and put the new budget in
        force.
        """
        if self._settled:
            return
        for seq in [*self._unanswered]:
            self.lost += self._write_off("lost", seq, "no answer on record after a restart").images
        if self._history.budget(self.position) != self._wanted_budget:
            facts = {"teacher": self.teacher} if self.teacher and not self._history.budgets else {}
            self._write_event(
                "budget", self.position, budget=self._wanted_budget, run=self.run, **facts
            )
        if self._begins:
            self._write_event("stretch", self.position, **self.stretches[-1])
        self._settled = True
        self._history = History()

    def state_dict(self) -> LedgerState:
        """Counters for a checkpoint, plain numbers, without ``transfer`` and ``benign`` charges."""
        purposes: tuple[Purpose, ...] = (*CHARGED, "evaluation")
        return {
            "seq": self.position,
            "images": {purpose: self._images[purpose] for purpose in purposes},
            "requests": self.requests,
            "refused": self.refused,
            "failed": self.failed,
            "lost": self.lost,
        }

    def sync(self) -> None:
        """Wait until the file is on the disk; done before a checkpoint, which must not be ahead of
        it.
        """
        if self._file is not None:
            self._file.sync()

    def begin(self, threads: int) -> None:
        """Note, as soon as the replay is over, that a stretch of the run began now."""
        self.stretches.append({"started": utc_now(), "threads": threads})
        self._begins = True

    def end(self) -> None:
        """Note that this stretch of the run ends now, once."""
        if self._begins and self._settled and "ended" not in self.stretches[-1]:
            self.stretches[-1]["ended"] = utc_now()
            self._write_event("ended", self.position, at=self.stretches[-1]["ended"])

    def close(self) -> None:
        """Close the file; closing twice is no error."""
        if self._file is not None:
            with contextlib.suppress(RunError):  # a full disk was said before
                self.end()
            self._file.close()

    def _count(self, seq: int, images: int, purpose: Purpose) -> None:
        self.position = seq
        self._images[purpose] += images
        self.spent += images if purpose in CHARGED else 0

    def _count_answers(self, charge: Charge, left_out: Counter[str] | None) -> None:
        left_out = left_out or Counter()
        self.given[charge.purpose] += charge.images - left_out.total()
        for reason, images in left_out.items():
            self.no_answer[reason][charge.purpose] += images

    def _write_off(self, event: str, seq: int, reason: str) -> Charge:
        """End a charge without an answer, on file first."""
        self._left_out.pop(seq, None)
        self._write_event(event, seq, images=self._unanswered[seq].images, reason=reason)
        return self._unanswered.pop(seq)

    def _write_event(self, event: str, seq: int, **details: Any) -> None:
        self._write(json.dumps({"seq": seq, "event": event, **details}, separators=(",", ":"))[:-1])

    def _write(self, members: str) -> None:
        if self._file is not None:
            check = zlib.crc32(members.encode(), self._check)
            self._file.append(f'{members},"check":"{check:08x}"}}\n'.encode())
            self._check = check


def utc_now() -> str:
    """The time by ISO 8601, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _history(path: Path | None, state: LedgerState) -> History:
    """The file's history, or what the state says without one; RunError if the two do not fit."""
    if path is None:
        spent = sum(state["images"].get(purpose, 0) for purpose in CHARGED)
        return History(
            spent=spent,
            requests=state["requests"],
            refused=state["refused"],
            lost=state["lost"],
        )
    history = read_history(path) if path.exists() else History()
    expected = dict.fromkeys(PURPOSES, 0) | state["images"]
    counted = history.images(until=state["seq"])
    if history.requests < state["seq"] or counted != expected:
        raise RunError(
            f"{path}: expected at least the {state['seq']} charges that the checkpoint counted "
            f"({expected}), "
            f"got {history.requests} ({counted}); restore the ledger that belongs to it, or start "
            "a new run"
        )
    return history
