"""Tables of audit.html: forms of values in words, and the cells that show them."""

import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dfme.audits.audit.model import Entry

UNKNOWN = "-"
FIXED = "\N{NO-BREAK SPACE}"
Forms = Mapping[str, str]
"""Heads of columns, each with the form of its cells: text, and after a bar a smaller line below it.
"""


class _Words(string.Formatter):
    """Forms of values as ``str.format`` has them, and of a list's values, one after the other.

    ``never;,``: none is never; else None is a TypeError. ``spread``: mean and deviation.
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


def table(caption: str, rows: Iterable[Entry], forms: Forms, words: int = 1) -> Entry:
    """A table row per row: the first cell is its head, the first ``words`` are text."""
    lines = [[_cell(form, row) for form in forms.values()] for row in rows]
    return {"caption": caption, "heads": list(forms), "rows": lines, "words": words}


def across(
    caption: str, rows: Iterable[Entry], forms: Forms, column: str, form: str, after: Any = None
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
        found = {head: _over_seeds(runs) for head, runs in of.items()}
        cells = [_cell(form, found[head]) if head in found else Shown(UNKNOWN) for head in heads]
        behind = (in_words(each, next(iter(found.values()))) for each in after.values())
        lines.append([*map(Shown, words), *cells, *map(Shown, behind)])
    return {
        "caption": caption,
        "heads": list(dict.fromkeys([*forms, *heads, *after])),
        "rows": lines,
        "words": len(forms),
    }


def _over_seeds(rows: Sequence[Entry]) -> Entry:
    """The row, or of several one with lists of their values."""
    if len(rows) == 1:
        return rows[0]
    return {name: [row[name] for row in rows] for name in rows[0]}
