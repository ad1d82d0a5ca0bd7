"""What one finished run comes to, read from its directory, and what all runs come to over seeds. No
torch.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from dfme.audits.compare.plan import Cell
from dfme.errors import RunError
from dfme.report.metrics import read_metrics
from dfme.report.run_files import LEVELS, Beside, Series, read_summary
from dfme.statistics import Spread, middle_of, spread

OF_THE_TEACHER = 0.9  # share of the teacher's accuracy whose price in queries is reported

LOST = (
    0.8  # a run has collapsed whose last agreement is below this share of its own best on the way
)

SCORES = (
    "accuracy agreement kl vote_accuracy vote_agreement agreement_served agreement_relabelled "
    "agreement_balanced"
)
"""Entries of a summary that are figures as they are."""


LOST_WITH_THE_END = (
    "accuracy",
    "kl",
    "vote_accuracy",
    "vote_agreement",
    "collapsed",
    "agreement_served",
    "agreement_balanced",
    "agreement_relabelled",
    "queries_to_teacher",
)
"""Figures that are not known of a run that a quota ends before its budget."""


@dataclass(frozen=True)
class Figures:
    """The figures of a run. Shares are of the evaluation set; None: not known, or, of queries, not
    reached.

    ``queries_to``: images charged until the first evaluation with at least that agreement, and
    ``queries_to_teacher`` until ``OF_THE_TEACHER`` of the teacher's accuracy, both of a copy that
    is shown to be above a constant answer. ``constant_agreement``: of one answer to everything,
    ``constant_balanced`` the same balanced over the teacher's classes, as is
    ``agreement_balanced``. ``agreement_served``: with what honest users are answered;
    ``agreement_relabelled``: under the best renaming of the student's classes.
    """

    accuracy: float | None
    agreement: float | None
    kl: float | None
    vote_accuracy: float | None
    vote_agreement: float | None
    teacher_accuracy: float | None
    queries_to: dict[float, int | None]
    queries_to_teacher: int | None
    collapsed: bool | None
    seconds: float
    students: int
    student_steps: int
    spent: int
    curve: Series
    made_with: str
    constant_agreement: float | None = None
    agreement_served: float | None = None
    agreement_relabelled: float | None = None
    agreement_balanced: float | None = None
    constant_balanced: float | None = None
    images: int = 0

    @property
    def beside(self) -> Beside:
        """The figures of a constant answer on the same images."""
        return Beside(self.constant_agreement, self.constant_balanced, self.images)


def cut_off(figures: Figures, images: int) -> Figures:
    """Figures of a run cut at so many images by a quota: its curve up to there, and its last
    point.
    """
    if figures.spent <= images:
        return figures
    curve = [(queries, agreement) for queries, agreement in figures.curve if queries <= images]
    queries_to = {
        level: None if queries is None or queries > images else queries
        for level, queries in figures.queries_to.items()
    }
    unknown: dict[str, Any] = dict.fromkeys(LOST_WITH_THE_END)
    agreement = curve[-1][1] if curve else None
    return replace(
        figures, **unknown, agreement=agreement, curve=curve, queries_to=queries_to, spent=images
    )


def read_figures(run_dir: Path) -> Figures:
    """The figures of the finished run in ``run_dir``. RunError where its files are damaged or
    missing.
    """
    summary = read_summary(run_dir / "summary.json")
    if summary is None:
        raise RunError(f"{run_dir}: expected a finished run, but it has no summary.json; resume it")
    records = read_metrics(run_dir / "metrics.jsonl")
    agreement, accuracy = (series(records, name, summary) for name in ("agreement", "accuracy"))
    teacher = summary.get("teacher_accuracy")
    beside = Beside.of_summary(summary)
    of_labels = Beside(
        (summary.get("baselines") or {}).get("constant_accuracy"), None, beside.images
    )
    balanced = summary.get("agreement_balanced")
    collapsed = has_collapsed([value for _, value in agreement], summary["teacher"]["num_classes"])
    if (
        collapsed is False
        and beside.is_large
        and balanced is not None
        and beside.balanced is not None
    ):
        collapsed = is_nothing(balanced, beside.balanced)
    return Figures(
        **{name: summary.get(name) for name in SCORES.split()},
        teacher_accuracy=teacher,
        queries_to={level: beside.queries_to(agreement, level) for level in LEVELS},
        queries_to_teacher=None
        if teacher is None
        else of_labels.queries_to(accuracy, OF_THE_TEACHER * teacher),
        collapsed=collapsed,
        seconds=float(summary["wall_seconds"]),
        students=int(summary.get("students", 1)),
        student_steps=int(summary["student_steps"]),
        spent=int(summary["spent"]),
        curve=agreement,
        constant_agreement=beside.constant,
        constant_balanced=beside.balanced,
        images=beside.images,
        made_with=f"{summary['device']}, dfme {summary['version']}, torch {summary['torch']}",
    )


def series(records: list[dict[str, float | None]], name: str, summary: dict[str, Any]) -> Series:
    """(queries, value) of every evaluation, and of the student that was delivered."""
    points = [(int(record["queries"] or 0), record.get(name)) for record in records]
    points.append((summary["spent"], summary.get(name)))
    curve = [(queries, value) for queries, value in points if value is not None]
    return curve[:-1] if curve[-2:-1] == curve[-1:] else curve


def has_collapsed(agreements: list[float], classes: int) -> bool | None:
    """True if a run lost what it had, or never had anything, from its agreements in order; None
    without any.

    Lost: the last is below ``LOST`` of the best. Nothing: see ``is_nothing``, for a guess among K
    classes.
    """
    if not agreements:
        return None
    last = agreements[-1]
    return last < LOST * max(agreements) or is_nothing(last, 1 / classes)


def is_nothing(agreement: float, chance: float) -> bool:
    """True if it is at most twice chance, and at most ten points above it (heuristic).

    The ten points are less where the classes are fewer than ten.
    """
    return agreement <= min(2 * chance, chance + 0.1)


@dataclass(frozen=True)
class Reached:
    """Queries until a level was reached, over seeds: ``spread`` where all did, else how many and
    the median.

    That is over all seeds, one that did not get there counting as more than any number; None if it
    is such.
    """

    reached: int
    seeds: int
    spread: Spread | None
    median: float | None

    def __str__(self) -> str:
        if self.spread is not None:
            return self.spread.text("{:,.0f}")
        if not self.reached:
            return "not reached"
        return f"{self.reached} of {self.seeds}" + (
            "" if self.median is None else f": {self.median:,.0f}"
        )


def reached(queries: Sequence[int | None]) -> Reached:
    """Spread of the queries that each seed needed; None is a seed that never got there."""
    count = sum(needed is not None for needed in queries)
    if count == len(queries):
        return Reached(count, len(queries), spread(queries), None)
    return Reached(count, len(queries), None, middle_of(queries))


RunState = Literal["finished", "failed", "waiting", "not applicable"]


@dataclass(frozen=True)
class Outcome:
    """Outcome of a cell: ``state`` is finished (with ``figures``), failed, waiting or not
    applicable.

    ``shared``: the defence in whose cell the run is listed, where the cell has none of its own.
    """

    cell: Cell
    state: RunState
    reason: str = ""
    figures: Figures | None = None
    shared: str = ""


@dataclass(frozen=True)
class ComparisonResult:
    """All that is known of a comparison so far; ``facts`` say of what, how and where.

    ``unequal``: in what rows differ besides methods. ``bills``: what stacks of defences cost honest
    users.
    """

    title: str
    facts: dict[str, str]
    outcomes: tuple[Outcome, ...]
    unequal: str = ""
    bills: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def beside(self) -> Beside:
        """The figures of a constant answer, which all cells have: they are scored on the same
        images.

        Of held-back queries, which are a run's own, those of the cell where they are largest.
        """
        constants = [figures.beside for figures in finished(self.outcomes)]
        return max(constants, key=lambda beside: beside.constant or 0.0, default=Beside())

    @property
    def defended(self) -> bool:
        """True if there is more to compare than rows: a defence, or an attacker by name."""
        return any(outcome.cell.label != outcome.cell.row for outcome in self.outcomes)

    def groups(self) -> list[tuple[str, int]]:
        """The label modes and budgets that have a table each."""
        cells = [outcome.cell for outcome in self.outcomes]
        return list(dict.fromkeys((cell.mode, cell.budget) for cell in cells))

    def rows(self, mode: str, budget: int) -> dict[str, list[Outcome]]:
        """The outcomes of one table by row, with its defence and attacker, in order."""
        rows: dict[str, list[Outcome]] = {}
        for outcome in self.outcomes:
            cell = outcome.cell
            if (cell.mode, cell.budget) == (mode, budget):
                rows.setdefault(cell.label, []).append(outcome)
        return rows


def finished(outcomes: Iterable[Outcome]) -> list[Figures]:
    """The figures of those that have some."""
    return [outcome.figures for outcome in outcomes if outcome.figures is not None]
