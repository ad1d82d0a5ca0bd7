"""The client's own pace: how fast requests may leave, and a pause for all of them where the service asks for one."""

from __future__ import annotations

import threading
import time

from dfme.wire import Wire


class Pace:
    """Keeps what is sent below the rates of ``wire``, by one clock for all threads.

    A request may leave when the one before has had its time: images / images_per_second, and 1 /
    requests_per_second. No wait is longer than that of the requests ahead of it: nothing waits for ever.
    """

    def __init__(self, wire: Wire) -> None:
        self._images_per_second = wire.images_per_second
        self._seconds_per_request = 1 / wire.requests_per_second if wire.requests_per_second else 0.0
        self._free_at = 0.0
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self.waited = 0.0
        """Seconds spent waiting, over all threads."""

    @property
    def most_images(self) -> int | None:
        """Images that one request may carry: a second's worth, so that no burst exceeds the rate. None: any number."""
        return max(1, int(self._images_per_second)) if self._images_per_second else None

    def wait(self, images: int) -> None:
        """Wait for the turn of a request with so many images."""
        with self._lock:
            now = time.monotonic()
            leaves = max(now, self._free_at)
            per_image = images / self._images_per_second if self._images_per_second else 0.0
            self._free_at = leaves + max(per_image, self._seconds_per_request)
        if leaves > now:
            self._closed.wait(leaves - now)
            self.waited_for(leaves - now)

    def hold(self, seconds: float) -> None:
        """Let no request leave for so long: what the service asks of one thread holds for all."""
        with self._lock:
            self._free_at = max(self._free_at, time.monotonic() + seconds)

    def waited_for(self, seconds: float) -> None:
        """Count a wait, of whoever waited."""
        with self._lock:
            self.waited += seconds

    def close(self) -> None:
        """End every wait."""
        self._closed.set()
