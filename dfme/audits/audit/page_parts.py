"""Tables and pictures of audit.html."""

import io
import string
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dfme.audits.audit.parts import ParetoPoint, WatchedAttack
from dfme.audits.audit.price_parts import PriceLine
from dfme.audits.audit.result import AuditResult, Games
from dfme.audits.compare.picture import MARKS, draw_row
from dfme.audits.compare.plan import NO_DEFENCE
from dfme.config.messages import harmless
from dfme.report.curves import BLUE, GREY, frame, query_axis, share_axis
from dfme.report.page import embedded
from dfme.report.run_files import LEVELS, Beside, Series
from dfme.statistics import Spread, middle_of

UNKNOWN = "-"
FIXED = "\N{NO-BREAK SPACE}"
Forms = Mapping[str, str]
"""Heads of columns, each with the form of its cells: text, and after a bar a smaller line below it.
"""


class _Words(string.Formatter):
    """Forms of the attributes of a row as ``str.format`` has them; of several rows, or of a list,
    one value after the other.

    ``never;,``: none is never; else None is a TypeError. ``spread``: mean and deviation.
    """

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Any) -> Any:
        values = [super(_Words, self).get_field(field_name, [row], kwargs)[0] for row in args]
        return values[0] if len(args) == 1 else values, field_name

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Any) -> Any:
        return getattr(args[0], str(key))

    def format_field(self, value: Any, format_spec: str) -> str:
        otherwise, _, form = format_spec.rpartition(";")
        if isinstance(value, Spread) and form == "spread":
            sign = f"{FIXED}\N{PLUS-MINUS SIGN}{FIXED}"
            deviation = "" if value.sd is None else f"{sign}{100 * value.sd:.1f}"
            return f"{value.mean:.1%}{deviation}"
        if isinstance(value, list | tuple) and (otherwise or {*value} - {None} or not value):
            one_form = f"{otherwise or UNKNOWN};{form}"
            texts = [self.format_field(one, one_form).replace(" ", FIXED) for one in value]
            return otherwise if {*texts} == {otherwise.replace(" ", FIXED)} else ", ".join(texts)
        if value is None and otherwise:
            return otherwise
        if value is None or isinstance(value, list | tuple):
            raise TypeError
        if isinstance(value, bool):
            return "yes" if value else "no"
        return format(value, form)


class Shown(NamedTuple):
    """``strong``: whether it is the best of its row."""

    text: str
    note: str = ""
    strong: bool = False


class PageTable(NamedTuple):
    """The first ``words`` columns are text."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Shown]]
    words: int


def in_words(form: str, *rows: object) -> str:
    """The rows' values in a form; a bar where a part of it is not known."""
    try:
        return _Words().vformat(form, rows, {})
    except (AttributeError, LookupError, TypeError):
        return UNKNOWN


def _cell(form: str, *rows: object) -> Shown:
    text, *notes = (in_words(part, *rows) for part in form.split("|"))
    note = ", ".join(note for note in notes if note not in ("", UNKNOWN))
    return Shown(text, note, getattr(rows[0], "is_best", False))


def table(caption: str, rows: Iterable[object], forms: Forms, words: int = 1) -> PageTable:
    """A table row per row: the first cell is its head, the first ``words`` are text."""
    lines = [[_cell(form, row) for form in forms.values()] for row in rows]
    return PageTable(caption, list(forms), lines, words)


def across(
    caption: str,
    rows: Iterable[object],
    forms: Forms,
    column: str,
    form: str,
    after: Forms | None = None,
) -> PageTable:
    """A table row per form, a cell per ``column``, from one row or from those of all seeds."""
    groups: dict[tuple[str, ...], dict[str, list[object]]] = {}
    for row in rows:
        group = groups.setdefault(tuple(in_words(words, row) for words in forms.values()), {})
        group.setdefault(in_words(column, row), []).append(row)
    heads = list(dict.fromkeys(head for columns in groups.values() for head in columns))
    after = after or {}
    lines = []
    for words, columns in groups.items():
        cells = [
            _cell(form, *columns[head]) if head in columns else Shown(UNKNOWN) for head in heads
        ]
        first = next(iter(columns.values()))
        behind = [in_words(words_after, *first) for words_after in after.values()]
        lines.append([*map(Shown, words), *cells, *map(Shown, behind)])
    return PageTable(caption, list(dict.fromkeys([*forms, *heads, *after])), lines, len(forms))


FORM = "form of answers"
DEPLOYED = "as deployed"
PALE = "#8a8f96"
SHAPES = {"defence": "o", FORM: "s"}
LONGEST = 36  # letters of a name in a picture


@dataclass(frozen=True)
class Picture:
    """A drawing, as an address that holds it, and what it says."""

    address: str
    text: str


def curves(
    audit: AuditResult, modes: Collection[str] | None = None, alarms: bool = False
) -> list[Picture]:
    """Agreement against queries: one picture a label mode that has any, of all or these
    ``modes``.
    """
    pictures = []
    lines = [line for line in audit.price if modes is None or line.mode in modes]
    attackers = list(dict.fromkeys(line.row for line in lines))
    for mode in dict.fromkeys(line.mode for line in lines):
        of_mode = [line for line in lines if line.mode == mode]
        figure = Figure(figsize=(5.0, 4.1), layout="constrained")
        axes = figure.add_subplot()
        for line in of_mode:
            if series := _series(audit, line):
                draw_row(axes, harmless(line.row[:LONGEST]), series, attackers.index(line.row))
        if axes.lines:
            if alarms and audit.detection:
                _draw_alarms(axes, audit.detection.attacks, audit.cells_of(mode))
            _references(axes, audit.games)
            query_axis(axes, log=True)
            share_axis(axes)
            axes.set_ylabel("agreement with the model")
            axes.set_title(mode[:LONGEST], loc="left", fontsize=10.5, parse_math=False)
            _money(axes, audit.options.price_per_1000, of_mode)
            _legend(figure)
            results = ", ".join(
                f"{line.row} {line.mean:.1%} after {line.budget:,} queries"
                for line in of_mode
                if line.mean is not None
            )
            text = f"Agreement where the model answers {mode}: {results or 'not known yet'}."
            pictures.append(Picture(_address(figure), text))
    return pictures


def _series(audit: AuditResult, line: PriceLine) -> list[Series]:
    """The curves of a line's cells, without points at no query: a logarithmic axis has no place for
    these.
    """
    cells = {cell.name: cell for cell in audit.cells}
    curves = [cells[name].curve for name in line.cells if name in cells]
    series = [[(queries, share) for queries, share in curve if queries] for curve in curves]
    return [points for points in series if points]


def _draw_alarms(axes: Axes, attacks: Sequence[WatchedAttack], cells: Collection[str]) -> None:
    """First alarms in these cells, at what the copy was worth."""
    points: dict[str, list[tuple[int, float]]] = {}
    for attack in attacks:
        first, share = attack.first_alarm, attack.agreement_at_alarm
        if attack.cell in cells and first is not None and share is not None:
            points.setdefault(attack.detector, []).append((first, share))
    for mark, (detector, alarms) in zip(MARKS, points.items(), strict=False):
        axes.plot(
            *zip(*alarms, strict=True),
            mark,
            color="black",
            fillstyle="none",
            markersize=5,
            label=f"alarm: {harmless(detector[:LONGEST])}",
        )


def _references(axes: Axes, games: Games) -> None:
    """Agreements to hold a copy against."""
    _line_at(axes, "one answer to everything", games.constant, ":")
    _line_at(axes, "twin", games.twin.agreement if games.twin else None, "--")


def _line_at(axes: Axes, label: str, share: float | None, style: str) -> None:
    if share is not None:
        label = f"{label} ({share:.1%})"
        axes.axhline(share, color=GREY, linewidth=1.0, linestyle=style, label=label)


def _money(axes: Axes, price: float | None, lines: Sequence[PriceLine]) -> None:
    """On the right, what each level of agreement costs the attacker who needs the fewest queries
    for it.
    """
    if price is None:
        return
    costs = {}
    for level in LEVELS:
        counts = [line.queries_to.get(f"{level:g}") or [None] for line in lines]
        medians = [middle_of(queries) for queries in counts]
        if reached := [count for count in medians if count is not None]:
            costs[level] = f"{min(reached) * price / 1000:,.2f}"
    right = axes.twinx()
    right.set(ylim=axes.get_ylim(), yticks=list(costs), yticklabels=list(costs.values()))
    right.tick_params(labelsize=7.5)
    right.set_ylabel("money until then, cheapest attacker")
    right.spines["top"].set_visible(False)


def name_of(point: ParetoPoint) -> str:
    """What the page calls a point."""
    return DEPLOYED if point.name == NO_DEFENCE else point.name


def kind_of(point: ParetoPoint) -> str:
    """The same of its kind."""
    if point.name == NO_DEFENCE:
        return UNKNOWN
    return FORM if point.kind == "label mode" else point.kind


def pareto(audit: AuditResult) -> Picture | None:
    """Cost of each protection to honest users against the best attack; None with fewer than two
    points.
    """
    points = [(point, point.l1_mean) for point in audit.pareto if point.l1_mean is not None]
    if len(points) < 2:
        return None
    figure = Figure(figsize=(5.6, 4.6), layout="constrained")
    axes = figure.add_subplot()
    for number, (point, change) in enumerate(points, 1):
        place = change, point.agreement
        colour = PALE if point.dominated else BLUE
        label = f"{number}: {harmless(name_of(point)[:LONGEST])}"
        axes.plot(*place, SHAPES.get(kind_of(point), "^"), color=colour, clip_on=False, label=label)
        axes.annotate(
            f"{number}", place, (6, 3), textcoords="offset points", fontsize=8.5, color=colour
        )
    ticks = [0, 0.01, 0.05, 0.1, 0.2, 0.5, 1, 1.5, 2]
    axes.set_xscale("function", functions=(np.sqrt, np.square))
    axes.set_xticks(ticks, list(map("{:g}".format, ticks)))
    axes.set_xlim(0, 1.1 * max(change for _, change in points) + 0.01)
    share_axis(axes)
    frame(axes)
    axes.set_xlabel("mean L1 change of an honest user's answer (root scale)")
    axes.set_ylabel("best copy's agreement")
    if Beside(audit.games.constant).is_large:
        _line_at(axes, "one answer to everything", audit.games.constant, ":")
    _legend(figure)
    best = "; ".join(
        f"{name_of(point)} (change {change:.3f}, agreement {point.agreement:.1%})"
        for point, change in points
        if not point.dominated
    )
    return Picture(_address(figure), f"Of {len(points)} points, no other beats {best or 'any'}.")


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
