"""When a failed request is made again, and how fast requests are sent: never above the rates
stated.

The pace is learnt: additive increase, multiplicative decrease (Chiu and Jain, Computer Networks and
ISDN Systems 17, 1989), with the rate measured between two refusals in place of a blind halving:
between two moments at which a token bucket was empty, or a window full, as many requests passed as
the service allows. Some services refuse at random: after some falls, where the share of refusals
did not fall with the pace, this rises whatever is refused, until a higher one shows a higher share.
The constants are heuristic.

Images that a service answers without a class are charged, counted by the ledger and left out of all
training and scoring. A name that is none of the classes may be that, as "not sure" is, or a fault
of the adapter, which would leave out all images of a class that it spells wrongly. So a run ends
early where such names are the rule, and where no image at all is given a class. Both follow from
the ledger's counts, so that a resumed run ends alike, and asks nothing.
"""

import math
import random
import threading
import time
from collections.abc import Callable, Iterable

from torch import Tensor

from dfme.answers.reading import NO_ANSWER, UNKNOWN_CLASS, gaps_of
from dfme.errors import Misfit, Refused, Unanswered, Unserved, Unusable, say
from dfme.oracle.ledger import Ledger
from dfme.spec import RequestPolicy

NO_LABEL = "no label"
NO_CLASS = "unknown class"
REASONS = {NO_ANSWER: NO_LABEL, UNKNOWN_CLASS: NO_CLASS}
"""What the ledger says of the marks of ``PartialAnswers``."""

MAX_UNKNOWN = 20
"""So many names that are no classes, before as many images were given one: the adapter is wrong."""

MAX_WITHOUT = 100
"""So many images are paid for, and none is given a class: the service has nothing to tell of them.
"""

MANY = 0.05  # a share of the images paid for that is worth a warning at the end

SHOWN = 5  # names in a message


def gap_counts(answers: Tensor) -> dict[str, int]:
    """The images without a class by reason, those reasons alone that occur."""
    gaps_B = gaps_of(answers)
    counts = {reason: int((gaps_B == mark).sum()) for mark, reason in REASONS.items()}
    return {reason: images for reason, images in counts.items() if images}


def left_out_warnings(ledger: Ledger, evaluation: int) -> list[str]:
    """What to say of images that are left out, where there are many. ``evaluation``: of that
    set.
    """
    paid = ledger.paid_without_answer
    answered = paid + ledger.paid_with_answer
    if paid < MANY * answered and not evaluation:
        return []
    beside = f", and for {evaluation:,} evaluation images" if evaluation else ""
    reasons = ", ".join(sorted(reason for reason, images in ledger.no_answer.items() if images))
    return [
        f"the service named none of the classes for {paid:,} of the {answered:,} images paid "
        f"for{beside} "
        f"({reasons}): they are left out, and every figure is of the others alone"
    ]


def require_classes(ledger: Ledger, names: Iterable[str] = (), enough: int = MAX_WITHOUT) -> None:
    """Unserved where what the service answers is too seldom a class.

    ``names``: what it said instead. ``enough``: images without a class, where none has one.
    """
    unknown = ledger.no_answer[NO_CLASS].total()
    if unknown >= MAX_UNKNOWN > ledger.given.total():
        examples = ", ".join(list(names)[:SHOWN])
        raise Unserved(
            f"the service answered what is none of the classes for {unknown} of the first "
            f"{unknown + ledger.given.total()} images{f' ({examples})' if examples else ''}: name "
            "all its "
            "classes in "
            "answer.classes, and in answer.no_answer what it says where it knows none; then start "
            "a new run, "
            "since these answers are on record in this one"
        )
    without = ledger.paid_without_answer
    if without >= enough and not ledger.paid_with_answer:
        raise Unserved(
            say(
                "the service gave no class to any of the first {} images paid for: the method's "
                "images tell it nothing, or the adapter reads the wrong place; look with run.py "
                "check, then start a new run with another method, or with images like its own "
                "({method.name:knockoff})",
                without,
            )
        )


FIRST_WAIT = 0.2  # seconds before the second attempt, then twice as long each time
MAX_WAIT = 30.0

# Of the pace.
MARGIN = 0.95  # of the rate that was measured
STEP = 0.002  # most that a request that passed adds to the pace
STEP_PER_SECOND = 0.01  # and a second
TO_REGAIN = 10  # times so much below nine tenths of the pace that was refused
OVERSHOT = 0.7  # of the first pace that was refused
MAX_STEP = 0.1  # also while no pace was refused yet
MIN_PAUSE = 0.1  # seconds, unless the service asks for more
MAX_PAUSE = 30.0
SLOWEST = 1e-3  # a second, of what is learnt
FASTEST = 1e6
FALLS = 4  # of the pace, after which the share of refusals is judged
FEW = 25  # steps up, times the share of refusals: above it the falls outweigh the steps
FREE_STEP = 1.0  # of the pace, where slowing down is in vain
FREE_PAUSE = 0.001  # seconds, there
DOUBTS = 2  # the share of refusals rose: so many beyond ...
MORE = 1.5  # ... so many times the share before
IN_VAIN = 0.5  # largest share of refusals that is taken for chance
MEMORY = 200  # outcomes, beyond which half of them are forgotten


def is_about_pace(refused: Refused) -> bool:
    """True if a slower pace may help: the service has too much to do, or wishes us to wait."""
    return refused.reason in ("429", "503") or refused.retry_after is not None


class Retries:
    """Decides after each failure of one request whether, and when, it is made again.

    ``policy`` limits the attempts and the time; ``tell`` hears the reason of a failure and a line
    about it; ``in_vain``: the rest of the batch has failed for good; ``fits``: the service has
    answered as expected.
    """

    def __init__(
        self,
        policy: RequestPolicy,
        tell: Callable[[str, str], None],
        in_vain: Callable[[], bool],
        fits: bool,
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
        seconds_left = self._policy.patience - (time.monotonic() - self._started)
        asked = (error.retry_after if isinstance(error, Refused) else None) or 0.0
        if seconds_left <= 0 or asked > seconds_left:
            if asked and seconds_left > 0:
                allowed = (
                    f"the {seconds_left:.1f} s left of {self._policy.patience:g} s of patience"
                )
                self._too_long = f"; it asks to wait {round(asked, 1):,g} s, longer than {allowed}"
            return None
        self._tell(
            error.reason,
            f"{error}; asking again" + (f" in {round(asked, 1):,g} s" if asked else ""),
        )
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


class Pace:
    """Decide when the next request may leave, in the seconds of the caller's clock ``now``.

    A request leaves when the one before it has had its time: the longer of what ``policy`` and what
    the service's refusals say.
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
        self._falls = 0  # since the share of refusals was judged
        self._outcomes = [0.0, 0.0]  # requests that passed and that were refused since then
        self._share = 0.0  # of refusals, as it was judged
        self._in_vain = False  # whether slowing down did not lower it

    def claim(self, now: float, arrived: float, images: int) -> float:
        """Seconds until asking for leave again, since ``arrived``; 0 or less: leave now."""
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
        self._outcomes[0] += 1
        if self._learnt is not None and self._learnt[0] < FASTEST:
            growth = self._growth(self._learnt[0])
            self._learnt = [rate * (1 + growth) for rate in self._learnt]

    def refused(self, now: float, sent_at: float, asked: float | None) -> None:
        """Note that a request that ``left`` was refused for pace; ``asked``: seconds to wait, if
        any.

        Nothing leaves meanwhile. Requests that left before the latest refusal came tell nothing
        new.
        """
        new = sent_at > self._refused_at
        if new:
            self._refused_at = now
            self._in_a_row += 1
        self._outcomes[1] += self._in_vain or new
        if self._in_vain:
            self._judge_freedom()
        if new and self._since is not None and self._passed[0]:
            if not self._in_vain:
                self._judge_falls()
            if not self._in_vain:
                self._learn(now - self._since)
            self._since = now
            self._passed = [0, 0]
        rate = FASTEST if self._learnt is None else self._learnt[0]
        least = FREE_PAUSE if self._in_vain else max(MIN_PAUSE, min(1.0, 1 / rate))
        self._pause = asked or min(least * 2 ** min(self._in_a_row - 1, 20), MAX_PAUSE)
        self._free_at = max(self._free_at, now + self._pause)

    def _judge_falls(self) -> None:
        """Slowing down is in vain where the share of refusals is neither small nor half of what it
        was.
        """
        if self._learnt is not None and self._falls == FALLS:
            share = self._outcomes[1] / sum(self._outcomes)
            few = FEW * min(STEP, STEP_PER_SECOND / self._learnt[0])
            self._in_vain = share > max(few, self._share / 2)
            self._share = max(share, self._share) if self._in_vain else share
            self._falls = 0
        if self._falls == 0:
            self._outcomes = [0.0, 0.0]
        self._falls += 1

    def _judge_freedom(self) -> None:
        """Slow down again where the share of refusals rose with the pace."""
        outcomes = sum(self._outcomes)
        if self._outcomes[1] > DOUBTS + MORE * min(self._share, IN_VAIN) * outcomes:
            self._share = self._outcomes[1] / outcomes
            self._in_vain = False
            self._falls = 0
        elif outcomes > MEMORY:
            self._outcomes = [count / 2 for count in self._outcomes]

    def _growth(self, rate: float) -> float:
        if self._in_vain:
            return FREE_STEP
        if self._ceiling == math.inf:
            return MAX_STEP
        times = TO_REGAIN if rate < 0.9 * self._ceiling else 1
        return min(
            times * min(STEP, STEP_PER_SECOND / rate) * max(1.0, self._reference / rate), MAX_STEP
        )

    def _interval(self, images: int) -> float:
        units = (1, images)
        stated = [unit / rate for unit, rate in zip(units, self._stated, strict=True) if rate]
        learnt = [unit / rate for unit, rate in zip(units, self._learnt or (), strict=False)] or [
            0.0
        ]
        seconds = min(learnt) if self._unit is None else learnt[self._unit]
        return max(seconds, *stated, self._pause if self._in_a_row else 0.0, 0.0)

    def _learn(self, seconds: float) -> None:
        """Take what passed since the refusal before, in so many seconds, for what the service
        allows.
        """
        if self._learnt is None:
            self._learnt = [MARGIN * passed / max(seconds, 1.0) for passed in self._passed]
        else:
            measured = [passed / max(seconds, 1e-3) for passed in self._passed]
            rates = list(map(min, measured, self._learnt))
            self._reference = max(self._reference, rates[0])
            if self._ceiling == math.inf:  # it was far slower at first: the mean tells nothing
                rates = [OVERSHOT * rate for rate in self._learnt]
            self._ceiling = self._learnt[0]
            changes = [
                abs(math.log(new / old)) for new, old in zip(measured, self._learnt, strict=True)
            ]
            unit = changes.index(min(changes)) if max(changes) - min(changes) > 0.1 else self._unit
            if unit != self._unit:  # what was refused was said in the other unit
                self._unit = unit
                self._ceiling = math.inf
                self._reference = 0.0
            self._learnt = [max(MARGIN * rate, SLOWEST) for rate in rates]


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
        """Most images in one request: a second's worth, so that no burst exceeds the rate; or
        None.
        """
        return max(1, int(self._images_per_second)) if self._images_per_second else None

    def wait(self, images: int) -> float:
        """Wait for the turn of a request with so many images; when it came, on
        ``time.monotonic()``.
        """
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

    def learn(self, sent_at: float, images: int, error: BaseException | None = None) -> None:
        """Learn the outcome of a request that ``wait`` let leave then."""
        now = time.monotonic()
        with self._lock:
            if isinstance(error, Refused) and is_about_pace(error):
                self._pace.refused(now, sent_at, error.retry_after)
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
