"""The part of audit.json on attacks whose queries are dealt out to many accounts."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitAlarm:
    """What a detector says of an attack (``cell``) whose queries come in turn from ``accounts``.

    ``images``: of all accounts; ``most``: of the one that has most. ``alarmed``: accounts with an
    alarm, None where the detector sees all traffic and names nobody. ``first_alarm``: images of all
    accounts together by the first one, None: never; ``agreement_at_alarm``: of
    the copy with a quarter more at most.
    """

    cell: str
    row: str
    mode: str
    seed: int
    detector: str
    accounts: int
    images: int
    most: int
    alarmed: int | None
    first_alarm: int | None
    agreement_at_alarm: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountShare:
    """What limits see of a copy's queries that so many ``accounts`` share.

    ``most``: images of the account that has most. ``within_quota``: whether the rate-limit sheet's
    quota lets it pass, None without a sheet. ``hours``: until all are answered, at the owner's
    ``rate`` for each key.
    """

    accounts: int
    most: int
    within_quota: bool | None
    hours: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyAccounts:
    """The attacks on the model's own answers, as if many accounts had sent their queries.

    ``attacker``: the strongest; its copy took ``queries``, or, if it is none, all were asked
    (``copied``). ``dealt``: how queries come to accounts.
    """

    attacker: str
    queries: int
    copied: bool
    dealt: str
    alarms: Sequence[SplitAlarm]
    shares: Sequence[AccountShare]
    text: str
