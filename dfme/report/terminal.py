"""What fits a terminal: lines broken between words, lines that are said once, and a line at its
foot, which rich draws.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, TextIO

from dfme.config.messages import harmless, shortened

if TYPE_CHECKING:
    from rich.console import RenderableType

EVERY_SECONDS = 300.0  # between two counts, while lines come again
MAX_LINES = 100  # lines that are remembered
MIN_BAR = 10  # cells: with room for fewer there is no bar
MAX_BAR = 30


def columns(stream: TextIO) -> int | None:
    """Letters that a line of the stream's terminal takes; None where it is no terminal."""
    if not stream.isatty():
        return None
    from rich.console import Console

    return Console(file=stream).width


def wrapped(text: str, width: int | None, indent: str = "") -> str:
    """Break lines between words. Those that begin with a blank are commands and paths and stay
    whole.
    """
    if width is None:
        return text
    fill = textwrap.TextWrapper(
        width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    ).fill
    return "\n".join(line if line.startswith(" ") else fill(line) for line in text.split("\n"))


def aligned(rows: Iterable[tuple[str, str]], width: int | None = None) -> str:
    """A table of two columns, as commands print their results."""
    listed = list(rows)
    width_of_labels = max(len(label) for label, _ in listed)
    return "\n".join(
        wrapped(
            harmless(f"{label:<{width_of_labels}}  {value}"), width, " " * (width_of_labels + 2)
        )
        for label, value in listed
    )


def print_harmless(text: str) -> None:
    """Print results that may quote names which steer a terminal."""
    print(harmless(text))


def fitted(parts: Sequence[str], width: int) -> str:
    """The first parts that fit, each in full."""
    line = parts[0]
    for part in parts[1:]:
        if len(line) + 2 + len(part) > width:
            break
        line += f"  {part}"
    return line


def bar(share: float, parts: Sequence[str], extras: Sequence[str], width: int) -> RenderableType:
    """A line of what fits: a bar of the share, ``parts``, the most important first, then
    ``extras``.
    """
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    room = width - MIN_BAR - 1
    if len(text := fitted(parts, width)) > room:
        return text
    text = fitted([text, *extras], room)
    line = Table.grid(padding=(0, 1, 0, 0))
    line.add_row(ProgressBar(1.0, share, width=min(MAX_BAR, width - len(text) - 1)), text)
    return line


Drawing = Callable[[], tuple[float, Sequence[str], Sequence[str]]]
"""What a ``bar`` shows: its share, parts and extras."""


class StatusLine:
    """The line at the foot of a terminal, above which messages scroll by; plain messages
    elsewhere.
    """

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self.live = stream.isatty()
        self._stream = stream
        self._console = Console(file=stream, markup=False, emoji=False, highlight=False)
        self._drawing: Drawing = lambda: (0.0, [""], [])
        self._display = Live(
            console=self._console,
            redirect_stdout=False,
            redirect_stderr=False,
            get_renderable=self._draw,
        )

    def _draw(self) -> RenderableType:
        return bar(*self._drawing(), self._console.width)

    def show(self, drawing: Drawing) -> None:
        """Draw a ``bar``, again and again at a rate that an eye can follow."""
        if self.live:
            self._drawing = drawing
            self._display.start(refresh=True)

    def note(self, text: str) -> None:
        """Say something at once, above the line; of one line at most as many letters as a message
        has.
        """
        text = harmless(text if "\n" in text else shortened(text))
        if self.live:
            style = "yellow" if text.startswith("warning: ") else None
            self._console.print(wrapped(text, self._console.width), style=style, soft_wrap=True)
        else:
            self._stream.write(text + "\n")
            self._stream.flush()

    def close(self) -> None:
        """Leave the line as it stands, and go on below it; more than once does no harm."""
        self._display.stop()


class Notes(AbstractContextManager["Notes"]):
    """Pass lines to ``say``; of a repeated line, the count before the next new line or the end."""

    def __init__(
        self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._say = say
        self._clock = clock
        self._again: dict[str, int] = {}
        self._counted_at = clock()

    def __call__(self, line: str) -> None:
        if line in self._again:
            self._again[line] += 1
            if self._clock() - self._counted_at >= EVERY_SECONDS:
                self.count()
            return
        self.count()
        if len(self._again) == MAX_LINES:
            del self._again[next(iter(self._again))]
        self._again[line] = 0
        self._say(line)

    def count(self) -> None:
        """Say how often lines came again since this was last said."""
        for line, times in list(self._again.items()):
            if times:
                counted = f"{times:,} more times" if times > 1 else f"{times:,} more time"
                self._say(f"the same {counted}: {line}")
                self._again[line] = 0
        self._counted_at = self._clock()

    def __exit__(self, *_: object) -> None:
        self.count()
