"""The pace that refusals teach, against limits as services have them, by a clock that nobody waits
for.

The bound, for each of them: after the first second fewer than a tenth of the requests are refused,
and four fifths of what the limit allows are used.
"""

import heapq
import itertools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from limits import Bucket, Limit, Log, Window
from tables import exhaustive

from dfme.oracle.retry import Pace
from dfme.spec import RequestPolicy

SECONDS = 120.0


@dataclass
class Heard:
    """What a service counted, by its own clock: moments, and images of what was served."""

    served: list[tuple[float, int]] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)


def asked(
    pace: Pace,
    limit: Limit,
    hint: Callable[[float], float | None],
    in_flight: int = 4,
    latency: float = 0.02,
    *,
    sizes: Iterator[int] | None = None,
    by_images: bool = False,
    seconds: float = SECONDS,
) -> Heard:
    """What a service hears, in simulated time, of threads that ask again as soon as ``pace`` lets
    them.
    """
    heard, number, images_of = Heard(), itertools.count(), sizes or itertools.repeat(1)
    events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    def at(moment: float, act: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(events, (moment, next(number), act, arguments))

    def want(now: float, images: int, arrived: float | None = None) -> None:
        since = now if arrived is None else arrived
        wait = pace.claim(now, since, images)
        if wait > 0:
            at(now + wait + 1e-9, want, images, since)
        else:
            at(now + latency / 2, serve, images, now)

    def serve(now: float, images: int, sent_at: float) -> None:
        wait = limit.admit(now, images if by_images else 1)
        if wait is None:
            heard.served.append((now, images))
            at(now + latency / 2, answer, images)
        else:
            heard.refused.append(now)
            at(now + latency / 2, refuse, images, sent_at, hint(wait))

    def answer(now: float, images: int) -> None:
        pace.passed(now, images)
        want(now, next(images_of))

    def refuse(now: float, images: int, sent_at: float, wish: float | None) -> None:
        pace.refused(now, sent_at, wish)
        at(now + (wish or 0.0), want, images)

    for _ in range(in_flight):
        at(0.0, want, next(images_of))
    while events and events[0][0] < seconds:
        now, _, act, arguments = heapq.heappop(events)
        act(now, *arguments)
    return heard


HINTS: dict[str, Callable[[float], float | None]] = {
    "no hint": lambda wait: None,
    "seconds": lambda wait: float(math.ceil(wait)),
    "exact": lambda wait: wait,
    "at once": lambda wait: 0.0,
}
LIMITS: dict[str, tuple[Callable[[], Limit], float]] = {
    "bucket of 5": (lambda: Bucket(5, 5), 5),
    "window of 5": (lambda: Window(5, old=0.97), 5),
    "bucket of 1": (lambda: Bucket(5, 1), 5),
    "bucket of 100": (lambda: Bucket(5, 100), 5),
    "slow bucket": (lambda: Bucket(1, 1), 1),
    "fast bucket": (lambda: Bucket(200, 200), 200),
    "fast window": (lambda: Window(50, old=0.5), 50),
    "any second": (lambda: Log(20), 20),
    "a minute": (lambda: Window(120, 60.0), 2),
}
FIRST = [
    ("bucket of 5", "no hint", 4),
    ("bucket of 5", "seconds", 1),
    ("window of 5", "no hint", 1),
    ("window of 5", "seconds", 4),
    ("bucket of 1", "seconds", 4),
    ("any second", "no hint", 4),
    ("fast bucket", "exact", 16),
    ("a minute", "seconds", 4),
    ("bucket of 100", "no hint", 4),
]


@pytest.mark.parametrize(
    "row",
    [
        *FIRST,
        *exhaustive(
            *[row for row in itertools.product(LIMITS, HINTS, (1, 4, 16)) if row not in FIRST]
        ),
    ],
    ids=str,
)
def test_refusals_are_few_and_most_of_what_is_allowed_is_used(row: tuple[str, str, int]) -> None:
    name, hint, in_flight = row
    make, rate = LIMITS[name]
    seconds = 10 * SECONDS if name == "a minute" else SECONDS
    latency = 0.002 if in_flight == 1 else 0.02
    heard = asked(Pace(RequestPolicy()), make(), HINTS[hint], in_flight, latency, seconds=seconds)
    later = sum(moment > 1 for moment in heard.refused)
    assert later < 0.1 * (later + sum(moment > 1 for moment, _ in heard.served))
    assert len(heard.served) > 0.8 * rate * seconds
    # in the first second: what was on its way, and a few more
    assert len(heard.refused) <= later + 3 * in_flight + 10


def test_it_stays_lowered_for_the_rest_of_the_run() -> None:
    """Each half hour has as few refusals as the one before: the pace is not forgotten."""
    heard = asked(Pace(RequestPolicy()), Bucket(5, 5), HINTS["seconds"], seconds=7_200)
    starts = range(1, 7_200, 1_800)
    halves = [sum(start < moment <= start + 1_800 for moment in heard.refused) for start in starts]
    assert max(halves) < 0.03 * 1_800 * 5
    assert len(heard.served) > 0.9 * 5 * 7_200


def test_what_was_refused_is_tried_again_gently() -> None:
    """From a refusal on no second sees more than a tenth beyond what the service allows."""
    heard = asked(Pace(RequestPolicy()), Window(50), HINTS["no hint"], seconds=300)
    moments = sorted([moment for moment, _ in heard.served] + heard.refused)
    busiest = max(sum(start <= moment < start + 1 for moment in moments) for start in range(5, 300))
    assert 50 <= busiest <= 58


SIZES: dict[str, Callable[[], Iterator[int]]] = {
    "mixed": lambda: itertools.cycle([64, 64, 8]),
    "large, then small": lambda: itertools.chain(itertools.repeat(500, 40), itertools.repeat(64)),
    "small, then large": lambda: itertools.chain(itertools.repeat(64, 400), itertools.repeat(500)),
}


@pytest.mark.parametrize("hint", ["no hint", *exhaustive("seconds")])
@pytest.mark.parametrize("by_images", [True, False], ids=["images", "requests"])
@pytest.mark.parametrize("sizes", SIZES)
def test_requests_of_different_sizes(sizes: str, by_images: bool, hint: str) -> None:
    """Whether the service counts requests or images is found out."""
    rate = 1_000 if by_images else 5
    limit, pace = Bucket(rate, rate), Pace(RequestPolicy())
    heard = asked(pace, limit, HINTS[hint], sizes=SIZES[sizes](), by_images=by_images, seconds=300)
    assert len(heard.refused) < 0.1 * (len(heard.served) + len(heard.refused))
    assert sum(images if by_images else 1 for _, images in heard.served) > 0.8 * rate * 300


def test_rates_that_are_stated_are_bounds_whatever_was_learnt() -> None:
    free = Bucket(1e9, 1e9)
    heard = asked(Pace(RequestPolicy(requests_per_second=4)), free, HINTS["no hint"], seconds=30)
    assert len(heard.served) == pytest.approx(4 * 30, abs=4)
    assert min(later - now for (now, _), (later, _) in pairwise(heard.served)) > 0.249
    pace = Pace(RequestPolicy(images_per_second=100))
    heard = asked(
        pace, Bucket(50, 50), HINTS["seconds"], sizes=itertools.repeat(10), by_images=True
    )
    assert len(heard.served) == pytest.approx(5 * SECONDS, rel=0.15)
    assert min(later - now for (now, _), (later, _) in pairwise(heard.served)) > 0.099


def test_without_a_refusal_nothing_waits() -> None:
    heard = asked(Pace(RequestPolicy()), Bucket(1e9, 1e9), HINTS["no hint"], 4, 0.02, seconds=10)
    assert len(heard.served) == pytest.approx(4 * 10 / 0.02, rel=0.01)


def test_a_service_that_is_away_is_tried_seldom_and_once_it_is_back_it_is_asked_as_before() -> None:
    class Away(Bucket):
        def admit(self, now: float, units: int) -> float | None:
            return 1.0 if 20 < now < 80 else super().admit(now, units)

    heard = asked(Pace(RequestPolicy()), Away(50, 50), HINTS["no hint"], seconds=300)
    assert sum(20 < moment < 80 for moment in heard.refused) < 20
    assert sum(200 < moment < 300 for moment, _ in heard.served) > 0.8 * 50 * 100


@dataclass
class Moody:
    """A service that refuses so large a share of the requests, whatever their pace."""

    share: float
    rng: random.Random = field(default_factory=lambda: random.Random(0))

    def admit(self, now: float, units: int) -> float | None:
        return 0.0 if self.rng.random() < self.share else None


@pytest.mark.parametrize("row", [("no hint", 1, 0.02), ("at once", 4, 0.1)], ids=str)
@pytest.mark.parametrize(("share", "left"), [(0.02, 0.5), (0.05, 0.5), (1 / 3, 0.25)])
def test_a_service_that_refuses_whatever_the_pace_is_not_asked_ever_more_slowly(
    share: float, left: float, row: tuple[str, int, float]
) -> None:
    hint, in_flight, latency = row
    seconds = 2_000 * latency / in_flight
    heard = asked(
        Pace(RequestPolicy()), Moody(share), HINTS[hint], in_flight, latency, seconds=seconds
    )
    assert len(heard.served) > left * 2_000
    later = sum(moment > seconds / 2 for moment, _ in heard.served)
    assert later > 0.4 * len(heard.served), "nor much slower in the second half"


def test_a_limit_is_met_after_a_time_of_refusals_at_random_as_well() -> None:
    class Changed(Bucket):
        moody = Moody(1 / 3)

        def admit(self, now: float, units: int) -> float | None:
            return self.moody.admit(now, units) if now < 60 else super().admit(now, units)

    heard = asked(Pace(RequestPolicy()), Changed(5, 5), HINTS["seconds"], seconds=300)
    refused = sum(moment > 60 for moment in heard.refused)
    served = sum(moment > 60 for moment, _ in heard.served)
    assert served > 0.8 * 5 * 240
    assert refused < 0.2 * (refused + served)
