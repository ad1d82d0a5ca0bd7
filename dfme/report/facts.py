"""What a run's numbers say: the answer in one sentence, its precision, and how soon the copy was good."""

import math
from dataclasses import dataclass

from dfme.report.run_files import RunFiles, Series

LEVELS = (0.5, 0.8, 0.9, 0.95)  # agreements whose price in queries is reported
Z_95 = 1.959964  # two-sided 95% quantile of the normal distribution


@dataclass(frozen=True)
class ScoredOn:
    """Images that the copy was scored on; ``held_back``: they are generated queries."""

    name: str
    images: int
    held_back: bool

    @property
    def phrase(self) -> str:
        count = f"{self.images:,} " if self.images else ""
        return f"{count}held-back generated queries" if self.held_back else f"the {count}evaluation images"


def scored_on(run: RunFiles) -> ScoredOn:
    """Images that the run's copy is scored on; of an unfinished run, by its configuration and ledger."""
    if run.summary is not None and "evaluation" in run.summary:
        told = run.summary["evaluation"]
        return ScoredOn(str(told["name"]), int(told["images"]), bool(told["held_back"]))
    name = str((run.config.get("evaluation") or {}).get("dataset", "none"))
    return ScoredOn(name, run.ledger.evaluation_queries, held_back=name == "none")


def wilson_interval(share: float, images: int) -> tuple[float, float]:
    """The 95% interval of a share counted on ``images`` independent images.

    Wilson's score interval (J. Am. Stat. Assoc. 22, 1927, 209-212), which holds its level near one too.
    """
    spread = Z_95**2 / images
    centre = (share + spread / 2) / (1 + spread)
    half = Z_95 / (1 + spread) * math.sqrt(share * (1 - share) / images + spread / (4 * images))
    return max(0.0, centre - half), min(1.0, centre + half)


def queries_to_reach(series: Series, level: float) -> int | None:
    """Queries at the first evaluation with at least ``level``; None if there is none."""
    return next((queries for queries, value in series if value >= level), None)


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
    copy = f"a copy that agrees with the {undefended}teacher on {agreement:.1%} of {on.phrase}"
    constant = (told.get("baselines") or {}).get("constant_agreement")
    beside = "" if constant is None else f", where one answer to everything would on {constant:.1%}"
    return f"{paid} gave {copy}{beside}." if run.summary else f"So far, {paid} gave {copy}."


def disagreements(run: RunFiles) -> list[str]:
    """Where summary.json says something else than the ledger's own lines add up to; empty as it should be."""
    told = run.summary or {}
    return [
        f"{name}: summary.json says {told[name]:,}, the lines of ledger.jsonl add up to {count:,}"
        for name in ("spent", "evaluation_queries", "refused", "failed", "no_answer", "lost")
        if told.get(name, count := getattr(run.ledger, name)) != count
    ]
