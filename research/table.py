"""The figures as text: an overview, a table per stage and condition, and all of it as JSON. No
torch.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dfme.config.sections import EstimatorConfig
from dfme.config.values import leaves
from dfme.report.markdown import table
from research.candidates import CANDIDATES, CONDITIONS, LIMITS, PUBLISHED
from research.measure import GradientRow

WHITE_BOX = (
    "White box: the teacher's own gradients are computed on this machine, to measure estimates "
    "against. "
    "No extraction does that."
)
LEGEND = """\
Per image of a batch, `queries` are what the meter counted. `cosine` is that of estimate and truth
at the generator's output, mean over images; `scale` the projection of the estimate on the truth,
1 where nothing is lost on average; `weights` the cosine of the resulting gradient in the
generator's weights, which is what trains it; `weights, summed` the same after summing over all
batches: noise averages out there, bias stays. Means over batches +- their standard deviation;
`ms` is the median time of an estimate for a whole batch. Each row is the gradient of its own
`objective` and is compared with the truth of that objective: rows of kl with kl's, on exact
answers. A row `*_reused` has the answer at the point itself for nothing, since the student's
first batch pays for it (`method.reuse`). Rows `limit` are no estimators: they are the gradient,
by autograd, of the loss on the answers as the wire rounds them; what they lack, more queries do
not find."""
BEST = """\
Best rows are those that ask no more than the published one ({published}); `times` is the ratio of
their weights' cosine to its: under the same condition, and where nothing is lost. `noise`: the
published cosine is within one standard deviation of 0; `none is clear`: the best is within
{clear:g} of its own. A row of kl is held against kl's truth there too."""

CLEAR = 2.0
"""Standard deviations from zero at which the best of many rows is more than luck (heuristic)."""

Section = tuple[str, str]
"""A further part of the report: its heading and its Markdown."""


@dataclass(frozen=True)
class StageFacts:
    """A stage without its networks."""

    share: float
    queries: int
    agreement: float

    def __str__(self) -> str:
        trained = (
            f"after {self.queries:,} queries ({self.share:.0%} of the budget)"
            if self.queries
            else "untrained"
        )
        return f"student {trained}, agreement {self.agreement:.1%}"


@dataclass
class GradientsResult:
    """Everything measured so far; ``facts`` say on what, with which settings, on which machine."""

    facts: dict[str, Any]
    pixels: int
    stages: list[StageFacts]
    rows: list[GradientRow]
    sections: list[Section]


def details(stage: StageFacts, condition: str, rows: Sequence[GradientRow]) -> str:
    """Every figure of one stage under one condition."""
    heads = (
        "estimator",
        "objective",
        "queries",
        "cosine",
        "scale",
        "weights",
        "weights, summed",
        "ms",
    )
    lines = [
        (
            row.estimator,
            row.objective,
            f"{row.queries:g}",
            _with_spread(row.cosine, row.cosine_sd),
            _with_spread(row.scale, row.scale_sd),
            _weights(row),
            f"{row.sum_cosine:.3f}",
            f"{row.milliseconds:.1f}",
        )
        for row in rows
    ]
    return f"### {CONDITIONS[condition].title}: {stage}\n\n{table(heads, lines)}"


def overview(result: GradientsResult) -> str:
    """The cosine of the weights' gradient, estimators by conditions, one table per stage, best rows
    named.
    """
    parts = []
    for stage in result.stages:
        rows = [row for row in result.rows if row.share == stage.share]
        conditions = list(dict.fromkeys(row.condition for row in rows))
        by_place = {(row.estimator, row.condition): row for row in rows}
        lines = []
        for estimator in _in_order(rows):
            line = [by_place.get((estimator, condition)) for condition in conditions]
            queries = dict.fromkeys(f"{row.queries:g}" for row in line if row)
            objectives = dict.fromkeys(row.objective for row in line if row)
            cells = [_weights(row) if row else "" for row in line]
            lines.append((estimator, " or ".join(objectives), " or ".join(queries), *cells))
        heads = (
            "estimator",
            "objective",
            "queries",
            *(CONDITIONS[name].title for name in conditions),
        )
        parts.append(f"### Weights' cosine: {stage}\n\n{table(heads, lines)}")
        if best := _best_rows(rows):
            parts.append(best)
    return "\n\n".join(
        [*parts, BEST.format(published=PUBLISHED, clear=CLEAR), _bound(result.pixels)]
    )


def markdown(result: GradientsResult) -> str:
    """The whole report."""
    facts = "\n".join(f"- {name}: {value}" for name, value in result.facts.items())
    measured = [
        details(stage, condition, chosen)
        for stage in result.stages
        for condition in CONDITIONS
        if (
            chosen := [
                row for row in result.rows if (row.share, row.condition) == (stage.share, condition)
            ]
        )
    ]
    further = [f"## {title}\n\n{text}" for title, text in result.sections]
    parts = [
        *(
            "# Estimated gradients beside the true ones",
            WHITE_BOX,
            facts,
            "## Overview",
            overview(result),
            *further,
        ),
        *("## The estimators", _glossary(result.rows), "## Every figure", LEGEND, *measured),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def as_json(result: GradientsResult) -> str:
    """Facts, stages and rows; a figure that is no number is null."""

    def finite(value: Any) -> Any:
        return None if isinstance(value, float) and not math.isfinite(value) else value

    content = {
        "facts": result.facts,
        "pixels": result.pixels,
        "stages": [asdict(stage) for stage in result.stages],
        "rows": [
            {name: finite(value) for name, value in asdict(row).items()} for row in result.rows
        ],
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def _best_rows(rows: Iterable[GradientRow]) -> str:
    """Per condition the best row at no more images than the published one, and its figures."""
    by_condition: dict[str, list[GradientRow]] = {}
    for row in rows:
        if row.estimator in CANDIDATES and math.isfinite(row.weights_cosine):
            by_condition.setdefault(row.condition, []).append(row)
    published = {
        name: row
        for name, here in by_condition.items()
        for row in here
        if row.estimator == PUBLISHED
    }
    lines = [
        _best(by_condition[name], row, published.get("exact")) for name, row in published.items()
    ]
    heads = (
        "condition",
        "best row",
        "objective",
        "weights",
        "published here",
        "times",
        "published, exact",
        "times",
    )
    return table(heads, lines) if lines else ""


def _best(
    here: Iterable[GradientRow], published: GradientRow, exact: GradientRow | None
) -> tuple[str, ...]:
    best = max(
        (row for row in here if row.queries <= published.queries),
        key=lambda row: row.weights_cosine,
    )
    clear = best.weights_cosine > CLEAR * best.weights_cosine_sd
    beside: list[str] = []
    for row in (published, exact):
        times = ""
        if clear and row is not None:
            noise = row.weights_cosine <= row.weights_cosine_sd
            times = "noise" if noise else f"{best.weights_cosine / row.weights_cosine:.1f}"
        beside += ["" if row is None else _weights(row), times]
    title = CONDITIONS[published.condition].title
    return (
        title,
        best.estimator if clear else "none is clear",
        best.objective,
        _weights(best),
        *beside,
    )


def _bound(pixels: int) -> str:
    """The mean cosine that chance allows one random direction, and the effect of a subspace."""
    one = math.exp(math.lgamma(pixels / 2) - math.lgamma((pixels + 1) / 2)) / math.sqrt(math.pi)
    return (
        f"In the {pixels} dimensions of an image, one random direction has a mean cosine of "
        f"{one:.3f} to any "
        "gradient (about sqrt(2 / (pi D))), and m of them have at most about sqrt(m / D): more "
        "needs "
        "directions that are not random, or more queries. Directions of a subspace (dct, range) "
        "find that "
        "part of the gradient sooner and nothing else ever: their cosine at the output tends to at "
        "most the "
        "root of the share of the gradient's energy within it, and what that part is worth to the "
        "weights "
        "`weights, summed` shows, the more batches the closer."
    )


def _glossary(rows: Sequence[GradientRow]) -> str:
    """The settings of each row that depart from the published ones."""
    plain = leaves(EstimatorConfig())
    lines = []
    for name in (name for name in _in_order(rows) if name in CANDIDATES):
        candidate = CANDIDATES[name]
        changed = {
            key: value for key, value in leaves(candidate.config).items() if value != plain[key]
        }
        settings = (
            ", ".join(f"{key} {value}" for key, value in changed.items())
            or "as published: DFME's estimator"
        )
        lines.append(
            f"- `{name}`: {settings}{', answers at the point reused' if candidate.reuse else ''}"
        )
    for row in rows:  # the choices of auto, once per condition and stage
        if row.estimator in CANDIDATES and CANDIDATES[row.estimator].config.kind == "auto":
            chosen = {
                key: row.settings[key]
                for key in ("objective", "space", "direction", "form", "directions")
            }
            text = (
                ", ".join(f"{key} {value}" for key, value in chosen.items())
                + f", step {row.settings['step']:.3g}"
            )
            lines.append(
                f"- `{row.estimator}` under {CONDITIONS[row.condition].title} at {row.share:.0%}: "
                f"{text}"
            )
    return "\n".join(lines)


def _in_order(rows: Iterable[GradientRow]) -> list[str]:
    """The names of the rows, as they are listed."""
    measured = {row.estimator for row in rows}
    return [name for name in (*CANDIDATES, *LIMITS) if name in measured]


def _weights(row: GradientRow) -> str:
    return _with_spread(row.weights_cosine, row.weights_cosine_sd)


def _with_spread(mean: float, deviation: float) -> str:
    return f"{mean:.3f} +- {deviation:.3f}"
