"""Ctrl-C and SIGTERM as a request: the step in progress ends, the run is kept, and then it stops."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Self

ACKNOWLEDGED = b"\nstopping after the step in progress (once more: at once)\n"


class Interrupt:
    """Within the context, the first signal only sets ``requested``; a second one interrupts at once.

    While ``starting`` the first one does, once no request is on its way (``asking``): there is no step to wait for, and
    what was answered is on file.

    ``announce``: say so on stderr. Outside the main thread, where Python allows no handlers, it is never requested.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, announce: bool = False, starting: bool = False) -> None:
        self._announce = announce
        self.starting = starting
        self.asking: Callable[[], bool] = lambda: False
        self._requested = False
        self._previous: dict[signal.Signals, object] = {}

    def requested(self) -> bool:
        return self._requested

    def heed(self) -> None:
        """Raise KeyboardInterrupt if a signal came while starting; to be called when a request is answered."""
        if self.starting and self._requested:
            raise KeyboardInterrupt

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._receive) for number in self.SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._previous = {}

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._requested or (self.starting and not self.asking()):
            raise KeyboardInterrupt
        self._requested = True
        if self._announce:  # past Python's buffers, which this handler may have interrupted
            with contextlib.suppress(OSError, ValueError):
                os.write(sys.stderr.fileno(), ACKNOWLEDGED)
