"""audit.html: an audit on one page, from its audit.json alone. Figures are only put in words here."""

import re
import string
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dfme.audits.audit import pictures
from dfme.audits.audit.headline import seeds_text
from dfme.audits.audit.model import Entry, check_audit
from dfme.report.page import MAX_SHOWN, render

SHEET = re.compile(r"data:image/png;base64,[A-Za-z0-9+/=]+")
NUMBERED = ("price", "defences", "utility", "pareto", "fidelity")
UNKNOWN = "-"
FIXED = "\N{NO-BREAK SPACE}"
Forms = Mapping[str, str]
"""Heads of columns, each with the form of its cells: text, and after a bar a smaller line below it."""


class _Words(string.Formatter):
    """Forms of values as ``str.format`` has them, and of a list's values, one after the other.

    ``never;,``: none is never; else None is a TypeError, as it is to take a part of it. ``spread``: mean and
    deviation.
    """

    def format_field(self, value: Any, format_spec: str) -> str:
        otherwise, _, form = format_spec.rpartition(";")
        if isinstance(value, list) and (otherwise or {*value} - {None} or not value):
            each_form = f"{otherwise or UNKNOWN};{form}"
            texts = [self.format_field(each, each_form).replace(" ", FIXED) for each in value]
            return otherwise if {*texts} == {otherwise.replace(" ", FIXED)} else ", ".join(texts)
        if form == "spread":
            sign = f"{FIXED}\N{PLUS-MINUS SIGN}{FIXED}"
            deviation = "" if value["sd"] is None else f"{sign}{100 * value['sd']:.1f}"
            return f"{value['mean']:.1%}{deviation}"
        if value is None and otherwise:
            return otherwise
        if value is None or isinstance(value, list):
            raise TypeError
        return {True: "yes", False: "no"}[value] if isinstance(value, bool) else format(value, form)


class Shown(NamedTuple):
    """``strong``: whether it is the best of its row."""

    text: str
    note: str = ""
    strong: bool = False


def in_words(form: str, row: Entry) -> str:
    """The row's values in a form; a bar where a part of it is not known."""
    try:
        return _Words().vformat(form, (), row)
    except (KeyError, TypeError):
        return UNKNOWN


def _cell(form: str, row: Entry) -> Shown:
    text, *notes = (in_words(part, row) for part in form.split("|"))
    note = ", ".join(note for note in notes if note not in ("", UNKNOWN))
    return Shown(text, note, row.get("best") is True)


def _table(caption: str, rows: Iterable[Entry], forms: Forms, words: int = 1, key: str = "") -> Entry:
    """A table row per row: the first cell is its head, the first ``words`` are text, ``key`` numbers them."""
    lines = [[_cell(form, row) for form in forms.values()] for row in rows]
    return {"caption": caption, "heads": list(forms), "rows": lines, "words": words, "key": key}


def _across(
    caption: str,
    rows: Iterable[Entry],
    forms: Forms,
    column: str,
    form: str,
    after: Forms | None = None,
    key: str = "",
) -> Entry:
    """A table row per form, a cell per ``column``, from one row or from those of all seeds."""
    groups: dict[tuple[str, ...], dict[str, list[Entry]]] = {}
    for row in rows:
        place = groups.setdefault(tuple(in_words(each, row) for each in forms.values()), {})
        place.setdefault(in_words(column, row), []).append(row)
    heads = list(dict.fromkeys(head for of in groups.values() for head in of))
    lines = []
    after = after or {}
    for words, of in groups.items():
        found = {
            head: own[0] if len(own) == 1 else {name: [row[name] for row in own] for name in own[0]}
            for head, own in of.items()
        }
        cells = [_cell(form, found[head]) if head in found else Shown(UNKNOWN) for head in heads]
        behind = (in_words(each, next(iter(found.values()))) for each in after.values())
        lines.append([*map(Shown, words), *cells, *map(Shown, behind)])
    return _table(caption, (), dict.fromkeys([*forms, *heads, *after], ""), len(forms), key) | {"rows": lines}


def write_page(audit: Entry, path: Path) -> Path:
    """Write the page; its path. RunError for what is no audit of this form."""
    check_audit(audit)
    return render("audits/audit/audit.html", path, _contents(audit))


def _contents(audit: Entry) -> Entry:
    """The audit, what the template writes it with, and rows that stand in two lists of it as one."""
    advantage = {(each["row"], each["mode"]): each["values"] for each in audit["games"]["advantage"]}
    answers = {cell["name"]: cell["answers"] for cell in audit["cells"]}
    bills = {bill["row"]: bill for bill in audit["utility"]}
    watched = audit["detection"] or {"attacks": (), "benign": ()}
    numbered = [f"{name}.{at}" for name in NUMBERED for at in range(len(audit[name]))]
    return {
        **{"audit": audit, "table": _table, "across": _across, "in_words": in_words},
        "pareto": pictures.pareto(audit),
        **{"curves": pictures.curves(audit), "known": {*numbered, "detection"}},
        "prices": [
            line
            | {"advantage": advantage.get((line["row"], line["mode"]))}
            | {"reached": {level: seeds_text(line, level) for level in line["queries_to"]}}
            for line in audit["price"]
        ],
        "attacked": [
            line | each | _judged(line, each, bills)
            for line in audit["defences"]
            for each in line["attackers"]
        ],
        "attacks": [each | {"answers": answers.get(each["cell"], UNKNOWN)} for each in watched["attacks"]],
        "benign": [
            each | {"seen": each["per_10000"] if each["alarms"] else None} for each in watched["benign"]
        ],
        "classes": _least_followed(audit["fidelity"]),
        "sheets": [(name, each) for name, each in audit["pictures"].items() if SHEET.fullmatch(each)],
    }


def _judged(line: Entry, each: Entry, bills: Entry) -> Entry:
    """Cost of its defence to honest users (0 for a quota), and the score if it is not agreement."""
    paid = bills.get("none" if line["defence"].startswith("quota:") else line["defence"])
    renamed = None if each["score"] == each["agreement"] else each["score"]
    return {"best": each["answers"] == line["best"], "paid": paid, "renamed": renamed}


def _least_followed(cells: Sequence[Entry]) -> list[Entry]:
    """The ``MAX_SHOWN`` classes that a copy follows least, in order, each with its cell."""
    rows = [cell | each for cell in cells for each in cell["per_class"]]
    known = [each for each in rows if each["agreement"] is not None]
    least = sorted(known, key=lambda each: each["agreement"])
    names = list(dict.fromkeys(each["class"] for each in least))[:MAX_SHOWN]
    return [each for each in rows if each["class"] in names]
