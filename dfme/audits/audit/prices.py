"""Figures of price lines: queries until a copy, the strongest attacker, means over seeds."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dfme.audits.audit.attacks import PriceLine
from dfme.statistics import middle_of, spread

COPY = 0.9  # the agreement at which a student counts as a copy
COPY_LEVEL = f"{COPY:g}"


class SeedMean(NamedTuple):
    """Mean and deviation over seeds; None where they are not seeds."""

    mean: float | None
    sd: float | None


def over_seeds(values: Sequence[float | None]) -> SeedMean:
    """Of the values there are, each None where it is not seeds."""
    seeds = spread(values)
    return SeedMean(None, None) if seeds is None else SeedMean(seeds.mean, seeds.sd)


def to_copy(line: PriceLine, level: str = COPY_LEVEL) -> list[int | None]:
    """Queries until a copy, of every seed that is finished; None: it did not get there."""
    pairs = zip(line.queries_to[level], line.agreement, strict=True)
    return [queries for queries, agreement in pairs if agreement is not None]


def median_to_copy(line: PriceLine) -> float | None:
    """Over seeds; one that did not get there counts as more than any number."""
    return middle_of(to_copy(line))


def usable(lines: Iterable[PriceLine], mode: str) -> list[PriceLine]:
    """Lines of attacks that answers of a form allow, its own first: whoever gets scores may learn
    labels.
    """
    scored = [line for line in lines if line.mode in (mode, "label") and line.mean is not None]
    return sorted(scored, key=lambda line: line.mode != mode)


def strongest(lines: Iterable[PriceLine], mode: str) -> PriceLine | None:
    """The attacker that made a copy with the fewest queries, else the one whose students agree
    most.
    """
    return min(
        usable(lines, mode),
        key=lambda line: (median_to_copy(line) or math.inf, -(line.mean or 0.0)),
        default=None,
    )


def of_mode(lines: Sequence[PriceLine], mode: str) -> PriceLine | None:
    """The strongest attacker on this form of answers alone."""
    return strongest([line for line in lines if line.mode == mode], mode)


def seeds_text(line: PriceLine, level: str = COPY_LEVEL) -> list[str]:
    """Queries until an agreement, per seed of a price line; a failed attack counts as unknown."""
    unfinished = {"failed": "failed", "not applicable": "-"}.get(line.state, "not finished")
    missed = [unfinished if share is None else "not reached" for share in line.agreement]
    pairs = zip(line.queries_to[level], missed, strict=True)
    return [text if count is None else f"{count:,}" for count, text in pairs]
