"""What the owner's side measures: bills of defences, and what detectors saw. Both sides read it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import PlainSerializer


@dataclass(frozen=True, kw_only=True)
class StreamBill:
    """What honest users pay on one stream of images: their answers against undefended ones.

    None: not measured, since nothing was answered or the images have no labels.
    """

    answered: int
    top1_changed: float | None = None
    l1_mean: float | None = None
    l1_p95: float | None = None
    l1_max: float | None = None
    accuracy: float | None = None
    accuracy_drop: float | None = None
    became_wrong: int | None = None
    became_right: int | None = None
    ece: float | None = None
    nll: float | None = None
    confidence_auroc: float | None = None
    """None, too, where all answers are right, or all are wrong"""
    state_mb: float = 0.0
    report: Mapping[str, Any] = field(default_factory=dict)
    """what the defences counted, by their names"""
    work_s_per_1000: float | None = None
    accuracy_interval: tuple[float, float] | None = None

    def to_json(self) -> dict[str, Any]:
        """Its keys without those that were not measured."""
        always = () if self.accuracy is None else ("confidence_auroc",)
        return {
            name: value for name, value in vars(self).items() if value is not None or name in always
        }


MeasuredStream = Annotated[StreamBill, PlainSerializer(StreamBill.to_json)]
"""In JSON without what was not measured."""


@dataclass(frozen=True)
class Bill:
    """What a stack of defences, or a label mode, costs honest users.

    ``row``: the name of the stack as it was asked for. ``states``: what the stack states of itself,
    in words; nothing of a label mode. ``ms``: milliseconds an image in calls of so many, and how
    many times those of an undefended call; nothing behind a meter. ``state_mb``: megabytes that the
    defences hold after the last stream.
    """

    row: str
    defence: str
    states: Mapping[str, str]
    held_out: MeasuredStream
    corrupted: MeasuredStream
    data_free: MeasuredStream
    ms: Mapping[str, float]
    state_mb: float | None

    def to_json(self) -> dict[str, Any]:
        """Its keys, and of streams those that were measured."""
        return {
            name: value.to_json() if isinstance(value, StreamBill) else value
            for name, value in vars(self).items()
        }


@dataclass(frozen=True)
class DetectorFacts:
    """A detector as it was calibrated."""

    name: str
    statistic: str
    threshold: int | float
    memory_mb: float


@dataclass(frozen=True)
class HonestStream:
    """Alarms of one detector over the honest accounts of one stream.

    Of a detector of all traffic: over as many stretches of all accounts, interleaved. ``units``:
    images that all of its ``queries`` are drawn from, and so the independent ones.
    ``per_10000``: alarms in as many queries, with its upper limit (95 %). ``first_alarms``: the
    query of each session's first one, None: it raised none; empty where there are stretches.
    """

    stream: str
    detector: str
    sessions: int
    units: int
    sessions_with_alarm: int
    queries: int
    alarms: int
    per_10000: float
    per_10000_upper: float
    first_alarms: Sequence[int | None] = ()


@dataclass(frozen=True)
class AccountReading:
    """What a detector says of one account. None: no alarm, or too few images."""

    first_alarm: int | None
    alarms: int
    largest: float | None
    largest_600: float | None
    threshold: float
    memory_mb: float
    statistic: str


@dataclass(frozen=True)
class LoggedAccount:
    """An account in a log. ``thinned``: the readings by detector of one in so many images."""

    account: str
    images: int
    repeats: int
    thinned: Mapping[int, Mapping[str, AccountReading]]


@dataclass(frozen=True)
class Detection:
    """What detectors say of honest accounts.

    ``session``: images of an honest account. ``benign_largest``: the largest statistic of each
    session, by detector and stream. ``left_out``: detectors that were not measured, and why.
    """

    detectors: tuple[DetectorFacts, ...]
    session: int
    calibration_images: int
    measuring_images: int
    benign: tuple[HonestStream, ...]
    benign_largest: Mapping[str, Mapping[str, Sequence[float]]]
    left_out: Mapping[str, str]


ACCOUNTS = (1, 5, 25, 125, 1_250)
"""Accounts over which a recorded attack is dealt out, offline."""


@dataclass(frozen=True, kw_only=True)
class SplitAttack:
    """What a detector says of a recorded attack (``cell``) that is dealt out to so many
    ``accounts``.

    ``images``: of all accounts; ``most``: of the one that has most. ``alarmed``: accounts over
    which it raised an alarm, None where it sees all traffic and names nobody. ``first_alarm``:
    images that all accounts together had sent by the first one; None: never.
    """

    cell: str
    detector: str
    accounts: int
    images: int
    most: int
    alarmed: int | None
    first_alarm: int | None


@dataclass(frozen=True)
class LogDetection(Detection):
    """The same, and what they say of a log: of its largest accounts, of ``accounts_in_all``.

    ``traffic``: the readings of detectors of all traffic, over all ``images_in_all``.
    """

    accounts: Sequence[LoggedAccount]
    accounts_in_all: int
    images_in_all: int = 0
    traffic: Mapping[str, AccountReading] = field(default_factory=dict)
