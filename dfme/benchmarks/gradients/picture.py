"""The picture of a comparison: how much of the truth reaches the generator's weights, condition by condition."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dfme.benchmarks.gradients.candidates import CANDIDATES, CONDITIONS, LIMITS
from dfme.benchmarks.gradients.measure import GradientRow
from dfme.benchmarks.gradients.table import GradientsResult
from dfme.config.estimator_settings import EstimatorConfig
from dfme.report.curves import GREY, frame, legend_entries, save_figure

# Told apart by colour-blind readers (Okabe and Ito): the shape says along what, the colour how it is sent.
SHAPES = {"sphere": "o", "orthogonal": "h", "dct": "s", "range": "D", "student": "^", "neighbours": "v"}
PLAIN, LONGER, LATTICE, KL, LATTICE_KL, AUTO = "#000000", "#999999", "#0072b2", "#d55e00", "#cc79a7", "#009e73"
LIMIT_LINES = {"l1": "-", "kl": "--", "cross_entropy": ":"}
WIDTH = 0.72
"""Share of the room between two conditions that a group of marks takes."""


def draw(findings: GradientsResult, path: Path) -> None:
    """One panel per stage: the weights' cosine with its spread over batches, grouped by condition."""
    names = _names(findings.rows)
    conditions = [name for name in CONDITIONS if any(row.condition == name for row in findings.rows)]
    width, height = 2.6 + 0.85 * max(4, len(conditions)), 1.1 + 2.2 * len(findings.stages)
    figure = Figure(figsize=(width, height), layout="constrained")
    grid: Any = figure.subplots(len(findings.stages), 1, sharex=True, sharey=True, squeeze=False)
    for axes, stage in zip(grid[:, 0], findings.stages, strict=True):
        rows = [row for row in findings.rows if row.share == stage.share and math.isfinite(row.weights_cosine)]
        for place, condition in enumerate(conditions):
            _group(axes, place, [row for row in rows if row.condition == condition], names)
        _frame(axes, len(conditions), str(stage))
    titles = [CONDITIONS[name].title.replace(", ", ",\n") for name in conditions]
    grid[-1, 0].set_xticks(range(len(conditions)), titles, fontsize=8)
    figure.supylabel("cosine to the weights' true gradient", fontsize=9)
    handles, labels = _legend(grid[:, 0], names)
    figure.legend(handles, labels, loc="outside lower center", ncols=int(width / 2.1), frameon=False, fontsize=8)
    save_figure(figure, path)


def _names(rows: Sequence[GradientRow]) -> list[str]:
    """The rows to draw: those marked for it; where none of those was measured, all."""
    measured = [name for name in CANDIDATES if any(row.estimator == name for row in rows)]
    marked = [name for name in measured if CANDIDATES[name].drawn]
    return marked or measured


def _style(config: EstimatorConfig) -> tuple[str, str]:
    """Colour and shape of a row's marks."""
    if config.kind == "auto":
        return AUTO, "*"
    shape = SHAPES.get(config.prior if config.kind == "prior_guided" else config.direction, "o")
    if config.objective == "kl":
        return (LATTICE_KL if config.space == "lattice" else KL), shape
    if config.space == "lattice":
        return LATTICE, shape
    return (LONGER if config.step != EstimatorConfig().step else PLAIN), shape


def _group(axes: Axes, place: int, rows: Sequence[GradientRow], names: Sequence[str]) -> None:
    """The marks above one condition, side by side, below the line of what could be reached at most."""
    found = {row.estimator: row for row in rows}
    here = [name for name in names if name in found]
    for order, name in enumerate(here):
        row, (colour, marker) = found[name], _style(CANDIDATES[name].config)
        axes.errorbar(
            place + WIDTH * ((order + 0.5) / len(here) - 0.5),
            row.weights_cosine,
            yerr=row.weights_cosine_sd,
            label=f"{name} ({row.queries:g} queries)",
            linestyle="none",
            marker=marker,
            markersize=8.0 if marker == "*" else 4.5,
            color=colour,
            elinewidth=0.9,
        )
    ends = [place - WIDTH / 2, place + WIDTH / 2]
    for limit in (found[name] for name in LIMITS if name in found):
        label, line = f"most that the answers allow, {limit.objective}", LIMIT_LINES[limit.objective]
        axes.plot(ends, [limit.weights_cosine] * 2, color=GREY, linewidth=1.0, linestyle=line, label=label)


def _frame(axes: Axes, conditions: int, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=9)
    axes.axhline(0.0, color=GREY, linewidth=0.8)
    for place in range(1, conditions):
        axes.axvline(place - 0.5, color="#e6e6e6", linewidth=0.8)
    axes.set_xlim(-0.5, conditions - 0.5)
    frame(axes, "y")
    axes.tick_params(axis="x", length=0)
    axes.tick_params(axis="y", labelsize=8)


def _legend(panels: Sequence[Axes], names: Sequence[str]) -> tuple[list[Any], list[str]]:
    """Each label once, whichever panel has it, in the order of the rows."""
    found = legend_entries(panels)
    order = {name: place for place, name in enumerate(names)}
    labels = sorted(found, key=lambda label: order.get(label.partition(" ")[0], len(order)))
    return [found[label] for label in labels], labels
