"""Tables of audit.html: forms of values in words, and the cells that show them."""

import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dfme.statistics import Spread

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
