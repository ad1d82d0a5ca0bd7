"""Tables in Markdown that can be read as text too, and names of files and people in it. No
torch.
"""

import math
import re
from collections.abc import Iterable, Sequence
from itertools import compress

from dfme.config.messages import printable

MARKUP = re.compile(r"[\\`*|]|~(?=~)|\](?=[(\[])|(?<![^\W_])_|_(?![^\W_])")
"""What begins or ends markup; an underscore within a word does not, nor a bracket without an
address.
"""


def plain(name: str) -> str:
    """A name from outside as text on one line: no markup, nothing that moves a cursor."""
    escaped = MARKUP.sub(r"\\\g<0>", printable(name))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def code(text: str) -> str:
    """Text from outside as a span of code, which shows all of it as it is, on one line."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    blank = " " if longest else ""
    return f"{fence}{blank}{printable(text)}{blank}{fence}"


def table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table, padded; the first column to the left, figures to the right."""
    cells = [tuple(heads), *lines]
    widths = [max(len(line[column]) for line in cells) for column in range(len(heads))]
    padded = ([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])] for line in cells)
    texts = [f"| {' | '.join(line)} |" for line in padded]
    rule = (
        "|"
        + "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])])
        + "|"
    )
    return "\n".join([texts[0], rule, *texts[1:]])


def fitted_table(
    heads: Sequence[str],
    lines: Sequence[Sequence[str]],
    first: Sequence[str] = (),
    across: int | None = None,
) -> str:
    """The table without empty columns, ``first`` ahead, with those that fit ``across`` letters."""
    visible = [any(line[place] not in ("", "-") for line in lines) for place in range(len(heads))]
    room = (across or math.inf) - 1
    filled = list(compress(heads, visible))
    for name in sorted(filled, key=lambda name: (*first, *heads).index(name)):
        place = heads.index(name)
        room -= 3 + max(len(line[place]) for line in (heads, *lines))
        visible[place] = room >= 0
    hidden = [name for name in filled if not visible[heads.index(name)]]
    more = f"\n\nMore in the report: {', '.join(hidden)}." if hidden else ""
    return (
        table(list(compress(heads, visible)), [list(compress(line, visible)) for line in lines])
        + more
    )
