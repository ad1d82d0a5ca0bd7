"""audit.html, its appendix and their pictures, from an audit.json alone."""

import io
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from statistics import median

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dfme.audits.audit.findings import median_to_copy, to_copy
from dfme.audits.audit.headline import seeds_text
from dfme.audits.audit.model import Entry, cells_in, check_audit
from dfme.audits.audit.options import APPENDIX
from dfme.audits.audit.tables import FIXED, UNKNOWN, across, in_words, table
from dfme.audits.compare.picture import MARKS, draw_row
from dfme.audits.compare.plan import NO_DEFENCE
from dfme.config.messages import harmless
from dfme.report.curves import BLUE, GREY, frame, query_axis, share_axis
from dfme.report.facts import Beside
from dfme.report.page import MAX_SHOWN, embedded, render
from dfme.statistics import middle_of

SHEET = re.compile(r"data:image/png;base64,[A-Za-z0-9+/=]+")
FORM = "form of answers"


def write_page(audit: Entry, path: Path) -> Path:
    """Write the page, and the appendix beside it; the page's path. RunError for what is no
    audit.
    """
    check_audit(audit)
    contents = {"audit": audit, "table": table, "across": across, "in_words": in_words}
    render("audits/audit/appendix.html", path.with_name(APPENDIX), contents | _behind(audit))
    return render("audits/audit/audit.html", path, contents | _first(audit))


FACTS = {
    "Model": "{target[name]}, {target[kind]}",
    "Its answers": (
        "{target[label_mode]}, {target[num_classes]:,} classes, images of {target[shape]}"
    ),
    "Its levels": "{target[levels]}",
    "Its defences": "{target[defences]}",
    "Its accuracy": "{target[accuracy]:.2%}",
    "Authorised by": "{target[authorised_by]}",
    "Seeds": "{options[seeds]}",
    "Scored on": "{target[evaluation][images]:,} images of {target[evaluation][name]}",
    "Held back for an attacker": "{halves[held_back]:,} images of {halves[dataset]}",
    "Profile": "{options[profile]}, {options[budget]:,} queries an attack",
    "At most in all": "{options[total]:,} queries",
    "Price of 1,000": "{options[price_per_1000]:,.2f}",
    "Sent by attacks": "{ledger[images]:,} images in {ledger[cells]:,} attacks",
    "Sent besides": "{ledger[evaluation]:,} images to score, {ledger[transfer]:,} for transfer",
    "Sent as honest users": "{ledger[benign]:,} images",
    "Asked by another attack before": "{ledger[shared]:,} images",
    "May have been served": "{ledger[served]:,} images",
    "Money for these": "{ledger[cost]:,.2f}",
    "Versions": "dfme {tool[dfme]}, torch {tool[torch]}, Python {tool[python]}",
    "Commit": "{tool[commit]}",
    "Made": (
        "{made[started]} in {made[wall_seconds]:,.1f} s, on {made[machine]}, in {made[directory]}"
    ),
}
"""What was audited, and how; what is not known is left out."""


def _first(audit: Entry) -> Entry:
    """What the page shows beside the audit itself: a figure for all seeds, of the answers as
    deployed.
    """
    modes = [audit["target"]["label_mode"], "label"]
    differing = (audit["differences"] or {"shown": ()})["shown"]
    return {
        "prices": [*_prices(audit), *_constant_row(audit)],
        "large": Beside(audit["games"]["constant"]).is_large,
        "curves": curves(
            audit | {"price": [line for line in audit["price"] if line["mode"] in modes]}
        ),
        "points": _points(audit),
        "pareto": pareto(audit),
        "alarms": _alarms(audit),
        "shown": [each for each in differing if SHEET.fullmatch(each["image"])],
    }


def _prices(audit: Entry) -> list[Entry]:
    """The price lines of attacks that ran, the cheapest copy first within each form of answers."""
    modes = list(dict.fromkeys(line["mode"] for line in audit["price"]))
    found = []
    for line in (line for line in audit["price"] if line["cells"]):
        known = [share for share in line["agreement"] if share is not None]
        between = UNKNOWN
        if len(known) > 1:
            between = f"{min(known):.1%} to {max(known):.1%}".replace(" ", FIXED)
        at = {level: _of_seeds(to_copy(line, level), "not reached") for level in line["queries_to"]}
        order = modes.index(line["mode"]), median_to_copy(line) or math.inf, -(line["mean"] or 0.0)
        found.append(
            {
                **line,
                "range": between,
                "at": at if known else {},
                "order": order,
            }
        )
    return sorted(found, key=itemgetter("order"))


def _constant_row(audit: Entry) -> list[Entry]:
    """The row of one answer to everything, which asks nothing, where it agrees on more than
    half.
    """
    constant = audit["games"]["constant"]
    if not Beside(constant).is_large:
        return []
    row = {
        "row": "one answer to everything",
        "mode": UNKNOWN,
        "mean": constant,
        "range": UNKNOWN,
        "balanced": audit["games"].get("constant_balanced"),
    }
    return [row]


def _of_seeds(counts: Sequence[float | None], never: str) -> str:
    """Median over seeds, and how many are known, if not all."""
    known = [count for count in counts if count is not None]
    middle = middle_of(counts)
    some = f"{len(known)} of {len(counts)}"
    if middle is not None:
        text = f"{middle:,.0f} ({some})"
    elif known:
        text = f"in {some}"
    else:
        text = never
    return text.removesuffix(f" ({len(counts)} of {len(counts)})").replace(" ", FIXED)


def _points(audit: Entry) -> list[Entry]:
    bare = {"name": "as deployed", "kind": UNKNOWN}
    named = [point | (bare if point["name"] == NO_DEFENCE else {}) for point in audit["pareto"]]
    return [point | ({"kind": FORM} if point["kind"] == "label mode" else {}) for point in named]


def _alarms(audit: Entry) -> list[Entry]:
    """First alarms of each detector and attacker over seeds, beside its worst honest stream."""
    detection = audit["detection"] or {"attacks": (), "benign": ()}
    names = cells_in(audit, audit["target"]["label_mode"])
    groups: dict[tuple[str, str], list[Entry]] = {}
    for each in (each for each in detection["attacks"] if each["cell"] in names):
        groups.setdefault((each["detector"], each["row"]), []).append(each)
    worst: dict[str, Entry] = {}
    for each in sorted(detection["benign"], key=itemgetter("per_10000", "per_10000_upper")):
        worst[each["detector"]] = each
    found = []
    for (detector, row), runs in groups.items():
        text = _of_seeds([each["first_alarm"] for each in runs], "never")
        worth = [
            each["agreement_at_alarm"] for each in runs if each["agreement_at_alarm"] is not None
        ]
        told = {
            "detector": detector,
            "row": row,
            "text": text,
            "worth": median(worth) if worth else None,
        }
        found.append(worst.get(detector, {}) | told)
    return found


def _behind(audit: Entry) -> Entry:
    """What the appendix shows beside the audit itself: rows that stand in two lists of it as
    one.
    """
    advantage = {
        (each["row"], each["mode"]): each["values"] for each in audit["games"]["advantage"]
    }
    answers = {cell["name"]: cell["answers"] for cell in audit["cells"]}
    bills = {bill["row"]: bill for bill in audit["utility"]}
    watched = audit["detection"] or {"attacks": (), "benign": ()}
    rows = [(label, in_words(form, audit)) for label, form in FACTS.items()]
    facts = [{"what": what, "figure": text} for what, text in rows if text not in ("", UNKNOWN)]
    return {
        "large": Beside(audit["games"]["constant"]).is_large,
        "facts": table(
            "What was audited, and how", facts, {"What": "{what}", "Figure": "{figure}"}, 2
        ),
        "curves": curves(audit, alarms=True),
        "prices": [
            {
                **line,
                "advantage": advantage.get((line["row"], line["mode"])),
                "reached": {level: seeds_text(line, level) for level in line["queries_to"]},
            }
            for line in audit["price"]
        ],
        "attacked": [*_attacked(audit["defences"], bills)],
        "attacks": [
            {**attack, "answers": answers.get(attack["cell"], UNKNOWN)}
            for attack in watched["attacks"]
        ],
        "benign": [
            {**stream, "seen": stream["per_10000"] if stream["alarms"] else None}
            for stream in watched["benign"]
        ],
        "classes": _least_followed(audit["fidelity"]),
        "sheets": [
            (name, each) for name, each in audit["pictures"].items() if SHEET.fullmatch(each)
        ],
    }


def _attacked(defences: Iterable[Entry], bills: Entry) -> Iterator[Entry]:
    """Every attacker of every defence."""
    for line in defences:
        for attacker in line["attackers"]:
            yield {**line, **attacker, **_judged(line, attacker, bills)}


def _judged(line: Entry, each: Entry, bills: Entry) -> Entry:
    """Cost of its defence to honest users (0 for a quota), and the score if it is not agreement."""
    paid = bills.get("none" if line["defence"].startswith("quota:") else line["defence"])
    renamed = None if each["score"] == each["agreement"] else each["score"]
    return {"best": each["answers"] == line["best"], "paid": paid, "renamed": renamed}


def _least_followed(cells: Sequence[Entry]) -> list[Entry]:
    """The ``MAX_SHOWN`` classes that a copy follows least, in order, each with its cell."""
    rows = list[Entry]()
    for cell in cells:
        rows += [{**cell, **one_class} for one_class in cell["per_class"]]
    known = (each for each in rows if each["agreement"] is not None)
    least = sorted(known, key=lambda each: each["agreement"])
    names = list(dict.fromkeys(each["class"] for each in least))[:MAX_SHOWN]
    return [each for each in rows if each["class"] in names]


PALE, SHAPES = "#8a8f96", {"defence": "o", FORM: "s"}
LONGEST = 36  # letters of a name in a picture


def curves(audit: Entry, alarms: bool = False) -> list[tuple[str, str]]:
    """Agreement against queries: one picture a label mode that has any."""
    cells = {cell["name"]: cell for cell in audit["cells"]}
    found = []
    attackers = list(dict.fromkeys(line["row"] for line in audit["price"]))
    for mode in dict.fromkeys(line["mode"] for line in audit["price"]):
        lines = [line for line in audit["price"] if line["mode"] == mode]
        names = cells_in(audit, mode)
        figure = Figure(figsize=(5.0, 4.1), layout="constrained")
        axes = figure.add_subplot()
        for line in lines:
            curves = [cells[name]["curve"] for name in line["cells"] if name in cells]
            known = [[(int(at), share) for at, share in curve if at] for curve in curves]
            if known := [
                curve for curve in known if curve
            ]:  # a logarithmic axis has no place for no query
                draw_row(axes, harmless(line["row"][:LONGEST]), known, attackers.index(line["row"]))
        if axes.lines:
            attacks = (audit["detection"] or {"attacks": []})["attacks"] if alarms else []
            _references(axes, audit["games"], [each for each in attacks if each["cell"] in names])
            query_axis(axes, log=True)
            share_axis(axes)
            axes.set_ylabel("agreement with the model")
            axes.set_title(mode[:LONGEST], loc="left", fontsize=10.5, parse_math=False)
            _money(axes, audit["options"]["price_per_1000"], lines)
            _legend(figure)
            scored = [line for line in lines if line["mean"] is not None]
            form = "{row} {mean:.1%} after {budget:,} queries"
            told = ", ".join(form.format_map(line) for line in scored)
            text = f"Agreement where the model answers {mode}: "
            found.append((_address(figure), f"{text}{told or 'not known yet'}."))
    return found


def _references(axes: Axes, games: Entry, alarms: Sequence[Entry]) -> None:
    """First alarms, at what the copy was worth, and agreements to hold a copy against."""
    raised = [
        each for each in alarms if None not in (each["first_alarm"], each["agreement_at_alarm"])
    ]
    for mark, detector in zip(
        MARKS, dict.fromkeys(each["detector"] for each in raised), strict=False
    ):
        named = [each for each in raised if each["detector"] == detector]
        own = [(each["first_alarm"], each["agreement_at_alarm"]) for each in named]
        label = f"alarm: {harmless(detector[:LONGEST])}"
        axes.plot(
            *zip(*own, strict=True),
            mark,
            color="black",
            fillstyle="none",
            markersize=5,
            label=label,
        )
    twin = (games["twin"] or {"agreement": None})["agreement"]
    for label, share, dash in (
        ("one answer to everything", games["constant"], ":"),
        ("twin", twin, "--"),
    ):
        if share is not None:
            axes.axhline(
                share, color=GREY, linewidth=1.0, linestyle=dash, label=f"{label} ({share:.1%})"
            )


def _money(axes: Axes, price: float | None, lines: Sequence[Entry]) -> None:
    """On the right, what each level of agreement costs the attacker who needs the fewest queries
    for it.
    """
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
    right.tick_params(labelsize=7.5)
    right.set_ylabel("money until then, cheapest attacker")
    right.spines["top"].set_visible(False)


def pareto(audit: Entry) -> tuple[str, str] | None:
    """Cost of each protection to honest users against the best attack; None with fewer than two
    points.
    """
    points = [
        point for point in _points(audit) if None not in (point["l1_mean"], point["agreement"])
    ]
    if len(points) < 2:
        return None
    figure = Figure(figsize=(5.6, 4.6), layout="constrained")
    axes = figure.add_subplot()
    for number, point in enumerate(points, 1):
        place = point["l1_mean"], point["agreement"]
        colour = PALE if point["dominated"] else BLUE
        label = f"{number}: {harmless(point['name'][:LONGEST])}"
        axes.plot(*place, SHAPES.get(point["kind"], "^"), color=colour, clip_on=False, label=label)
        axes.annotate(
            f"{number}", place, (6, 3), textcoords="offset points", fontsize=8.5, color=colour
        )
    axes.set_xscale("function", functions=(np.sqrt, np.square))
    axes.set_xticks(
        ticks := [0, 0.01, 0.05, 0.1, 0.2, 0.5, 1, 1.5, 2], list(map("{:g}".format, ticks))
    )
    axes.set_xlim(0, 1.1 * max(point["l1_mean"] for point in points) + 0.01)
    share_axis(axes)
    frame(axes)
    axes.set_xlabel("mean L1 change of an honest user's answer (root scale)")
    axes.set_ylabel("best copy's agreement")
    if Beside(constant := audit["games"]["constant"]).is_large:
        label = f"one answer to everything ({constant:.1%})"
        axes.axhline(constant, color=GREY, linewidth=1.0, linestyle=":", label=label)
    _legend(figure)
    best = (point for point in points if not point["dominated"])
    form = "{name} (change {l1_mean:.3f}, agreement {agreement:.1%})"
    told = "; ".join(form.format(**point) for point in best)
    return _address(figure), f"Of {len(points)} points, no other beats {told or 'any'}."


def _legend(figure: Figure) -> None:
    """Below the figure; names are a user's own, and no mathematics."""
    for entry in figure.legend(
        loc="outside lower center", ncols=2, frameon=False, fontsize=8.5
    ).get_texts():
        entry.set_parse_math(False)


def _address(figure: Figure) -> str:
    """The figure as a drawing with no date and no chance in it."""
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "audit"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return embedded(buffer.getvalue(), "svg+xml")
