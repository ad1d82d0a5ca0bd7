"""Pictures of an audit, drawn from audit.json alone, each as a data URL and an alternative text."""

import base64
import io
import math
from collections.abc import Sequence
from statistics import median

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dfme.audits.audit.model import Entry
from dfme.audits.compare.picture import COLOURS, DASHES, MARKS, mean_and_band
from dfme.report.curves import BLUE, GREY, frame, query_axis, share_axis

PALE, SHAPES = "#8a8f96", {"defence": "o", "label mode": "s"}
LONGEST = 36  # letters of a name in a picture


def curves(audit: Entry) -> list[tuple[str, str]]:
    """Agreement against queries: one picture a label mode that has any."""
    cells = {cell["name"]: cell for cell in audit["cells"]}
    found = []
    attackers = list(dict.fromkeys(line["row"] for line in audit["price"]))
    for mode in dict.fromkeys(line["mode"] for line in audit["price"]):
        lines = [line for line in audit["price"] if line["mode"] == mode]
        names = {name for line in lines for name in line["cells"]}
        figure = Figure(figsize=(5.0, 4.1), layout="constrained")
        axes = figure.add_subplot()
        for line in lines:
            curves = [cells[name]["curve"] for name in line["cells"] if name in cells]
            known = [[(int(at), share) for at, share in curve if at] for curve in curves]
            if known := [curve for curve in known if curve]:  # a logarithmic axis has no place for no query
                at_N, mean_N, low_N, high_N = mean_and_band(known)
                place = attackers.index(line["row"])
                colour = COLOURS[place % len(COLOURS)]
                look = {"linestyle": DASHES[place % len(DASHES)], "label": line["row"][:LONGEST]}
                axes.fill_between(at_N, low_N, high_N, color=colour, alpha=0.18, linewidth=0)
                axes.plot(at_N, mean_N, color=colour, linewidth=1.8, **look)
        if axes.lines:
            alarms = (audit["detection"] or {"attacks": []})["attacks"]
            _references(axes, audit["games"], [each for each in alarms if each["cell"] in names])
            query_axis(axes, log=True)
            share_axis(axes)
            axes.set_ylabel("agreement with the model")
            axes.set_title(mode[:LONGEST], loc="left", fontsize=10.5, parse_math=False)
            _money(axes, audit["options"]["price_per_1000"], lines)
            for entry in figure.legend(
                loc="outside lower center", ncols=2, frameon=False, fontsize=8.5
            ).get_texts():
                entry.set_parse_math(False)
            scored = [line for line in lines if line["mean"] is not None]
            told = ", ".join(f"{line['row']} {line['mean']:.1%}" for line in scored)
            text = f"Agreement where the model answers {mode}, after {audit['options']['budget']:,} queries: "
            found.append((_address(figure), f"{text}{told or 'not known yet'}."))
    return found


def _references(axes: Axes, games: Entry, alarms: Sequence[Entry]) -> None:
    """First alarms, at what the copy was worth, and agreements to hold a copy against."""
    rung = [each for each in alarms if None not in (each["first_alarm"], each["agreement_at_alarm"])]
    for mark, detector in zip(MARKS, dict.fromkeys(each["detector"] for each in rung), strict=False):
        named = [each for each in rung if each["detector"] == detector]
        own = [(each["first_alarm"], each["agreement_at_alarm"]) for each in named]
        label = f"alarm: {detector[:LONGEST]}"
        axes.plot(*zip(*own, strict=True), mark, color="black", fillstyle="none", markersize=5, label=label)
    twin = (games["twin"] or {"agreement": None})["agreement"]
    for label, share, dash in (("one answer to everything", games["constant"], ":"), ("twin", twin, "--")):
        if share is not None:
            axes.axhline(share, color=GREY, linewidth=1.0, linestyle=dash, label=f"{label} ({share:.1%})")


def _money(axes: Axes, price: float | None, lines: Sequence[Entry]) -> None:
    """On the right, what each level of agreement costs the attacker who needs the fewest queries for it."""
    if price is None:
        return
    costs = {}
    for level in ("0.5", "0.8", "0.9", "0.95"):
        counts = [line["queries_to"].get(level) or [None] for line in lines]
        seeds = [[math.inf if at is None else at for at in own] for own in counts]
        if math.isfinite(least := min(map(median, seeds))):
            costs[float(level)] = f"{least * price / 1000:,.2f}"
    right = axes.twinx()
    right.set(ylim=axes.get_ylim(), yticks=list(costs), yticklabels=list(costs.values()))
    right.set_ylabel("money until then, cheapest attacker")
    right.spines["top"].set_visible(False)


def pareto(audit: Entry) -> tuple[str, str] | None:
    """Cost of each protection to honest users against the best attack; None with fewer than two points."""
    points = [point for point in audit["pareto"] if None not in (point["l1_mean"], point["agreement"])]
    if len(points) < 2:
        return None
    figure = Figure(figsize=(5.6, 4.6), layout="constrained")
    axes = figure.add_subplot()
    for number, point in enumerate(points, 1):
        place = point["l1_mean"], point["agreement"]
        colour = PALE if point["dominated"] else BLUE
        label = f"{number}: {point['name'][:LONGEST]}"
        axes.plot(*place, SHAPES.get(point["kind"], "^"), color=colour, clip_on=False, label=label)
        axes.annotate(f"{number}", place, (6, 3), textcoords="offset points", fontsize=8.5, color=colour)
    axes.set_xscale("function", functions=(np.sqrt, np.square))
    axes.set_xticks(ticks := [0, 0.01, 0.05, 0.1, 0.2, 0.5, 1, 1.5, 2], list(map("{:g}".format, ticks)))
    axes.set_xlim(0, 1.1 * max(point["l1_mean"] for point in points) + 0.01)
    share_axis(axes)
    frame(axes)
    axes.set_xlabel("mean L1 change of an honest user's answer (root scale)")
    axes.set_ylabel("best attacker's agreement")
    for entry in figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8.5).get_texts():
        entry.set_parse_math(False)
    best = (point for point in points if not point["dominated"])
    told = [
        f"{point['name']} (change {point['l1_mean']:.3f}, agreement {point['agreement']:.1%})"
        for point in best
    ]
    return _address(figure), f"Of {len(points)} points, no other beats {'; '.join(told) or 'any'}."


def _address(figure: Figure) -> str:
    """The figure as a drawing with no date and no chance in it."""
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "audit"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
