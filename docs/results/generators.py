"""The picture of docs/methods.md: agreement at the end of every budget, a panel for each of some comparisons.

python docs/results/generators.py runs/generators-digits runs/generators-shapes runs/generators-letters
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from dfme.benchmarks.compare.picture import COLOURS, DASHES, MARKS
from dfme.report.curves import frame, legend_entries, save_figure, share_axis, short_count

PICTURE = Path(__file__).with_suffix(".png")


def draw(folders: list[Path]) -> None:
    figure = Figure(figsize=(10.0, 4.2), layout="constrained")
    panels = figure.subplots(1, len(folders), squeeze=False, sharey=True)[0]
    for axes, folder in zip(panels, folders, strict=True):
        rows: dict[str, dict[int, float]] = {}
        for table in json.loads((folder / "comparison.json").read_text())["tables"]:
            for row in table["rows"]:
                if row.get("agreement"):
                    rows.setdefault(row["row"], {})[table["budget"]] = row["agreement"]["mean"]
        budgets = sorted({budget for ends in rows.values() for budget in ends})
        for place, (row, ends) in enumerate(rows.items()):
            style = {"color": COLOURS[place], "linestyle": DASHES[place % len(DASHES)], "marker": MARKS[place]}
            axes.plot(*zip(*sorted(ends.items()), strict=True), label=row, markersize=4, **style)
        axes.set_xscale("log")
        axes.set_xticks(budgets, [short_count(budget) for budget in budgets])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("budget, queries")
        frame(axes)
        share_axis(axes)
        axes.set_title(folder.name.rpartition("-")[2], loc="left", fontsize=10)
    panels[0].set_ylabel("agreement with the teacher")
    found = legend_entries(panels)
    figure.legend(found.values(), found, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    save_figure(figure, PICTURE)


if __name__ == "__main__":
    draw([Path(word) for word in sys.argv[1:]])
