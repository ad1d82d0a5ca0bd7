"""How much a marking does, foretold in seconds before it begins, and how far it is."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace

from dfme.compute.modules import Seldom
from dfme.errors import OptionError, UserError, say
from dfme.teachers.owner.marking.options import MarkTools

COPY_STEPS = 2000
TEACH_STEPS = 1500
FEWER_STEPS = (1.0, 0.75, 0.5)
"""Shares of the steps that are tried where the time is short."""
MIN_CANDIDATES = 2
OTHER_COPIES = 3
"""Of true classes, of the marked model and of the unmarked one."""
MIN_DONE = 0.03
"""Share of the work from which on the pace so far foretells the rest."""


@dataclass(frozen=True)
class Plan:
    """Candidates of a rule, and steps of every copy and of the owner's teaching."""

    candidates: int
    copy_steps: int
    teach_steps: int

    def seconds(self, pace: "StepSeconds") -> float:
        """Seconds that it takes at this pace, if the first share is not too much."""
        copies = (self.candidates + OTHER_COPIES) * self.copy_steps * pace.copy_step
        return copies + self.teach_steps * pace.teach_step + pace.scoring

    def facts(self) -> dict[str, str]:
        return {name: str(value) for name, value in asdict(self).items()}


@dataclass(frozen=True)
class StepSeconds:
    """Seconds of a step of a copy, of one of the owner's, and of all that is scored."""

    copy_step: float
    teach_step: float
    scoring: float


def plan_within(candidates: int, pace: StepSeconds, minutes: float | None) -> Plan:
    """The largest plan that fits. UserError, with the minutes that are needed, where none does."""
    if minutes is None:
        return Plan(candidates, COPY_STEPS, TEACH_STEPS)
    for plan in _plans(candidates):
        if plan.seconds(pace) <= 60 * minutes:
            return plan
    least = math.ceil(plan.seconds(pace) / 6 - 1e-6) / 10
    raise OptionError("minutes", f"expected at least {least:g} on this machine", f"{minutes:g}")


def _plans(candidates: int) -> Iterator[Plan]:
    """From the largest to the smallest."""
    for share in FEWER_STEPS:
        steps = Plan(candidates, int(share * COPY_STEPS), int(share * TEACH_STEPS))
        for count in range(candidates, min(candidates, MIN_CANDIDATES) - 1, -1):
            yield replace(steps, candidates=count)


class MarkProgress:
    """Says now and then how far it is and how long it takes from here.

    ``seconds``: all of it, as foretold. The pace of this session corrects the rest.
    """

    def __init__(self, seconds: float, tools: MarkTools) -> None:
        self._left = seconds
        self._all = seconds
        self._tools = tools
        self._began = time.monotonic()
        self._done = 0.0  # of the foretold seconds, in this session

    def skip(self, seconds: float) -> None:
        """Work that an earlier session did."""
        self._left -= seconds

    def more(self, seconds: float) -> None:
        """Work that was not foretold."""
        self._left += seconds

    def steps(self, title: str, steps: int, per_step: float) -> Callable[[int], None]:
        """What hears of the steps of one training."""
        heard = 0

        def show(done: int) -> None:
            left = self._tools.duration(self.left)
            self._tools.show(f"{title}: step {done:,} of {steps:,}  {left} left")

        seldom = Seldom(show)

        def say(done: int) -> None:
            nonlocal heard
            skipped = done - heard - 1
            self.skip(skipped * per_step)
            self._done += per_step
            self._left -= per_step
            heard = done
            (show if done == steps else seldom)(done)

        return say

    @property
    def left(self) -> float:
        """Seconds from here."""
        passed = time.monotonic() - self._began
        trusted = self._done > MIN_DONE * self._all
        return max(0.0, self._left * (passed / self._done if trusted else 1.0))


def require_images(count: int, least: int, what: str) -> None:
    """UserError for too few images of a kind."""
    if count < least:
        text = f"expected at least {least} {what}, got {count}"
        raise UserError(say("{evaluation.dataset}: {}", text))
