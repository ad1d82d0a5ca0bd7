"""Figures of price lines, such as queries until a copy, and verdicts on a user's limits."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dfme.audits.audit.options import LIMITS
from dfme.audits.audit.parts import IntOrFloat
from dfme.audits.audit.price_parts import PriceLine
from dfme.audits.audit.result import LimitVerdict
from dfme.report.run_files import Beside, is_above
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


class _Judged(NamedTuple):
    """The figure that a limit is held against, whether the limit holds, what is wanted, and what
    the attacks came to.
    """

    value: IntOrFloat | None
    holds: bool | None
    wanted: str
    outcome: str


def verdict(
    limit: str,
    wanted: IntOrFloat,
    lines: Sequence[PriceLine],
    unknown: Sequence[str],
    beside: Beside,
) -> LimitVerdict:
    judge = _price_verdict if limit in LIMITS else _agreement_verdict
    judged = judge(limit, wanted, lines, beside)
    text = judged.outcome if lines else "no attack has finished"
    holds = judged.holds
    if holds and (unknown or not lines):
        holds = None
        text += f"; the outcome of {', '.join(unknown)} is not known" if unknown else ""
    return LimitVerdict(limit, wanted, judged.value, holds, f"You want {judged.wanted}; {text}.")


def _price_verdict(
    limit: str, wanted: IntOrFloat, lines: Sequence[PriceLine], beside: Beside
) -> _Judged:
    """A limit on the queries until a level of agreement, which no copy below a constant answer
    has.
    """
    level = LIMITS[limit]
    seeds = [line.queries_to[f"{level:g}"] for line in lines]
    counts = [count for queries in seeds for count in queries if count is not None]
    least = f"at least {wanted:,.0f} queries to {level:.0%} agreement"
    if counts:
        value = min(counts)
        return _Judged(value, value >= wanted, least, f"the strongest attack needed {value:,}")
    if beside.constant is not None and beside.constant >= level:
        nothing = (
            f"one constant answer agrees on {beside.constant:.1%} without a query, and "
            f"no attack on more, as far as {beside.images:,} images tell"
        )
        return _Judged(None, None, least, nothing)
    return _Judged(None, True, least, "no attack got there, which shows only that these failed")


def _agreement_verdict(
    _: str, wanted: IntOrFloat, lines: Sequence[PriceLine], beside: Beside
) -> _Judged:
    """A limit on the agreement, which a constant answer may exceed without a query."""
    shares = [share for line in lines for share in line.agreement if share is not None]
    most = f"at most {wanted:.1%} agreement"
    if not shares:
        return _Judged(None, True, most, "")
    value = max(shares)
    best = f"the best copy agrees on {value:.1%}"
    if value <= wanted:
        return _Judged(value, True, most, best)
    constant = beside.constant
    if constant is None or wanted >= constant or is_above(value, constant, beside.images):
        return _Judged(value, False, most, best)
    nothing = f"{best}, which is not above one constant answer's {constant:.1%}, so that this limit"
    return _Judged(value, None, most, f"{nothing} tells nothing")
