"""Rate limits as services have them, by a clock that the caller brings."""

import base64
import io
import math
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

import defended
import numpy as np
import torch
from service import Reply, Request, http


class Limit(Protocol):
    def admit(self, now: float, units: int) -> float | None:
        """None: so many units may pass now, and are counted; else the seconds until they could."""


class Bucket:
    """A token bucket: ``rate`` units a second, and ``burst`` of them at once. It is full at
    first.
    """

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst, self._tokens, self._at = rate, burst, burst, 0.0

    def admit(self, now: float, units: int) -> float | None:
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at, needed = now, min(units, self._burst)
        if self._tokens < needed - 1e-9:
            return (needed - self._tokens) / self._rate
        self._tokens -= units
        return None


class Window:
    """At most ``units`` in each window of ``seconds``; the first one is ``old`` seconds old at
    first.
    """

    def __init__(self, units: int, seconds: float = 1.0, old: float = 0.0) -> None:
        self._units, self._seconds, self._old = units, seconds, old
        self._number, self._count = -1, 0

    def admit(self, now: float, units: int) -> float | None:
        number = math.floor((now + self._old) / self._seconds)
        if number != self._number:
            self._number, self._count = number, 0
        if self._count and self._count + units > self._units:
            return (number + 1) * self._seconds - self._old - now
        self._count += units
        return None


class Log:
    """At most ``units`` in any second."""

    def __init__(self, units: int) -> None:
        self._units, self._passed = units, list[float]()

    def admit(self, now: float, units: int) -> float | None:
        self._passed = [moment for moment in self._passed if moment > now - 1.0]
        if len(self._passed) + units > self._units:
            return self._passed[0] + 1.0 - now
        self._passed += [now] * units
        return None


KEY = "s3cret-of-the-service"
NAMES = "zero one two three four five six seven eight nine".split()


class TopThree:
    """A service of digits that takes one picture a request with a key, and names the three best
    classes.

    ``hint``: whether a refusal says when to come again. ``served`` and ``refused`` are its own
    count, with moments.
    """

    def __init__(self, scores: Callable[[Any], Any], limit: Limit, hint: bool = True) -> None:
        self._scores, self._limit, self._hint = scores, limit, hint
        self.served: list[float] = []
        self.refused: list[float] = []
        self._started, self._lock = time.monotonic(), threading.Lock()

    def __call__(self, request: Request) -> Reply:
        from PIL import Image

        if request.headers.get("authorization") != f"Bearer {KEY}":
            return http({"detail": "who are you?"}, 401)
        pixels = Image.open(io.BytesIO(base64.b64decode(request.json["image"])))
        with self._lock:
            now = time.monotonic() - self._started
            wait = self._limit.admit(now, 1)
            (self.served if wait is None else self.refused).append(now)
        if wait is not None:
            return http(
                {"detail": "slow down"}, 429, Retry_After=str(math.ceil(wait)) if self._hint else ""
            )
        scores = [float(score) for score in self._scores(pixels)]
        best = sorted(range(len(scores)), key=lambda k: -scores[k])[:3]
        named = [{"label": NAMES[k], "score": round(scores[k], 4)} for k in best]
        return http({"model": "digits-3", "result": {"predictions": named}})


embedded = cache(defended.digits)


def digits(pixels: Any) -> Any:
    """What the embedded teacher says of a grey 8x8 picture."""
    x = torch.from_numpy(np.array(pixels, np.float32) / 255)[None, None]
    return embedded()(x)[0]
