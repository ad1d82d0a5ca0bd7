"""The part of audit.json that is about attacks: prices, defences, bills, alarms and cells."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from pydantic import ConfigDict, PlainSerializer, with_config

from dfme.audits.compare.figures import RunState
from dfme.measured import DetectorFacts, HonestStream, StreamBill
from dfme.statistics import Spread

FORM = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
"""Of what is read: no other keys, a text is no number, and every number is one."""
IntOrFloat = int | float
"""A number that a file has as it was given: 300 is not 300.0."""


class Interval(NamedTuple):
    """Of 95 %."""

    low: float
    high: float


class CurvePoint(NamedTuple):
    """The agreement of a copy that was scored after so many queries."""

    queries: int
    agreement: float


@dataclass(frozen=True, slots=True)
class OverSeeds:
    """A figure of an attacker's copies: the ``values`` of all seeds, None where one is not known,
    and their mean and deviation.
    """

    row: str
    mode: str
    values: Sequence[float | None]
    mean: float | None
    sd: float | None


@dataclass(frozen=True, slots=True)
class SeedsOfFigure:
    """``OverSeeds`` of one of several figures."""

    row: str
    mode: str
    figure: str
    values: Sequence[float | None]
    mean: float | None
    sd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceLine:
    """What an attacker (``row``) gets from answers of a form (``mode``), over seeds.

    ``balanced``: the agreement balanced over the teacher's classes. ``interval``: of the mean, over
    images. ``knows``: what the attacker knows that the model is for. ``queries_to``: by the level
    of agreement, the queries of every seed.
    """

    row: str
    mode: str
    agreement: Sequence[float | None]
    mean: float | None
    sd: float | None
    agreement_balanced: Sequence[float | None] | None = None
    balanced: float | None = None
    has_images: bool
    budget: int
    knows: str | None
    interval: Interval | None
    queries_to: Mapping[str, Sequence[int | None]]
    state: RunState
    reason: str
    cells: Sequence[str]
    cost_to_90: float | None


@dataclass(frozen=True, slots=True)
class DefenceAttacker:
    """An attacker of a defence, by how it learns from the ``answers``; ``score``: its agreement, or
    that under the best renaming of classes.
    """

    answers: str
    agreement: Spread | None
    score: Spread | None
    remarks: Sequence[str]
    cells: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackedDefence:
    """A defence and its attackers. ``to_label_only``: the share of the way to labels alone."""

    defence: str
    attackers: Sequence[DefenceAttacker]
    best: str | None
    best_score: Spread | None
    to_label_only: float | None
    balanced: float | None = None


@dataclass(frozen=True, slots=True)
class HonestBill:
    """What a defence or label mode (``row``) costs honest users."""

    row: str
    defence: str
    states: Mapping[str, str]
    held_out: Annotated[StreamBill, PlainSerializer(StreamBill.to_json)]
    corrupted: Annotated[StreamBill, PlainSerializer(StreamBill.to_json)]
    data_free: Annotated[StreamBill, PlainSerializer(StreamBill.to_json)]
    ms: Mapping[str, float]
    state_mb: float | None


SwitchKind = Literal["defence", "label mode"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParetoPoint:
    """A switch's cost to honest users and the agreement of the best copy under it."""

    name: str
    kind: SwitchKind
    l1_mean: float | None
    accuracy_drop: float | None
    agreement: float
    balanced: float | None = None
    dominated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedAttack:
    """What a detector said of an attack's queries, and the agreement of the copy by then."""

    cell: str
    row: str
    mode: str
    defence: str
    seed: int
    detector: str
    images: int
    first_alarm: int | None
    largest: float | None
    largest_600: float | None
    agreement_at_alarm: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Separation:
    """How well a detector tells an attacker's sessions from those of an honest stream."""

    row: str
    detector: str
    stream: str
    auroc: float
    interval: Interval
    attack_sessions: int
    benign_sessions: int


@with_config(FORM)
@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedAttacks:
    """What detectors said of honest accounts and of attacks.

    ``session``: images of an honest account. ``benign_largest``: the largest statistic of each
    session, by detector and stream. ``left_out``: detectors that were not measured, and why.
    """

    detectors: Sequence[DetectorFacts]
    session: int
    calibration_images: int
    measuring_images: int
    benign: Sequence[HonestStream]
    benign_largest: Mapping[str, Mapping[str, Sequence[float]]]
    left_out: Mapping[str, str]
    attacks: Sequence[WatchedAttack] = ()
    auroc: Sequence[Separation] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """A run of the audit. ``answers``: how its attacker learns from them. ``alarms``: the first of
    each detector. ``dir``: its directory in the audit's.
    """

    name: str
    row: str
    mode: str
    defence: str
    seed: int
    answers: str
    budget: int
    state: RunState
    reason: str
    spent: int | None
    agreement_balanced: float | None = None
    agreement: float | None
    dir: str
    interval: Interval | None
    curve: Sequence[CurvePoint]
    alarms: Mapping[str, int | None]
    config_hash: str | None
    requests: int | None
    steps_seconds: float | None
    cost: float | None
