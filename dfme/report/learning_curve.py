"""How a learning curve goes on: queries to an agreement, from the beginning of a run. No torch.

From the pilot's end on, the logit of the agreement rises evenly with the logarithm of the queries, by a ``share`` of how
it rose before (a least-squares line through the pilot's scores, later ones counting more). The interval is what recorded
curves (docs/results/curves.csv) departed from that, in units of a width that grows with the distance: of the departures
the 5 % and 95 % quantiles, as in split conformal prediction (Vovk et al. 2005, Algorithmic Learning in a Random World).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from dfme.report.run_files import Series

GOALS = (0.8, 0.9, 0.95)
"""Agreements whose price is estimated."""

REACH = 10
"""Times the pilot's queries up to which the recorded curves go, and so the estimate."""

LEAST = 3
"""Scores that an estimate needs."""

FADING = 1.0
"""Scores count by their queries to this power, since a curve's end says most of how it goes on; heuristic."""

VARIANCE = 0.02
"""Of a score's logit, beside that of counting on so many images; heuristic."""

WIDTH = 0.5
"""Of the interval at the pilot's end, in units of what it grows by as the queries grow e-fold; heuristic."""


@dataclass(frozen=True)
class Law:
    """How curves go on: the ``share`` of the slope before, and the departures from it that bound the interval."""

    share: float
    low: float
    high: float


LAWS = {True: Law(0.3, -0.5, 0.5), False: Law(0.6, -0.5, 0.5)}
"""Of students that train in rounds, and of others. By: python tests/support/recorded_curves.py docs/results/curves.csv"""

MODEL = "The curve's logit is drawn on over the log of the queries; tested on recorded curves (docs/evaluation.md)."

Interval = tuple[float | None, float | None, float | None]
"""Lower end, expected value, upper end; None: beyond what can be said."""


@dataclass(frozen=True)
class Start:
    """The end of a pilot of so many ``queries``: logit of the agreement, its slope in log queries, and the width."""

    queries: int
    level: float
    slope: float
    width: float

    def departure(self, law: Law, queries: float, agreement: float) -> float:
        """Of a later score from the expected one, in widths."""
        distance = math.log(queries / self.queries)
        return (logit(agreement) - self.level - law.share * self.slope * distance) / (self.width + distance)

    def agreement(self, law: Law, queries: float) -> Interval:
        """The agreement after so many queries."""
        distance = math.log(queries / self.queries)
        expected = self.level + law.share * self.slope * distance
        low, middle, high = (expected + z * (self.width + distance) for z in (law.low, 0.0, law.high))
        return _share(low), _share(middle), _share(high)

    def queries_to(self, law: Law, agreement: float) -> Interval:
        """The queries at which it is reached; None beyond ``REACH`` times the pilot's."""
        low, expected, high = (self._crossing(law, z, logit(agreement)) for z in (law.high, 0.0, law.low))
        return low, expected, high

    def _crossing(self, law: Law, z: float, goal: float) -> float | None:
        missing, rise = goal - self.level - z * self.width, law.share * self.slope + z
        if missing <= 0:
            return float(self.queries)
        return self.queries * math.exp(missing / rise) if missing <= rise * math.log(REACH) else None


def logit(share: float) -> float:
    return math.log(share / (1 - share))


def _share(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def start_of(points: Series, images: int) -> Start | None:
    """Where an extrapolation from scores on so many images starts; None of fewer than ``LEAST``, or without a rise.

    None or all of the images counts as half of one.
    """
    if len(points) < LEAST:
        return None
    last, least = points[-1][0], 0.5 / images
    shares = [min(max(share, least), 1 - least) for _, share in points]
    errors = [1 / (images * share * (1 - share)) for share in shares]  # variances of the logits, by the delta method
    weights = [(q / last) ** FADING / (VARIANCE + error) for (q, _), error in zip(points, errors, strict=True)]
    places, logits = [math.log(queries / last) for queries, _ in points], [*map(logit, shares)]

    def mean(values: Iterable[float]) -> float:
        return sum(w * value for w, value in zip(weights, values, strict=True)) / sum(weights)

    x, y = mean(places), mean(logits)
    spread = mean((place - x) ** 2 for place in places)
    slope = mean((place - x) * value for place, value in zip(places, logits, strict=True)) / spread
    return Start(last, y - slope * x, slope, WIDTH + math.sqrt(errors[-1])) if slope > 0 else None


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


def pace(records: Iterable[Mapping[str, float | None]], in_rounds: bool) -> tuple[float, float]:
    """Seconds for a query, and for a student step where steps come in rounds; else those are part of a query's.

    By least squares over what passed between one evaluation and the next.
    """
    at = [[record.get(name) or 0.0 for name in ("queries", "student_steps", "seconds")] for record in records]
    scored = [(0.0, 0.0, 0.0), *(each for each in at if each[2])]
    gone = [[now - then for now, then in zip(*pair, strict=True)] for pair in pairwise(scored)]
    qq, qs, ss, qt, st = (sum(each[i] * each[j] for each in gone) for i, j in ((0, 0), (0, 1), (1, 1), (0, 2), (1, 2)))
    if not in_rounds or not ss or not qq:
        return scored[-1][2] / max(scored[-1][0], 1.0), 0.0
    whole = qq * ss - qs * qs
    query, step = (qt * ss - qs * st, st * qq - qs * qt) if whole > 0 else (0.0, 0.0)
    if query <= 0 or step <= 0:  # one of them is lost in what else took time
        return (0.0, st / ss) if query <= step else (qt / qq, 0.0)
    return query / whole, step / whole
