"""The curves of a comparison: agreement against queries, a line per row with the spread of its
seeds.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dfme.audits.compare.attacked import best_rows
from dfme.audits.compare.figures import ComparisonResult, Outcome, finished
from dfme.audits.compare.plan import count_text
from dfme.report.curves import GREY, legend_entries, query_axis, save_figure, share_axis, without
from dfme.report.run_files import Series

# Ten that colour-blind readers tell apart (Petroff 2021, arXiv 2107.02270); in grey print their
# dashes and marks do.
COLOURS = (
    "#3f90da",
    "#ffa90e",
    "#bd1f01",
    "#94a4a2",
    "#832db6",
    "#a96b59",
    "#e76300",
    "#b9ac70",
    "#717581",
    "#92dadd",
)
DASHES = ("-", "--", "-.", ":")
TEACHER = "the teacher's accuracy"
CONSTANT = "a constant answer"
MARKS = ("o", "s", "^", "D", "v", "P", "X", "h")


def draw(findings: ComparisonResult, path: Path) -> bool:
    """One panel per label mode and budget; False, and no picture, where nothing was evaluated
    yet.
    """
    without(path.with_suffix({".png": ".pdf", ".pdf": ".png"}[path.suffix]))
    groups = findings.groups()
    modes = list(dict.fromkeys(mode for mode, _ in groups))
    budgets = list(dict.fromkeys(count for _, count in groups))
    rows_of = best_rows if findings.defended else ComparisonResult.rows
    tables = {(mode, budget): rows_of(findings, mode, budget) for mode, budget in groups}
    rows = list(dict.fromkeys(row for table in tables.values() for row in table))
    if not any(_curves([outcome]) for outcome in findings.outcomes):
        return without(path)
    wide = 1.0 + 4.6 * len(modes)
    columns = max(
        1, min(3 * len(modes), len(rows) + 1, int(wide / (0.6 + 0.08 * max(map(len, rows)))))
    )
    lines = -(-(len(rows) + 1) // columns)
    figure = Figure(
        figsize=(wide, (0.9 + 3.4 * len(budgets) + 0.2 * max(0, lines - 3))), layout="constrained"
    )
    grid: Any = figure.subplots(len(budgets), len(modes), squeeze=False, sharey=True)
    for place, budget in enumerate(budgets):
        for axes, mode in zip(grid[place], modes, strict=True):
            _panel(axes, tables[mode, budget], rows)
            if findings.beside.is_large and findings.beside.constant is not None:
                axes.axhline(findings.beside.constant, color=GREY, linestyle="-.", label=CONSTANT)
            query_axis(axes, [curve for curve in _curves(findings.outcomes) if curve])
            axes.set_title(f"{mode}, {count_text(budget)} queries", loc="left", fontsize=10)
        grid[place, 0].set_ylabel("agreement with the teacher")
    title = f"teacher: {findings.facts['teacher']}"
    if findings.defended:
        title += "\nthe best attacker of each defence"
    figure.suptitle(title, x=0.01, ha="left", fontsize=10, parse_math=False)
    entries = legend_entries(grid.flat)
    labels = [label for label in (*rows, TEACHER, CONSTANT) if label in entries]
    handles = [entries[label] for label in labels]
    figure.legend(
        handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=9
    )
    return save_figure(figure, path)


def mean_and_band(
    curves: Sequence[Series],
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Queries, and mean, least and greatest value of the curves there.

    Where all of them have begun and none has ended: at every number of queries at which one was
    evaluated, the others by linear interpolation.
    """
    first = max(curve[0][0] for curve in curves)
    last = min(curve[-1][0] for curve in curves)
    at_N = np.array(
        sorted({queries for curve in curves for queries, _ in curve if first <= queries <= last})
    )
    # of one number of queries the last: a student may be scored again after the budget is spent
    lines = [dict(curve) for curve in curves]
    values_SN = np.stack([np.interp(at_N, [*line], [*line.values()]) for line in lines])
    return at_N, values_SN.mean(axis=0), values_SN.min(axis=0), values_SN.max(axis=0)


def draw_row(
    axes: Axes, label: str, curves: Sequence[Series], place: int, band: bool = True
) -> None:
    """The mean of a row's curves, in the look of its place, and the band from the least to the
    greatest.
    """
    again = place // len(COLOURS)  # a colour that comes again has other dashes and another mark
    colour = COLOURS[place % len(COLOURS)]
    at_N, mean_N, low_N, high_N = mean_and_band(curves)
    if band:
        axes.fill_between(at_N, low_N, high_N, color=colour, alpha=0.15, linewidth=0)
    axes.plot(
        at_N,
        mean_N,
        label=label,
        color=colour,
        markevery=max(1, len(at_N) // 8),
        linestyle=DASHES[(place + again) % len(DASHES)],
        linewidth=1.5,
        marker=MARKS[(place + again) % len(MARKS)],
        markersize=3.5,
    )


def _panel(axes: Axes, table: dict[str, list[Outcome]], rows: Sequence[str]) -> None:
    for row, outcomes in table.items():
        if curves := _curves(outcomes):  # of more lines than colours nobody tells the bands apart
            draw_row(axes, row, curves, rows.index(row), band=len(rows) <= len(COLOURS))
    teacher = set[float | None]()
    for outcomes in table.values():
        teacher.update(figures.teacher_accuracy for figures in finished(outcomes))
    for accuracy in (value for value in teacher if value is not None):
        axes.axhline(accuracy, color=GREY, linewidth=0.9, linestyle=":", label=TEACHER)
    share_axis(axes)


def _curves(outcomes: Sequence[Outcome]) -> list[Series]:
    return [figures.curve for figures in finished(outcomes) if figures.curve]
