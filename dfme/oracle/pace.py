"""How fast a service is asked: never above the rates stated, and after a refusal at the pace that it taught.

Additive increase, multiplicative decrease (Chiu and Jain, Computer Networks and ISDN Systems 17, 1989), with the rate
measured between two refusals in place of a blind halving: between two moments at which a token bucket was empty, or a
window full, as many requests passed as the service allows. The constants are heuristic: on buckets and windows of 1 to
1000 a second they refuse 2 % of the requests and use 90 % of what is allowed (tests/oracle/test_pace.py).
"""

from __future__ import annotations

import math

from dfme.spec import RequestPolicy

MARGIN = 0.95  # of the rate that was measured
STEP, STEP_PER_SECOND = 0.002, 0.01  # most that a request that passed, and that a second, add to the pace
TO_FIND, TO_REGAIN = 50, 10  # times so much while no pace was refused yet, and below nine tenths of the one that was
OVERSHOT = 0.7  # of the first pace that was refused
MAX_STEP = 0.1
MAX_PAUSE = 30.0  # seconds, unless the service asks for more


class Pace:
    """Says when the next request may leave, by a clock that the caller brings: every ``now`` is in its seconds.

    A request leaves when the one before it has had its time: the longer of what ``policy`` and what the service's
    refusals say. Whether the service counts requests or images shows once they would differ.
    """

    def __init__(self, policy: RequestPolicy) -> None:
        self._stated = policy.requests_per_second, policy.images_per_second
        self._learnt: list[float] | None = None  # requests and images per second
        self._unit: int | None = None  # which of them the service counts, once it is known
        self._reference = 0.0  # the highest rate of requests that was measured between two refusals
        self._ceiling = math.inf  # the pace at the latest refusal
        self._free_at = -math.inf
        self._pause = 0.0
        self._since: float | None = None  # when ``_passed`` began to be counted
        self._passed = [0, 0]
        self._refused_at = -math.inf
        self._in_a_row = 0

    def claim(self, now: float, arrived: float, images: int) -> float:
        """Seconds to wait before asking again for leave, since ``arrived``; 0 or less: the request leaves now."""
        leaves = max(arrived, self._free_at)
        if leaves <= now:
            self._free_at = leaves + self._interval(images)
        return leaves - now

    def passed(self, now: float, images: int) -> None:
        """A request was let through: a little faster from here on."""
        self._since = now if self._since is None else self._since
        if self._in_a_row:
            self._in_a_row = 0
            self._free_at = min(self._free_at, now + self._interval(images))
        self._passed = [self._passed[0] + 1, self._passed[1] + images]
        if self._learnt is not None:
            rate = self._learnt[0]
            step = min(STEP, STEP_PER_SECOND / rate) * max(1.0, self._reference / rate)
            if self._ceiling == math.inf:
                step *= TO_FIND
            elif rate < 0.9 * self._ceiling:
                step *= TO_REGAIN
            else:
                step /= max(1.0, self._pause)  # what is dear is tried seldom
            self._learnt = [rate * (1 + min(step, MAX_STEP)) for rate in self._learnt]

    def refused(self, now: float, left: float, asked: float | None) -> None:
        """A request that ``left`` was refused for the pace; the service ``asked`` to wait so many seconds, or not.

        Nothing leaves meanwhile, and then one request alone until one has passed. Requests that left before the latest
        refusal came tell nothing new.
        """
        if left > self._refused_at:
            self._refused_at = now
            self._in_a_row += 1
            if self._since is not None and self._passed[0]:
                self._learn(now, now - self._since)
        least = max(0.2 if asked is None else 0.01, min(1.0, 1 / self._learnt[0]) if self._learnt else 0.0)
        self._pause = max(asked or 0.0, min(least * 2 ** (self._in_a_row - 1), MAX_PAUSE))
        self._free_at = max(self._free_at, now + self._pause)

    def _interval(self, images: int) -> float:
        """Seconds from a request of so many images to the next one."""
        units = (1, images)
        stated = [unit / rate for unit, rate in zip(units, self._stated, strict=True) if rate]
        learnt = [unit / rate for unit, rate in zip(units, self._learnt or (), strict=False)] or [0.0]
        seconds = min(learnt) if self._unit is None else learnt[self._unit]
        return max(seconds, *stated, self._pause if self._in_a_row else 0.0, 0.0)

    def _learn(self, now: float, seconds: float) -> None:
        """Take what passed since the refusal before, in so many seconds, for what the service allows."""
        if self._learnt is None:
            self._learnt = [MARGIN * passed / max(seconds, 1.0) for passed in self._passed]
        else:
            measured = [passed / max(seconds, 1e-3) for passed in self._passed]
            found = list(map(min, measured, self._learnt))
            self._reference = max(self._reference, found[0])
            if self._ceiling == math.inf:  # it was far slower at first: the mean tells nothing
                found = [OVERSHOT * rate for rate in self._learnt]
            self._ceiling = self._learnt[0]
            changes = [abs(math.log(new / old)) for new, old in zip(measured, self._learnt, strict=True)]
            unit = changes.index(min(changes)) if max(changes) - min(changes) > 0.1 else self._unit
            if unit != self._unit:  # what was refused was said in the other unit
                self._unit, self._ceiling = unit, math.inf
            self._learnt = [MARGIN * rate for rate in found]
        self._since, self._passed = now, [0, 0]
