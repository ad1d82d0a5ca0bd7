"""Ctrl-C and SIGTERM as a request: the step in progress ends, the run is kept, and then it
stops.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Self

GRACE = (
    10.0  # seconds until a second signal comes by itself: a step of a large network takes minutes
)
ACKNOWLEDGED = b"\nstopping after the step in progress (once more: at once)\n"
BEFORE = b"\nstopped before the first step\n"


class Interrupt:
    """Within the context, the first signal only sets ``requested``; a second one interrupts at
    once.

    While ``starting`` the first one does, once no request is on its way (``asking``): there is no
    step to wait for, and what was answered is on file. To one that began so, the second comes by
    itself after ``GRACE``. ``announce``: say so on stderr. Outside the main thread, where Python
    allows no handlers, it is never requested.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, announce: bool = False, starting: bool = False) -> None:
        self._announce = announce
        self.starting = self._insists = starting
        self.asking: Callable[[], bool] = lambda: False
        self._requested = False
        self._over = threading.Event()
        self._previous: dict[signal.Signals, object] = {}

    def requested(self) -> bool:
        return self._requested

    def heed(self) -> None:
        """Raise KeyboardInterrupt if a signal came while starting; called between requests."""
        if self.starting and self._requested:
            raise KeyboardInterrupt

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._previous = {
                number: signal.signal(number, self._receive) for number in self.SIGNALS
            }
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._previous = {}
        self._over.set()

    def _insist(self) -> None:
        """Send the second signal, once no request is on its way, unless all is over before."""
        if not self._over.wait(GRACE):
            while self.asking() and not self._over.wait(0.05):
                pass
            if not self._over.is_set():
                os.kill(os.getpid(), signal.SIGINT)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        at_once = self.starting and not self.asking()
        # past Python's buffers, which this handler may have interrupted
        if self._announce and not self._requested:
            with contextlib.suppress(OSError, ValueError):
                os.write(sys.stderr.fileno(), BEFORE if at_once else ACKNOWLEDGED)
        if self._requested or at_once:
            raise KeyboardInterrupt
        self._requested = True
        if self._insists:
            threading.Thread(target=self._insist, daemon=True).start()
