"""The progress of a long computation, told now and then."""

import time
from collections.abc import Callable
from typing import Any

LULL = 1.5  # seconds without a word from a computation, but for one of its steps


class Seldom:
    """Pass on how far a long computation is, unless that was said a moment ago."""

    def __init__(self, say: Callable[[Any], object]) -> None:
        self._say = say
        self._at = time.monotonic()

    def __call__(self, far: Any) -> None:
        if time.monotonic() > self._at + LULL:
            self._at = time.monotonic()
            self._say(far)
