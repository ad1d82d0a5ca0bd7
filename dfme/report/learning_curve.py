"""How a learning curve goes on: queries to an agreement, from the beginning of a run. No torch.

From the pilot's end on, the logit of the agreement rises evenly with the logarithm of the queries, and the less the
higher it is there: by ``base`` - ``bend`` * level as they grow e-fold. The level is that of a least-squares line
through the pilot's scores; the line's own slope foretold nothing more. The interval is what recorded curves departed
from that (docs/results/curves.csv): the 5 % and 95 % quantiles of their departures, each from what the curves of other
tasks and methods say, as in the CV+ of Barber et al. 2021 (Annals of Statistics 49, 486-507).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dfme.report.run_files import Series

GOALS = (0.8, 0.9, 0.95)
"""Agreements whose price is estimated."""

REACH = 10
"""Times the pilot's queries up to which the recorded curves go, and so the estimate."""

MIN_SCORES = 3
"""Scores that an estimate needs."""

GROWTH = 0.25
"""Of the interval's width as the queries grow e-fold, in units of that at the pilot's end; heuristic."""


@dataclass(frozen=True)
class Law:
    """How curves go on: ``base`` and ``bend`` of the rise, and the departures that bound the interval."""

    base: float
    bend: float
    low: float
    high: float


LAW = Law(1.013, 0.272, -0.708, 0.86)
"""Made by: python tests/support/recorded_curves.py docs/results/curves.csv"""


def logit(share: float) -> float:
    return math.log(share / (1 - share))


@dataclass(frozen=True)
class Start:
    """The end of a pilot of so many ``queries``: the logit of the agreement, and the interval's width there."""

    queries: int
    level: float
    width: float

    def lines(self, law: Law) -> list[tuple[float, float]]:
        """Level and slope of the lower end, of the expected value and of the upper end."""
        rise = max(law.base - law.bend * self.level, 0.05)  # a curve that is high already still rises
        return [(self.level + z * self.width, rise + z * GROWTH) for z in (law.low, 0.0, law.high)]

    def agreement(self, law: Law, queries: float) -> list[float]:
        """Lower end, expected value and upper end after so many queries."""
        distance = math.log(queries / self.queries)
        return [1 / (1 + math.exp(-level - rise * distance)) for level, rise in self.lines(law)]

    def queries_to(self, law: Law, agreement: float) -> list[float | None]:
        """Lower end, expected value and upper end of when it is reached; None beyond ``REACH`` times the pilot's."""
        found: list[float | None] = []
        for level, rise in reversed(self.lines(law)):
            missing = max(0.0, logit(agreement) - level)
            reached = missing <= max(rise, 0.0) * math.log(REACH)
            found.append(self.queries * math.exp(missing / rise if missing else 0.0) if reached else None)
        return found


def start_of(points: Series, images: int) -> Start | None:
    """Where scores on so many images are drawn on from, weighted by queries; None of too few, or without a rise."""
    if len(points) < MIN_SCORES:
        return None
    least, queries = 0.5 / images, np.array([each for each, _ in points])
    shares = [min(max(share, least), 1 - least) for _, share in points]
    weights, last = np.sqrt(queries / queries[-1]), shares[-1]
    slope, level = np.polyfit(np.log(queries / queries[-1]), [*map(logit, shares)], 1, w=weights)
    width = 1 + (images * last * (1 - last)) ** -0.5  # and the counting error of the last logit, by the delta method
    return Start(int(queries[-1]), float(level), width) if slope > 0 else None


def scores_after_training(records: Iterable[Mapping[str, float | None]]) -> Series:
    """(queries, agreement) of a run's records wherever the student had learnt since the last score."""
    found: dict[float, tuple[int, float]] = {}
    for record in records:
        queries, agreement, steps = (record.get(name) for name in ("queries", "agreement", "student_steps"))
        if queries and agreement is not None and steps:
            found.setdefault(steps, (int(queries), agreement))
    return [*found.values()]


def pace(records: Iterable[Mapping[str, float | None]]) -> tuple[float, float]:
    """Seconds of a query, and of a student step where there are queries without any; else steps are part of those."""
    at = ([record.get(name) or 0.0 for name in ("queries", "student_steps", "seconds")] for record in records)
    scored = [[0.0] * 3, *(each for each in at if each[2])]
    gone = [[now - then for then, now in zip(*pair, strict=True)] for pair in pairwise(scored)]
    idle = [each for each in gone if each[0] and not each[1]]
    of_query = math.fsum(each[2] for each in idle or gone) / math.fsum(each[0] for each in idle or gone)
    queries, steps, seconds = scored[-1]
    return of_query, max(0.0, seconds - of_query * queries) / steps if idle and steps else 0.0
