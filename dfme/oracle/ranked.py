"""One oracle on several ranks: the first charges, records and asks; the others count the same, without files."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dfme.answers.asking import Reader
from dfme.compute import DeferredChecks
from dfme.errors import BudgetExhausted
from dfme.oracle.dispatch import Part
from dfme.oracle.journal import Journal
from dfme.oracle.ledger import Ledger, Purpose
from dfme.oracle.oracle import Oracle
from dfme.ranks import Ranks
from dfme.spec import Teacher

ASKED, ANSWERED, EXHAUSTED = range(3)
"""What the first rank says: a request is charged, whose rows all answer; the batch is answered; it is given up."""


class RankedOracle(Oracle):
    """The oracle of one rank. Every call is made by all ranks, with the same images.

    ``split``: the teacher is a network that every rank holds, so each answers its own rows of a request that the first
    one has charged; any other teacher only the first rank asks, and none of its answers is used before it is on record.
    """

    def __init__(
        self,
        teacher: Teacher,
        ledger: Ledger,
        journal: Journal | None,
        deferred: DeferredChecks,
        ranks: Ranks,
        split: bool,
        reader: Reader | None = None,
    ) -> None:
        super().__init__(ByRows(teacher, ranks) if split else teacher, ledger, journal, deferred, reader=reader)
        self.ranks, self._split = ranks, split
        if split and ranks.first:
            self._dispatcher.charged = lambda part: self._told(ASKED, part)
        self._told()  # where the budget stands

    @property
    def on_own_accelerator(self) -> bool:
        """As on every rank: what the teacher that the first one alone may ask runs on, the others do not know."""
        return self._split and super().on_own_accelerator

    def _obtain(self, queries_BCHW: Tensor, purpose: Purpose) -> Tensor:
        if not self.ranks.first:
            return self._follow(queries_BCHW)
        try:
            answers = super()._obtain(queries_BCHW, purpose)
        except BudgetExhausted:
            self._told(EXHAUSTED)
            raise
        self._told()
        return self.ranks.share(answers)

    def _follow(self, queries_BCHW: Tensor) -> Tensor:
        """Answer the rows of the requests that the first rank charges, until it has answers to all."""
        said, start, stop = self._told()
        while said == ASKED:
            with torch.no_grad(), torch.autocast(queries_BCHW.device.type, enabled=False):
                self._dispatcher.teacher(queries_BCHW[start:stop].clone())
            said, start, stop = self._told()
        if said == EXHAUSTED:
            raise BudgetExhausted("query budget: too few images are left to ask again what failed")
        form, device = self._no_answers(), self._device if self._split else torch.device("cpu")
        return self.ranks.share(torch.empty(len(queries_BCHW), *form.shape[1:], dtype=form.dtype, device=device))

    def _told(self, said: int = ANSWERED, part: Part | None = None) -> tuple[int, int, int]:
        """What the first rank says, and its ledger's counters."""
        start, images = (0, 0) if part is None else (part.start, len(part.query_BCHW))
        told = self.ranks.share(torch.tensor([said, start, start + images, *self.ledger.counts])).tolist()
        if not self.ranks.first:
            self.ledger.counts = told[3:]
        return told[0], told[1], told[2]


class ByRows:
    """A teacher of which every rank answers its own rows; all have the answers to all."""

    def __init__(self, teacher: Teacher, ranks: Ranks) -> None:
        self._teacher, self._ranks = teacher, ranks

    def __call__(self, images: Tensor) -> Tensor:
        return self._ranks.by_rows(self._teacher, images)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._teacher, name)
