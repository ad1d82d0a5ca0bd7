"""What a run's numbers say: the answer in one sentence, its precision, and how soon the copy was good."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dfme.report.run_files import RunFiles, Series

LEVELS = (0.5, 0.8, 0.9, 0.95)
"""Agreements whose price in queries is reported."""

Z_95 = 1.959964
"""Two-sided 95% quantile of the normal distribution."""


@dataclass(frozen=True)
class ScoredOn:
    """What the copy was scored on: how many images, and whether they are held-back generated queries."""

    name: str
    images: int
    held_back: bool

    @property
    def phrase(self) -> str:
        """The images, as a sentence names them."""
        if self.held_back:
            return f"{self.images:,} held-back generated queries" if self.images else "held-back generated queries"
        return f"the {self.images:,} evaluation images" if self.images else "the evaluation images"


def scored_on(run: RunFiles) -> ScoredOn:
    """What the run's copy is scored on; of an unfinished run, what its configuration and ledger tell."""
    if run.summary is not None and "evaluation" in run.summary:
        told = run.summary["evaluation"]
        return ScoredOn(str(told["name"]), int(told["images"]), bool(told["held_back"]))
    name = str((run.config.get("evaluation") or {}).get("dataset", "none"))
    return ScoredOn(name, run.ledger.evaluation_queries, held_back=name == "none")


def wilson_interval(share: float, images: int) -> tuple[float, float]:
    """The 95% interval of a share counted on ``images`` independent images.

    Wilson's score interval (J. Am. Stat. Assoc. 22, 1927, 209-212): it stays within 0 and 1 and holds its
    level for shares near one, where the usual +- interval does not.
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
    agreement, on = final(run, "agreement"), scored_on(run).phrase
    if agreement is None:
        return f"After {run.ledger.spent:,} queries nothing has been evaluated yet."
    finished = run.summary is not None
    queries = run.summary["spent"] if run.summary is not None else run.series("agreement")[-1][0]
    paid = f"{queries:,} queries" + ("" if (price := final(run, "cost")) is None else f" at a price of {price:,.2f}")
    undefended = "undefended " if (run.summary or {}).get("defences") and not scored_on(run).held_back else ""
    copy = f"a copy that agrees with the {undefended}teacher on {agreement:.1%} of {on}"
    constant = ((run.summary or {}).get("baselines") or {}).get("constant_agreement")
    beside = "" if constant is None else f", where one answer to everything would on {constant:.1%}"
    return f"{paid} gave {copy}{beside}." if finished else f"So far, {paid} gave {copy}."


def final(run: RunFiles, metric: str) -> float | None:
    """The metric of the delivered student; of an unfinished run, of its latest evaluation."""
    if run.summary is not None:
        value: float | None = run.summary.get(metric)
        return value
    series = run.series(metric)
    return series[-1][1] if series else None


def disagreements(run: RunFiles) -> list[str]:
    """Where summary.json says something else than the ledger's own lines add up to; empty as it should be."""
    if run.summary is None:
        return []
    counted = {
        "spent": run.ledger.spent,
        "evaluation_queries": run.ledger.evaluation_queries,
        "refused": run.ledger.refused,
        "failed": run.ledger.failed,
        "lost": run.ledger.lost,
    }
    return [
        f"{name}: summary.json says {run.summary[name]:,}, the lines of ledger.jsonl add up to {count:,}"
        for name, count in counted.items()
        if run.summary.get(name, count) != count
    ]
