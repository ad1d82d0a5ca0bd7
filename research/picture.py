"""Picture of a comparison: share of the true gradient at the generator's weights."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dfme.config.sections import EstimatorConfig
from dfme.report.curves import GREY, frame, legend_entries, save_figure
from research.candidates import CANDIDATES, CONDITIONS, LIMITS
from research.measure import GradientRow
from research.table import GradientsResult

# Distinct for colour-blind readers (Okabe and Ito): the shape is the direction, the colour the way
# to send it.
SHAPES = {
    "sphere": "o",
    "orthogonal": "h",
    "dct": "s",
    "range": "D",
}
PLAIN, LONGER, LATTICE, KL, LATTICE_KL, AUTO = (
    "#000000",
    "#999999",
    "#0072b2",
    "#d55e00",
    "#cc79a7",
    "#009e73",
)
LIMIT_LINES = {"l1": "-", "kl": "--", "cross_entropy": ":"}
WIDTH = 0.72
"""Share of the room between two conditions that a group of marks takes."""


def draw(result: GradientsResult, path: Path) -> None:
    """One panel per stage: the weights' cosine with its spread over batches, grouped by condition.

    Rows that are marked for it are drawn; where none of those was measured, all.
    """
    measured = [name for name in CANDIDATES if any(row.estimator == name for row in result.rows)]
    names = [name for name in measured if CANDIDATES[name].drawn] or measured
    conditions = [name for name in CONDITIONS if any(row.condition == name for row in result.rows)]
    width = 2.6 + 0.85 * max(4, len(conditions))
    figure = Figure(figsize=(width, 1.1 + 2.2 * len(result.stages)), layout="constrained")
    grid: Any = figure.subplots(len(result.stages), 1, sharex=True, sharey=True, squeeze=False)
    for axes, stage in zip(grid[:, 0], result.stages, strict=True):
        rows = [
            row
            for row in result.rows
            if row.share == stage.share and math.isfinite(row.weights_cosine)
        ]
        for place, condition in enumerate(conditions):
            _group(axes, place, [row for row in rows if row.condition == condition], names)
        axes.set_title(str(stage), loc="left", fontsize=9)
        axes.axhline(0.0, color=GREY, linewidth=0.8)
        for place in range(1, len(conditions)):
            axes.axvline(place - 0.5, color="#e6e6e6", linewidth=0.8)
        axes.set_xlim(-0.5, len(conditions) - 0.5)
        frame(axes, "y")
        axes.tick_params(axis="x", length=0)
        axes.tick_params(axis="y", labelsize=8)
    titles = [CONDITIONS[name].title.replace(", ", ",\n") for name in conditions]
    grid[-1, 0].set_xticks(range(len(conditions)), titles, fontsize=8)
    figure.supylabel("cosine to the weights' true gradient", fontsize=9)
    entries = legend_entries(grid[:, 0])
    order = {name: place for place, name in enumerate(names)}
    labels = sorted(entries, key=lambda label: order.get(label.partition(" ")[0], len(order)))
    handles = [entries[label] for label in labels]
    columns = int(width / 2.1)
    figure.legend(
        handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=8
    )
    save_figure(figure, path)


def _style(config: EstimatorConfig) -> tuple[str, str]:
    """Colour and shape of a row's marks."""
    if config.kind == "auto":
        return AUTO, "*"
    shape = SHAPES.get(config.direction, "o")
    if config.objective == "kl":
        return (LATTICE_KL if config.space == "lattice" else KL), shape
    if config.space == "lattice":
        return LATTICE, shape
    return (LONGER if config.step != EstimatorConfig().step else PLAIN), shape


def _group(axes: Axes, place: int, rows: Sequence[GradientRow], names: Sequence[str]) -> None:
    """The marks above one condition, side by side, below the line of the most that could be
    reached.
    """
    by_name = {row.estimator: row for row in rows}
    present = [name for name in names if name in by_name]
    for order, name in enumerate(present):
        row = by_name[name]
        colour, marker = _style(CANDIDATES[name].config)
        axes.errorbar(
            place + WIDTH * ((order + 0.5) / len(present) - 0.5),
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
    for limit in (by_name[name] for name in LIMITS if name in by_name):
        label = f"most that the answers allow, {limit.objective}"
        line = LIMIT_LINES[limit.objective]
        axes.plot(
            ends, [limit.weights_cosine] * 2, color=GREY, linewidth=1.0, linestyle=line, label=label
        )
