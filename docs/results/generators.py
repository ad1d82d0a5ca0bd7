"""Picture and tables of docs/methods.md: agreement at the end of every budget, per task.

    python docs/results/generators.py digits=runs/a shapes=runs/b letters=runs/c,runs/d

Comparisons of one task are put together: of several seeds the picture has the mean, and the table
every one.
"""

import json
import statistics
import sys
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from dfme.audits.compare.picture import COLOURS, DASHES, MARKS
from dfme.audits.compare.plan import count_text
from dfme.config.yaml_files import load_yaml
from dfme.report.curves import frame, legend_entries, save_figure, share_axis
from dfme.report.markdown import table

HERE = Path(__file__).parent
ROWS = load_yaml(HERE.parents[1] / "configs/compare_generators.yaml")["methods"]

Ends = dict[tuple[str, int], dict[int, float]]  # row and budget -> seed -> agreement


def ends_of(folders: str) -> Ends:
    ends: Ends = {}
    for folder in folders.split(","):
        for cell in json.loads((Path(folder) / "comparison.json").read_text())["cells"]:
            if cell["figures"]:
                ends.setdefault((cell["row"], cell["budget"]), {})[cell["seed"]] = cell["figures"][
                    "agreement"
                ]
    return ends


def draw(tasks: dict[str, Ends]) -> None:
    figure = Figure(figsize=(10.0, 4.2), layout="constrained")
    panels = figure.subplots(1, len(tasks), squeeze=False, sharey=True)[0]
    for axes, (task, ends) in zip(panels, tasks.items(), strict=True):
        budgets = sorted({budget for _, budget in ends})
        for place, row in enumerate(ROWS):
            found = {
                budget: statistics.fmean(ends[row, budget].values())
                for budget in budgets
                if (row, budget) in ends
            }
            style = {
                "color": COLOURS[place],
                "linestyle": DASHES[place % len(DASHES)],
                "marker": MARKS[place],
            }
            axes.plot([*found], [*found.values()], label=row, markersize=4, **style)
        axes.set_xscale("log")
        axes.set_xticks(budgets, [count_text(budget) for budget in budgets])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("budget, queries")
        frame(axes)
        share_axis(axes)
        axes.set_title(task, loc="left", fontsize=10)
    panels[0].set_ylabel("agreement with the teacher")
    entries = legend_entries(panels)
    figure.legend(
        entries.values(), entries, loc="outside lower center", ncols=4, frameon=False, fontsize=9
    )
    save_figure(figure, HERE / "generators.png")


def each_seed(ends: Ends) -> str:
    budgets = sorted({budget for _, budget in ends})
    shown = {
        pair: ", ".join(f"{share:.1%}"[:-1] for _, share in sorted(found.items()))
        for pair, found in ends.items()
    }
    lines = [(f"`{row}`", *(shown.get((row, budget), "") for budget in budgets)) for row in ROWS]
    return table(("row", *map(count_text, budgets)), [line for line in lines if any(line[1:])])


if __name__ == "__main__":
    found = {
        task: ends_of(folders)
        for task, _, folders in (word.partition("=") for word in sys.argv[1:])
    }
    draw(found)
    print("\n\n".join(f"### {task}\n\n{each_seed(ends)}" for task, ends in found.items()))
