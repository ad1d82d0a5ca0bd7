"""What fits a terminal: lines broken between words, and one line at its foot that is drawn over itself.

tqdm, which did this up to 0.6.0, cuts a line that is too long for the terminal wherever it ends, in mid-word.
"""

from __future__ import annotations

import os
import textwrap
import time
from collections.abc import Sequence
from typing import TextIO

REDRAW_SECONDS = 0.1
LEAST_BAR, MOST_BAR = 10, 30
"""Cells of a bar: with room for fewer there is none, more tell nothing."""


def columns(stream: TextIO) -> int | None:
    """How many letters a line of the stream's terminal takes; None where it is none."""
    if not stream.isatty():
        return None
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def wrapped(text: str, width: int | None, indent: str = "") -> str:
    """Lines broken between words. Those that begin with a blank are commands and paths: they stay, to be copied."""
    if width is None:
        return text
    fill = textwrap.TextWrapper(width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False).fill
    return "\n".join(line if line.startswith(" ") else fill(line) for line in text.split("\n"))


def fitted(parts: Sequence[str], width: int) -> str:
    """The first parts, each whole, as far as they fit."""
    line = parts[0]
    for part in parts[1:]:
        if len(line) + 2 + len(part) > width:
            break
        line += f"  {part}"
    return line


def bar(share: float, parts: Sequence[str], extras: Sequence[str], width: int, full: str) -> str:
    """A line of what fits: ``parts``, the most important first, then a bar of the share, then ``extras``."""
    text = fitted(parts, width)
    if width - len(text) < LEAST_BAR + 3:
        return text
    text = fitted([text, *extras], width - LEAST_BAR - 3)
    cells = min(MOST_BAR, width - len(text) - 3)
    return f"|{(full * int(cells * min(1.0, share))).ljust(cells)}| {text}"


class StatusLine:
    """The line at the foot of a terminal; what is said meanwhile scrolls by above it. On no terminal there is none."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._drawn, self._next = stream, "", 0.0
        self._full = "█" if "utf" in (getattr(stream, "encoding", None) or "").lower() else "#"

    @property
    def live(self) -> bool:
        return columns(self._stream) is not None

    def show(self, share: float, parts: Sequence[str], extras: Sequence[str] = (), now: bool = True) -> None:
        """Draw a ``bar`` anew; unless it is to be ``now``, at a rate that an eye can follow."""
        width = columns(self._stream)
        if width is not None and (now or time.monotonic() >= self._next):
            self._next = time.monotonic() + REDRAW_SECONDS
            self._draw(bar(share, parts, extras, width - 1, self._full))

    def note(self, text: str) -> None:
        """Say something at once, above the line."""
        below = self._drawn
        self._draw("")
        self._stream.write("\r" * bool(below) + wrapped(text, columns(self._stream)) + "\n")
        self._drawn = ""
        self._draw(below)
        self._stream.flush()

    def close(self) -> None:
        """Leave the line as it stands, and go on below it; more than once does no harm."""
        self._stream.write("\n" * bool(self._drawn))
        self._stream.flush()
        self._drawn = ""

    def _draw(self, text: str) -> None:
        if text != self._drawn:
            self._stream.write("\r" + text.ljust(min(len(self._drawn), (columns(self._stream) or 1) - 1)))
            self._stream.flush()
            self._drawn = text
