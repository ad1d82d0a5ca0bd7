"""How a learning curve goes on: queries to an agreement, from the beginning of a run. No torch.

From the pilot's end on, the logit of the agreement rises evenly with the logarithm of the queries, by a ``share`` of
how it rose before (a least-squares line through the pilot's scores, later ones counting more). The interval is what
recorded curves (docs/results/curves.csv) departed from that, in units of a width that grows with the distance: of the
departures the 5 % and 95 % quantiles, as in split conformal prediction (Vovk et al. 2005, Algorithmic Learning in a
Random World).
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

LEAST = 3
"""Scores that an estimate needs."""

WIDTH = 0.5
"""Of the interval at the pilot's end, in units of what it grows by as the queries grow e-fold; heuristic."""

MODEL = """in brackets: 90 % intervals. The logit of the agreement is drawn on over the logarithm of the queries; what
recorded curves departed from that makes the interval (docs/evaluation.md)"""


@dataclass(frozen=True)
class Law:
    """How curves go on: the ``share`` of the slope before, and the departures from it that bound the interval."""

    share: float
    low: float
    high: float


LAW = Law(0.6, -0.4, 0.4)
"""Made by: python tests/support/recorded_curves.py docs/results/curves.csv"""


@dataclass(frozen=True)
class Start:
    """The end of a pilot of so many ``queries``: logit of the agreement, its slope in log queries, and the width."""

    queries: int
    level: float
    slope: float
    width: float

    def lines(self, law: Law) -> list[tuple[float, float]]:
        """Level and slope of the interval's lower end, of the expected value and of the upper end."""
        return [(self.level + z * self.width, law.share * self.slope + z) for z in (law.low, 0.0, law.high)]

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


def logit(share: float) -> float:
    return math.log(share / (1 - share))


def start_of(points: Series, images: int) -> Start | None:
    """Where an extrapolation from scores on so many images starts; None of fewer than ``LEAST``, or without a rise.

    A score counts by its queries, since a curve's end says most of how it goes on. None or all is half an image off.
    """
    if len(points) < LEAST:
        return None
    least, queries = 0.5 / images, np.array([each for each, _ in points])
    shares = [min(max(share, least), 1 - least) for _, share in points]
    weights, last = np.sqrt(queries / queries[-1]), shares[-1]
    slope, level = np.polyfit(np.log(queries / queries[-1]), [*map(logit, shares)], 1, w=weights)
    error = math.sqrt(1 / (images * last * (1 - last)))  # of the last logit, by the delta method
    return Start(int(queries[-1]), float(level), float(slope), WIDTH + error) if slope > 0 else None


def scores_after_training(records: Iterable[Mapping[str, float | None]]) -> Series:
    """(queries, agreement) of a run's records wherever the student had learnt since the last score."""
    found: Series = []
    before = 0.0
    for record in records:
        queries, agreement, steps = (record.get(name) for name in ("queries", "agreement", "student_steps"))
        if queries and agreement is not None and steps and steps != before:
            found.append((int(queries), agreement))
            before = steps
    return found


def pace(records: Iterable[Mapping[str, float | None]]) -> tuple[float, float]:
    """Seconds for a query, as between evaluations without a step; and for a student step, of what is left.

    Where steps follow each batch they are part of a query's seconds.
    """
    at = [[record.get(name) or 0.0 for name in ("queries", "student_steps", "seconds")] for record in records]
    scored = [[0.0] * 3, *(each for each in at if each[2])]
    gone = [[now - then for then, now in zip(*pair, strict=True)] for pair in pairwise(scored)]
    idle = [each for each in gone if each[0] and not each[1]]
    queries, steps, seconds = scored[-1]
    of_query = math.fsum(each[2] for each in idle or gone) / math.fsum(each[0] for each in idle or gone)
    return of_query, max(0.0, seconds - of_query * queries) / steps if idle and steps else 0.0
