"""What a run's numbers say: the answer in one sentence, its precision, and how soon the copy was
good.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dfme.report.run_files import RunFiles, Series
from dfme.statistics import wilson_interval

LEVELS = (0.5, 0.8, 0.9, 0.95)  # agreements whose price in queries is reported
MISLEADING = (
    0.5  # a constant answer that agrees on more makes a plain agreement say little; heuristic
)
BALANCED = "balanced over the teacher's classes"


@dataclass(frozen=True)
class ScoredOn:
    """Images that the copy was scored on; ``held_back``: they are generated queries."""

    name: str
    images: int
    held_back: bool

    @property
    def phrase(self) -> str:
        count = f"{self.images:,} " if self.images else ""
        return (
            f"{count}held-back generated queries"
            if self.held_back
            else f"the {count}evaluation images"
        )


def scored_on(run: RunFiles) -> ScoredOn:
    """Images that the run's copy is scored on; of an unfinished run, by its configuration and
    ledger.
    """
    if run.summary is not None and "evaluation" in run.summary:
        told = run.summary["evaluation"]
        return ScoredOn(str(told["name"]), int(told["images"]), bool(told["held_back"]))
    name = str((run.config.get("evaluation") or {}).get("dataset", "none"))
    return ScoredOn(name, run.ledger.evaluation_queries, held_back=name == "none")


def is_above(share: float, constant: float | None, images: int) -> bool:
    """True if the 95% interval of a share lies above that of a constant answer; also if none is
    known.
    """
    if constant is None or images < 1:
        return True
    return wilson_interval(share, images)[0] > constant


@dataclass(frozen=True)
class Beside:
    """What stands beside every agreement on the same images: the figures of a constant answer,
    which gives the teacher's most frequent class to all of them (docs/evaluation.md).

    ``constant``: its agreement. ``balanced``: the same balanced over the teacher's classes. None:
    not known.
    """

    constant: float | None = None
    balanced: float | None = None
    images: int = 0

    @staticmethod
    def of_summary(summary: Mapping[str, Any]) -> "Beside":
        """By a run's summary.json, of any release."""
        baselines = summary.get("baselines") or {}
        images = (summary.get("evaluation") or {}).get("images") or 0
        return Beside(
            baselines.get("constant_agreement"), baselines.get("constant_balanced"), images
        )

    @property
    def is_large(self) -> bool:
        """True if a constant answer agrees on more than half, so that a plain agreement
        misleads.
        """
        return self.constant is not None and self.constant > MISLEADING

    def reaches(self, share: float, level: float) -> bool:
        """True if an agreement is at least the level, and shown to be above that of a constant
        answer.
        """
        return share >= level and is_above(share, self.constant, self.images)

    def queries_to(self, series: Series, level: float) -> int | None:
        """Queries at the first evaluation that ``reaches`` the level; None if there is none."""
        return next((queries for queries, share in series if self.reaches(share, level)), None)

    def text(self, share: float, balanced: float | None = None, form: str = "{:.2%}") -> str:
        """An agreement with what stands beside it, for a line."""
        text = form.format(share)
        if self.constant is None:
            return text
        constant = form.format(self.constant)
        if self.is_large and balanced is not None:
            text += f", balanced {form.format(balanced)}"
        if self.is_large and self.balanced is not None:
            constant += f", balanced {form.format(self.balanced)}"
        return f"{text} (constant answer {constant})"


def answer(run: RunFiles) -> str:
    """The run's result in one sentence."""
    agreement = run.final("agreement")
    on = scored_on(run)
    if agreement is None:
        return f"After {run.ledger.spent:,} queries nothing has been evaluated yet."
    told = run.summary or {"spent": run.series("agreement")[-1][0]}
    paid = f"{told['spent']:,} queries"
    if (price := run.final("cost")) is not None:
        paid += f" at a price of {price:,.2f}"
    undefended = "undefended " if told.get("defences") and not on.held_back else ""
    whom = f"the {undefended}teacher on {agreement:.1%} of {on.phrase}"
    beside = beside_of(run)
    said = f"a copy that agrees with {whom}"
    if beside.constant is not None:
        is_copy = is_above(agreement, beside.constant, beside.images)
        said = said if is_copy else f"no copy: what they taught agrees with {whom}"
        said += f", where one answer to everything would on {beside.constant:.1%}"
    balanced = run.final("agreement_balanced")
    if beside.is_large and balanced is not None:
        said += f"; {BALANCED} it agrees on {balanced:.1%}"
        said += (
            ""
            if beside.balanced is None
            else f", one answer to everything on {beside.balanced:.1%}"
        )
    return f"{paid} gave {said}." if run.summary else f"So far, {paid} gave {said}."


def beside_of(run: RunFiles) -> Beside:
    """What stands beside the run's agreement; of an unfinished run, by its latest record."""
    if run.summary is not None:
        return Beside.of_summary(run.summary)
    return Beside(run.final("constant_agreement"), None, scored_on(run).images)


def disagreements(run: RunFiles) -> list[str]:
    """Where summary.json says something else than the ledger's own lines add up to; empty as it
    should be.
    """
    told = run.summary or {}
    return [
        f"{name}: summary.json says {told[name]:,}, the lines of ledger.jsonl add up to {count:,}"
        for name in ("spent", "evaluation_queries", "refused", "failed", "no_answer", "lost")
        if told.get(name, count := getattr(run.ledger, name)) != count
    ]
