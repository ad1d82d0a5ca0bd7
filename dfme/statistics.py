"""Statistics that several rooms use: intervals of shares, means over seeds, e-values, AUROC."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

Z_95 = 1.959964  # two-sided 95% quantile of the normal distribution
CONFIDENCE = 0.95
RESAMPLES = 1_000  # of the bootstrap
STEPS = 400  # of an integral


def wilson_interval(share: float, images: int) -> tuple[float, float]:
    """The 95% interval of a share counted on ``images`` independent images.

    Wilson's score interval (J. Am. Stat. Assoc. 22, 1927, 209-212), which holds its level near one
    too.
    """
    z_share = Z_95**2 / images
    scale = 1 + z_share
    centre = (share + z_share / 2) / scale
    variance = share * (1 - share) / images + z_share / (4 * images)
    half = Z_95 / scale * math.sqrt(variance)
    # an end at none or all is exact, which rounding misses: what is all of them is never above it
    low = 0.0 if share <= 0 else max(0.0, centre - half)
    high = 1.0 if share >= 1 else min(1.0, centre + half)
    return low, high


def difference_interval(
    share: float, images: int, before: float, images_before: int
) -> tuple[float, float]:
    """The 95% interval of ``share - before``, two shares counted on independent images.

    By Newcombe (Stat. Med. 17, 1998, 873-890, method 10), from Wilson's intervals. Of the same
    images twice it is wider than need be.
    """
    low, high = wilson_interval(share, images)
    low_before, high_before = wilson_interval(before, images_before)
    difference = share - before
    below = math.hypot(share - low, high_before - before)
    above = math.hypot(high - share, before - low_before)
    return difference - below, difference + above


def share_at_most(events: int, trials: int, units: int) -> float:
    """Upper limit (95 %) of the rate ``events / trials`` with so many independent units behind the
    trials.

    Of no event 3 / units; else the upper end of Wilson's interval, as if the rate were of the
    units.
    """
    return wilson_interval(events / trials, units)[1] if events else min(1.0, 3 / units)


def e_value(matches: int, trials: int, likely: float, usual: float) -> float:
    """How many times as likely ``matches`` in so many trials are at the rate ``likely`` as at the
    rate ``usual``.
    """
    hit = math.log(likely / usual)
    miss = math.log((1 - likely) / (1 - usual))
    return math.exp(min(700.0, matches * hit + (trials - matches) * miss))


def auroc(
    attacks: Mapping[Any, Sequence[float]], benign: Sequence[float]
) -> tuple[float, list[float]]:
    """P(an attack's session scores above an honest one), ties counted half, and its 95 % interval.

    By Mann and Whitney (1947), and the bootstrap: honest sessions are drawn again, and of
    ``attacks``, which are sessions by seed, the seeds, since those of one begin with the same
    images. Of few sessions, or of some that are all told apart, the interval is narrower than the
    truth: the counts stand beside it.
    """
    import numpy as np

    rng = np.random.default_rng(0)
    sizes = [len(sessions) for sessions in attacks.values()]
    scores_A = np.concatenate([*attacks.values()])
    above_AB = np.greater.outer(scores_A, benign) + np.equal.outer(scores_A, benign) / 2
    seeds = len(sizes)
    honest = len(benign)
    times_RA = rng.multinomial(seeds, [1 / seeds] * seeds, RESAMPLES).repeat(sizes, axis=1)
    times_RB = rng.multinomial(honest, [1 / honest] * honest, RESAMPLES)
    wins_R = ((times_RA @ above_AB) * times_RB).sum(1)
    drawn_R = wins_R / (times_RA.sum(1) * honest)
    low, high = np.quantile(drawn_R, (0.025, 0.975)).tolist()
    return float(above_AB.mean()), [low, high]


@dataclass(frozen=True)
class Spread:
    """``mean`` and standard deviation (n - 1) of ``count`` values; one value has no deviation."""

    mean: float
    sd: float | None
    count: Annotated[int, Field(alias="n")]

    def text(self, form: str) -> str:
        """The mean, and +- its deviation, each in ``form``."""
        return form.format(self.mean) + ("" if self.sd is None else f" +- {form.format(self.sd)}")


def spread(values: Sequence[float | None]) -> Spread | None:
    """Mean and deviation of the values there are; None if there are none."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return None
    deviation = statistics.stdev(numbers) if len(numbers) > 1 else None
    return Spread(statistics.fmean(numbers), deviation, len(numbers))


def means_differ(first: Spread, second: Spread) -> bool:
    """True if two means over seeds differ by more than the seeds explain, at 95 %.

    By Welch's t test (Biometrika 34, 1947, 28-35). False of a single value, which has no deviation.
    """
    if first.sd is None or second.sd is None:
        return False
    difference = abs(first.mean - second.mean)
    variance = first.sd**2 / first.count
    variance_second = second.sd**2 / second.count
    whole = variance + variance_second
    if not whole:
        return difference > 0
    # Welch's and Satterthwaite's number of degrees of freedom
    spent = variance**2 / (first.count - 1)
    spent_second = variance_second**2 / (second.count - 1)
    degrees = whole**2 / (spent + spent_second)
    return within_t(difference / math.sqrt(whole), degrees) > CONFIDENCE


def within_t(value: float, degrees: float) -> float:
    """P(-value <= T <= value) of Student's t with so many degrees of freedom, at least one.

    With t = sqrt(degrees) tan(a) the density is in proportion to cos(a) ** (degrees - 1), which
    Simpson's rule integrates.
    """
    end = math.atan(value / math.sqrt(degrees))
    step = end / STEPS
    power = degrees - 1
    heights: list[float] = [math.cos(step * at) ** power for at in range(STEPS + 1)]
    area = heights[0] + heights[-1]
    area += 4 * sum(heights[1:-1:2])
    area += 2 * sum(heights[2:-1:2])
    area *= step / 3
    # the integral to a right angle, by the gamma function
    log_ratio = math.lgamma(degrees / 2) - math.lgamma(degrees / 2 + 0.5)
    whole = math.sqrt(math.pi) / 2 * math.exp(log_ratio)
    return area / whole


def middle_of(counts: Iterable[float | None]) -> float | None:
    """The median, where an unknown number is more than any; None if it is unknown."""
    numbers = [math.inf if count is None else count for count in counts]
    middle = statistics.median(numbers or [math.inf])
    return middle if math.isfinite(middle) else None
