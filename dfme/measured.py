"""What the owner's side measures: bills of defences, and what detectors saw. Both sides read it.

``to_json`` gives the form that a value has in the JSON files; ``from_json`` reads it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any


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
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        measured = {name: value for name, value in values.items() if value is not None}
        if self.accuracy is not None:
            measured["confidence_auroc"] = self.confidence_auroc
        return {name: measured[name] for name in values if name in measured}

    @staticmethod
    def from_json(entry: Mapping[str, Any]) -> StreamBill:
        interval = entry.get("accuracy_interval")
        pair = None if interval is None else (interval[0], interval[1])
        return StreamBill(**{**entry, "accuracy_interval": pair})


@dataclass(frozen=True)
class Statement:
    """What a stack of defences states of itself, in words."""

    top_kept: str
    l1_at_most: str
    state: str
    random: str
    needs: str


@dataclass(frozen=True)
class Timing:
    """Milliseconds an image in calls of so many, and how many times those of an undefended call."""

    images: int
    ms: float
    times: float


@dataclass(frozen=True)
class Bill:
    """What a stack of defences, or a label mode, costs honest users.

    ``row``: the name of the stack as it was asked for. ``states``: None of a label mode.
    ``timings``: none behind a meter.
    """

    row: str
    defence: str
    states: Statement | None
    held_out: StreamBill
    corrupted: StreamBill
    data_free: StreamBill
    timings: tuple[Timing, ...]

    @property
    def state_mb(self) -> float:
        """Megabytes that the defences hold after the last stream."""
        return self.data_free.state_mb

    def to_json(self) -> dict[str, Any]:
        ms = dict[str, float]()
        for timing in self.timings:
            ms[f"ms_{timing.images}"] = timing.ms
            ms[f"times_{timing.images}"] = timing.times
        return {
            "row": self.row,
            "defence": self.defence,
            "states": {} if self.states is None else asdict(self.states),
            "held_out": self.held_out.to_json(),
            "corrupted": self.corrupted.to_json(),
            "data_free": self.data_free.to_json(),
            "ms": ms,
            "state_mb": self.state_mb,
        }

    @staticmethod
    def from_json(entry: Mapping[str, Any]) -> Bill:
        """``row`` is the defence where it is missing."""
        ms = entry["ms"]
        counts = [name.removeprefix("ms_") for name in ms if name.startswith("ms_")]
        return Bill(
            row=entry.get("row", entry["defence"]),
            defence=entry["defence"],
            states=Statement(**entry["states"]) if entry["states"] else None,
            held_out=StreamBill.from_json(entry["held_out"]),
            corrupted=StreamBill.from_json(entry["corrupted"]),
            data_free=StreamBill.from_json(entry["data_free"]),
            timings=tuple(
                Timing(int(count), ms[f"ms_{count}"], ms[f"times_{count}"]) for count in counts
            ),
        )


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

    ``units``: images that all of its ``queries`` are drawn from, and so the independent ones.
    ``per_10000``: alarms in as many queries, with its upper limit (95 %).
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
class LogDetection:
    """What detectors say of a log: of its largest accounts, of ``accounts_in_all``."""

    accounts: tuple[LoggedAccount, ...]
    accounts_in_all: int


@dataclass(frozen=True)
class Detection:
    """What detectors say of honest accounts, and of a log if one was read.

    ``session``: images of an honest account. ``benign_largest``: the largest statistic of each
    session, by detector and stream. ``left_out``: detectors that were not measured, and why.
    """

    detectors: tuple[DetectorFacts, ...]
    session: int
    calibration_images: int
    measuring_images: int
    benign: tuple[HonestStream, ...]
    benign_largest: Mapping[str, Mapping[str, list[float]]]
    left_out: Mapping[str, str]
    log: LogDetection | None = None

    def to_json(self) -> dict[str, Any]:
        entry = asdict(self)
        log = entry.pop("log")
        return entry | (log or {})

    @staticmethod
    def from_json(entry: Mapping[str, Any]) -> Detection:
        """Without the accounts of a log, which no file is read for."""
        return Detection(
            detectors=tuple(DetectorFacts(**facts) for facts in entry["detectors"]),
            session=entry["session"],
            calibration_images=entry["calibration_images"],
            measuring_images=entry["measuring_images"],
            benign=tuple(HonestStream(**stream) for stream in entry["benign"]),
            benign_largest=entry["benign_largest"],
            left_out=entry["left_out"],
        )
