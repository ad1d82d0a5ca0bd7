"""What a clone will cost in queries, time and money: the law of learning curves, from a pilot on.

Of three numbers the first is the lower end of a 90 % interval, the second is expected, the third is
the upper end.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from dfme.config.settings import Job, StudentConfig
from dfme.report.metrics import MetricRecord
from dfme.report.run_files import Beside, Series, is_above
from dfme.run.recipes import with_variants
from dfme.spec import LabelMode
from dfme.version import __version__

GOALS = (0.8, 0.9, 0.95)  # agreements whose price is estimated
REACH = 10  # times the pilot's queries up to which the recorded curves go, and so the estimate
MIN_SCORES = 3  # that an estimate needs
GROWTH = 0.25
"""Growth of the interval's width as queries grow e-fold, in units of the pilot's end; heuristic."""


@dataclass(frozen=True)
class Law:
    """Law of curves: ``base`` and ``bend`` of the rise, and the departures that bound the
    interval.
    """

    base: float
    bend: float
    low: float
    high: float


LAW = Law(1.024, 0.178, -0.541, 0.926)
"""Made by: python -m research.recorded_curves docs/results/curves.csv"""


def logit(share: float) -> float:
    return math.log(share / (1 - share))


@dataclass(frozen=True)
class Start:
    """Start of a forecast after ``queries``: the agreement's logit, and its interval's width."""

    queries: int
    level: float
    width: float

    def lines(self, law: Law) -> list[tuple[float, float]]:
        """Level and slope of the lower end, of the expected value and of the upper end."""
        # a curve that is high already still rises
        rise = max(law.base - law.bend * self.level, 0.05)
        return [(self.level + z * self.width, rise + z * GROWTH) for z in (law.low, 0.0, law.high)]

    def agreement(self, law: Law, queries: float) -> list[float]:
        """The agreement after so many queries."""
        distance = math.log(queries / self.queries)
        return [1 / (1 + math.exp(-level - rise * distance)) for level, rise in self.lines(law)]

    def queries_to(self, law: Law, agreement: float) -> list[float | None]:
        """Queries until an agreement is reached; None beyond ``REACH`` times the pilot's."""
        queries: list[float | None] = []
        for level, rise in reversed(self.lines(law)):
            missing = max(0.0, logit(agreement) - level)
            if missing > max(rise, 0.0) * math.log(REACH):
                queries.append(None)
            elif missing:
                queries.append(self.queries * math.exp(missing / rise))
            else:
                queries.append(float(self.queries))
        return queries


def start_of(points: Series, images: int) -> Start | None:
    """Start of a forecast from scores on so many images, weighted by queries; None without a
    rise.
    """
    if len(points) < MIN_SCORES:
        return None
    least = 0.5 / images
    queries = np.array([count for count, _ in points])
    shares = [min(max(share, least), 1 - least) for _, share in points]
    weights = np.sqrt(queries / queries[-1])
    last = shares[-1]
    slope, level = np.polyfit(np.log(queries / queries[-1]), [*map(logit, shares)], 1, w=weights)
    # and the counting error of the last logit, by the delta method
    width = 1 + (images * last * (1 - last)) ** -0.5
    return Start(int(queries[-1]), float(level), width) if slope > 0 else None


def scores_after_training(records: Iterable[Mapping[str, float | None]]) -> Series:
    """(queries, agreement) of a run's records wherever the student had learnt since the last
    score.
    """
    scores: dict[float, tuple[int, float]] = {}
    for record in records:
        queries, agreement, steps = (
            record.get(name) for name in ("queries", "agreement", "student_steps")
        )
        if queries and agreement is not None and steps:
            scores.setdefault(steps, (int(queries), agreement))
    return [*scores.values()]


@dataclass(frozen=True)
class Elapsed:
    """How far a run has come at a record; or, of two, how far from one to the other."""

    queries: float = 0.0
    steps: float = 0.0
    seconds: float = 0.0

    def since(self, before: "Elapsed") -> "Elapsed":
        return Elapsed(
            self.queries - before.queries,
            self.steps - before.steps,
            self.seconds - before.seconds,
        )


@dataclass(frozen=True)
class RunPace:
    """Seconds per query, and per student step if some queries had none; else steps are in the
    first.
    """

    of_query: float
    of_step: float


def pace(records: Iterable[Mapping[str, float | None]]) -> RunPace:
    """The pace of a run's records."""
    scored = [Elapsed()]
    for record in records:
        names = ("queries", "student_steps", "seconds")
        progress = Elapsed(*(record.get(name) or 0.0 for name in names))
        if progress.seconds:
            scored.append(progress)
    parts = [later.since(earlier) for earlier, later in pairwise(scored)]
    idle = [part for part in parts if part.queries and not part.steps]
    timed = idle or parts
    of_query = math.fsum(part.seconds for part in timed) / math.fsum(part.queries for part in timed)
    last = scored[-1]
    training = max(0.0, last.seconds - of_query * last.queries)
    return RunPace(of_query, training / last.steps if idle and last.steps else 0.0)


@dataclass(frozen=True)
class Rest:
    """What a run still takes from the end of its pilot on.

    ``beside``: images that were paid for and teach nothing; ``wall``: seconds of the pilot.
    """

    student: StudentConfig
    spent: int
    beside: int
    wall: float
    pace: RunPace
    price: float | None

    def asking(self, queries: float) -> float:
        """Seconds to ask up to so many queries."""
        return (queries - self.spent) * self.pace.of_query

    def training(self, queries: float) -> float:
        """Seconds of the rounds up to there."""
        plan = zip(self.student.rounds, self.student.round_steps(math.ceil(queries)), strict=True)
        steps = sum(steps for share, steps in plan if share * queries > self.spent)
        return self.pace.of_step * steps

    def seconds(self, queries: int | None) -> float | None:
        """Of the whole run."""
        if queries is None:
            return None
        rest = self.asking(queries) + self.training(queries)
        return round(self.wall + rest, 1)

    def cost(self, queries: int | None) -> float | None:
        """Of the whole run; None without a price."""
        if queries is None or self.price is None:
            return None
        return round((queries + self.beside) * self.price / 1000, 6)


@dataclass(frozen=True)
class Level:
    """What an agreement costs: ``reached`` in the pilot, or three numbers of each kind."""

    agreement: float
    reached: int | None
    queries: list[int | None]
    seconds: list[float | None]
    cost: list[float | None]


@dataclass(frozen=True)
class CloneEstimate:
    """The contents of estimate.json.

    ``agreement_there``: three numbers, after ``farthest`` queries; None where the pilot's curve
    allows no estimate.
    """

    version: str
    pilot: int
    budget: int
    evaluation: Mapping[str, Any]
    baselines: Mapping[str, Any]
    agreement_balanced: float | None
    scores: Series
    levels: list[Level]
    farthest: int
    agreement_there: list[float] | None
    training_share: float | None
    recommended_budget: int | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def estimate(
    job: Job, summary: Mapping[str, Any], records: Sequence[MetricRecord], budget: int
) -> CloneEstimate:
    """What a run of this budget costs, by its pilot's summary and records."""
    points = scores_after_training(records)
    constant = Beside.of_summary(summary)
    images = summary["evaluation"]["images"]
    rises = bool(points) and is_above(points[-1][1], constant.constant, images)
    start = start_of(points, images) if rises else None
    rest = _rest(job, summary, records)
    levels = [_level(goal, constant.queries_to(points, goal), start, rest) for goal in GOALS]
    asking = rest.asking(budget)
    training = rest.training(budget)
    possible = start is not None and levels[-1].reached is None and budget > rest.spent
    return CloneEstimate(
        version=__version__,
        pilot=rest.spent,
        budget=budget,
        evaluation=summary["evaluation"],
        baselines=summary.get("baselines") or {},
        agreement_balanced=summary.get("agreement_balanced"),
        scores=points,
        levels=levels,
        farthest=REACH * rest.spent,
        agreement_there=None if start is None else start.agreement(LAW, REACH * rest.spent),
        training_share=training / (asking + training) if training else None,
        recommended_budget=_recommended(levels, budget) if possible else None,
    )


def _rest(job: Job, summary: Mapping[str, Any], records: Sequence[MetricRecord]) -> Rest:
    mode = LabelMode.parse(summary["label_mode"])
    shape = summary["teacher"]["shape"]
    measured = pace(records)
    rate = job.teacher_options.get("images_per_second")
    of_query = max(measured.of_query, 1 / rate if rate else 0.0)
    return Rest(
        student=with_variants(job, mode, shape)[0].config.student,
        spent=int(summary["spent"]),
        beside=summary["evaluation_queries"] + summary["lost"],
        wall=summary["wall_seconds"],
        pace=RunPace(of_query, measured.of_step),
        price=job.teacher.price_per_1000,
    )


def _level(goal: float, reached: int | None, start: Start | None, rest: Rest) -> Level:
    forecast: list[float | None] = [None] * 3
    if start is not None and reached is None:
        forecast = start.queries_to(LAW, goal)
    queries = [None if count is None else math.ceil(count) for count in forecast]
    seconds = [rest.seconds(count) for count in queries]
    return Level(goal, reached, queries, seconds, [rest.cost(count) for count in queries])


def _recommended(levels: Sequence[Level], budget: int) -> int:
    """The budget that is enough, at the upper end, for the highest level expected within it."""
    recommended = budget
    for level in levels:
        _, expected, upper = level.queries
        if expected and expected <= budget:
            recommended = min(upper or budget, budget)
    return recommended
