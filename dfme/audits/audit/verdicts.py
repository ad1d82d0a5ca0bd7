"""Verdicts of an audit: each limit that a user stated, held against the strongest attacker."""

from collections.abc import Sequence

from dfme.audits.audit.model import Entry
from dfme.audits.audit.options import LIMITS
from dfme.report.facts import Beside, is_above


def verdict(
    limit: str, wanted: float, lines: Sequence[Entry], unknown: Sequence[str], beside: Beside
) -> Entry:
    judge = _price_verdict if limit in LIMITS else _agreement_verdict
    value, holds, least, told = judge(limit, wanted, lines, beside)
    text = told if lines else "no attack has finished"
    open_still = holds and (unknown or not lines)
    text += f"; the outcome of {', '.join(unknown)} is not known" if open_still and unknown else ""
    return {
        "limit": limit,
        "wanted": wanted,
        "value": value,
        "pass": None if open_still else holds,
        "text": f"You want {least}; {text}.",
    }


Judged = tuple[float | None, bool | None, str, str]
"""The figure that a limit is held against, whether the limit holds, what is wanted, and what was
found.
"""


def _price_verdict(limit: str, wanted: float, lines: Sequence[Entry], beside: Beside) -> Judged:
    """A limit on the queries until a level of agreement, which no copy below a constant answer
    has.
    """
    level = LIMITS[limit]
    counts = [
        count for line in lines for count in line["queries_to"][f"{level:g}"] if count is not None
    ]
    value = min(counts, default=None)
    least = f"at least {wanted:,.0f} queries to {level:.0%} agreement"
    if value is not None:
        return value, value >= wanted, least, f"the strongest attack needed {value:,}"
    if beside.constant is not None and beside.constant >= level:
        told = (
            f"one constant answer agrees on {beside.constant:.1%} without a query, and "
            "no attack on more"
        )
        return None, None, least, f"{told}, as far as {beside.images:,} images tell"
    return None, True, least, "no attack got there, which shows only that these failed"


def _agreement_verdict(_: str, wanted: float, lines: Sequence[Entry], beside: Beside) -> Judged:
    """A limit on the agreement, which a constant answer may exceed without a query."""
    value = max(
        (share for line in lines for share in line["agreement"] if share is not None), default=None
    )
    least = f"at most {wanted:.1%} agreement"
    if value is None or value <= wanted:
        return value, True, least, "" if value is None else f"the best copy agrees on {value:.1%}"
    exceeded = beside.constant is None or wanted >= beside.constant
    if exceeded or is_above(value, beside.constant, beside.images):
        return value, False, least, f"the best copy agrees on {value:.1%}"
    told = f"the best copy agrees on {value:.1%}, which is not above one constant answer's"
    return value, None, least, f"{told} {beside.constant:.1%}, so that this limit tells nothing"
