"""When a failed request is made again, and how fast requests are sent."""

import random
import threading
import time
from collections.abc import Callable

from dfme.errors import Misfit, Refused, Unanswered, Unusable
from dfme.oracle.pace import Pace
from dfme.spec import RequestPolicy

FIRST_WAIT = 0.2  # seconds before the second attempt, then twice as long each time
MAX_WAIT = 30.0


def is_about_pace(refused: Refused) -> bool:
    """True if a slower pace may help: the service has too much to do, or wishes us to wait."""
    return refused.reason in ("429", "503") or refused.retry_after is not None


class Retries:
    """Decides after each failure of one request whether, and when, it is made again.

    ``policy`` limits the attempts and the time; ``tell`` hears the reason of a failure and a line about it;
    ``in_vain``: whether the rest of the batch has failed for good; ``fits``: whether one was ever right.
    """

    def __init__(
        self, policy: RequestPolicy, tell: Callable[[str, str], None], in_vain: Callable[[], bool], fits: bool
    ) -> None:
        self._policy = policy
        self._tell = tell
        self._in_vain = in_vain
        self._fits = fits
        self._started = time.monotonic()
        self._too_long = ""
        self._failures: dict[str, int] = {"refused": 0, "unanswered": 0, "unusable": 0}

    def wait_after(self, error: Refused | Unanswered) -> float | None:
        """Seconds until the next attempt; None: give up."""
        if not self._may_try_again(error) or self._in_vain():
            return None
        if isinstance(error, Misfit) and (error.for_good or not self._fits):
            return None
        left = self._policy.patience - (time.monotonic() - self._started)
        asked = (error.retry_after if isinstance(error, Refused) else None) or 0.0
        if left <= 0 or asked > left:
            if asked and left > 0:
                allowed = f"the {left:.1f} s left of {self._policy.patience:g} s of patience"
                self._too_long = f"; it asks to wait {round(asked, 1):,g} s, longer than {allowed}"
            return None
        self._tell(error.reason, f"{error}; asking again" + (f" in {round(asked, 1):,g} s" if asked else ""))
        if isinstance(error, Refused) and is_about_pace(error):
            return asked  # the pace sees to it that there is a pause
        growing: float = FIRST_WAIT * 2 ** min(sum(self._failures.values()) - 1, 30)
        return min(growing + random.uniform(0.0, FIRST_WAIT), MAX_WAIT)  # noqa: S311 (no secret)

    def summary(self) -> str:
        """Number of attempts and seconds, for the end of the error's message."""
        tries = sum(self._failures.values())
        if self._too_long or tries < 2:
            return self._too_long
        return f"; given up after {tries} attempts in {time.monotonic() - self._started:.1f} s"

    def _may_try_again(self, error: Refused | Unanswered) -> bool:
        """Count the failure; whether the policy allows one more attempt."""
        if isinstance(error, Refused):
            self._failures["refused"] += 1
            return error.retry
        kind = "unusable" if isinstance(error, Unusable) else "unanswered"
        self._failures[kind] += 1
        paid = self._failures["unanswered"] + self._failures["unusable"]
        return paid < self._policy.attempts and self._failures["unusable"] < self._policy.unusable


class RateLimiter:
    """Lets requests of all threads leave at one ``Pace``, by one clock."""

    def __init__(self, policy: RequestPolicy) -> None:
        self._images_per_second = policy.images_per_second
        self._pace = Pace(policy)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self.waited = 0.0  # seconds, over all threads

    @property
    def max_images(self) -> int | None:
        """Most images in one request: a second's worth, so that no burst exceeds the rate; or None."""
        return max(1, int(self._images_per_second)) if self._images_per_second else None

    def wait(self, images: int) -> float:
        """Wait for the turn of a request with so many images; when it came, on ``time.monotonic()``."""
        arrived = time.monotonic()
        while not self._closed.is_set():
            with self._lock:
                now = time.monotonic()
                seconds = self._pace.claim(now, arrived, images)
            if seconds <= 0:
                break
            self._closed.wait(seconds)
        now = time.monotonic()
        self._add_wait(now - arrived)
        return now

    def learn(self, left: float, images: int, error: BaseException | None = None) -> None:
        """Learn the outcome of a request that ``wait`` let leave then."""
        now = time.monotonic()
        with self._lock:
            if isinstance(error, Refused) and is_about_pace(error):
                self._pace.refused(now, left, error.retry_after)
            elif not isinstance(error, Refused):
                self._pace.passed(now, images)

    def pause(self, seconds: float) -> None:
        """Wait so long, or until the end."""
        self._closed.wait(seconds)
        self._add_wait(seconds)

    def _add_wait(self, seconds: float) -> None:
        with self._lock:
            self.waited += seconds

    def close(self) -> None:
        """End every wait."""
        self._closed.set()
