"""The arithmetic over seeds: means with their spread, and queries that not every seed reached."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """``mean`` and standard deviation (n - 1) of ``count`` values; one value has no deviation."""

    mean: float
    sd: float | None
    count: int

    def text(self, form: str) -> str:
        """The mean, and +- its deviation, each in ``form``."""
        return form.format(self.mean) + ("" if self.sd is None else f" +- {form.format(self.sd)}")


@dataclass(frozen=True)
class Reached:
    """Queries until a level was reached, over seeds: ``spread`` where all did, else how many and the median.

    The median is over all seeds, one that did not reach the level counting as more than any number; None where it
    is one of those.
    """

    reached: int
    seeds: int
    spread: Spread | None
    median: float | None

    def __str__(self) -> str:
        if self.spread is not None:
            return self.spread.text("{:,.0f}")
        if not self.reached:
            return "not reached"
        return f"{self.reached} of {self.seeds}" + ("" if self.median is None else f": {self.median:,.0f}")


def spread(values: Sequence[float | None]) -> Spread | None:
    """Of the values there are; None if there are none."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Spread(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None, len(known))


def reached(queries: Sequence[int | None]) -> Reached:
    """Of the queries that each seed needed; None is a seed that never got there."""
    known = [count for count in queries if count is not None]
    if len(known) == len(queries):
        return Reached(len(known), len(queries), spread(known), None)
    middle = statistics.median([math.inf if count is None else count for count in queries])
    return Reached(len(known), len(queries), None, middle if math.isfinite(middle) else None)
