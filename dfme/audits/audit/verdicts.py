"""Verdicts of an audit: each limit that a user stated, held against the strongest attacker."""

from collections.abc import Sequence
from typing import NamedTuple

from dfme.audits.audit.attacks import IntOrFloat, PriceLine
from dfme.audits.audit.options import LIMITS
from dfme.audits.audit.result import LimitVerdict
from dfme.report.run_files import Beside, is_above


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
    failed = "no attack got there, which shows only that these failed"
    return _Judged(None, True, least, failed)


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
