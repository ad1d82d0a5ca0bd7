"""Lines for a person: each is said once, and those that come again are counted."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

EVERY_SECONDS = 300.0  # between two counts, while lines come again
MAX_LINES = 100  # lines that are remembered


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
