"""The parts of audit.json that follow from its others: the rate-limit sheet, and what the figures
are evidence for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CheckedQuota:
    """An attack under the quota."""

    cell: str
    agreement: float
    holds: bool


@dataclass(frozen=True, slots=True)
class QuotaDelay:
    """Hours that the cheapest copy takes under a quota of each account, with so many of them: its
    queries by the quota. In less than a term of the quota nobody waits.
    """

    accounts: int
    hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaSheet:
    """The largest quota of a key that keeps every attacker below an agreement.

    ``open``: no attack that ran got there. ``lines``: the quota as servers say it. ``delays``: of
    the cheapest copy, none where no attack made one.
    """

    keep_below: float
    per: str
    images: int
    best: float
    attacker: str
    cell: str
    open: bool
    checked: CheckedQuota | None = None
    delays: Sequence[QuotaDelay] = ()
    lines: Mapping[str, str]
    text: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """A control of a catalogue, and our figure, if any, with the directory of its cell."""

    source: str
    version: str
    date: str
    control: str
    asks: str
    figure: str | None
    dir: str | None
