"""Tables in Markdown that can be read as text too. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table, padded; the first column to the left, figures to the right."""
    cells = [tuple(heads), *lines]
    widths = [max(len(line[column]) for line in cells) for column in range(len(heads))]
    texts = [
        "| " + " | ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) + " |" for line in cells
    ]
    rule = "|" + "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])]) + "|"
    return "\n".join([texts[0], rule, *texts[1:]])
