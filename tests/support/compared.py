"""Comparisons whose cells run in this process; outcomes made by hand; the rows of tables."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from small_runs import no_pictures

from dfme.audits.compare.engines import ENGINES
from dfme.audits.compare.engines.pool import WorkerPool
from dfme.audits.compare.figures import Figures, Outcome
from dfme.audits.compare.plan import Attempt, Cell, attempt
from dfme.audits.compare.processes import free
from dfme.cli.main import main

FIGURES = Figures(
    accuracy=0.9, agreement=0.92, kl=0.25, vote_accuracy=None, vote_agreement=None, teacher_accuracy=0.99,
    queries_to={0.5: 100, 0.8: 200, 0.9: 300, 0.95: None}, queries_to_teacher=300, collapsed=False,
    seconds=10.0, students=1, student_steps=3000, spent=400, curve=[(100, 0.5), (400, 0.92)], made_with="cpu",
)  # fmt: skip


class Here(WorkerPool):
    """An engine that runs its cells one after the other in this process; where one is to fail, it
    does.
    """

    failing = ""

    def run(self, cells: Iterable[Cell], ended: Callable[[Cell, int], bool], *_: object) -> None:
        for cell in cells:
            task = self._task(cell)
            free(task.directory)  # of one that a kill has left
            ended(cell, 1 if self.failing and self.failing in cell.name else main(list(task.words)))


@contextmanager
def cells_here() -> Iterator[None]:
    """The cells of comparisons and audits run in this process, and draw nothing."""
    with no_pictures(), pytest.MonkeyPatch.context() as patch:
        patch.setitem(ENGINES, "local", "compared:Here")
        patch.setattr(Here, "failing", "")
        yield


def cell_of(row: str, mode: str, budget: int, seed: int, made: Attempt | None = None) -> Cell:
    """A cell without a job: tables ask nothing of it."""
    job: Any = None
    return Cell(row, mode, budget, seed, job, made or Attempt())


def defended(defence: str, answers: str, seed: int, agreement: float, **more: Any) -> Outcome:
    """A finished run of an attacker on a defence; one that cannot be is not applicable."""
    made = attempt(defence, answers, "probabilities")
    cell = cell_of("frugal", "probabilities", 3000, seed, made)
    if made.reason:
        return Outcome(cell, "not applicable", made.reason)
    return Outcome(cell, "finished", figures=replace(FIGURES, agreement=agreement, **more))


def table_rows(text: str) -> list[dict[str, str]]:
    """The lines of the first table of a text, by head."""
    lines = [line.strip("|").split("|") for line in text.splitlines() if line[:1] == "|"]
    heads, _, *rows = [[part.strip() for part in line] for line in lines]
    return [dict(zip(heads, row, strict=False)) for row in rows]
