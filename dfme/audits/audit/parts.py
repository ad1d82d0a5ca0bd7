"""The parts of audit.json: attacks (prices, defences, alarms, cells) and finished copies (fidelity,
transfer, recognition).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from pydantic import ConfigDict, Field, with_config

from dfme.audits.compare.figures import RunState
from dfme.measured import Detection
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
    """What a detector said of an attack's queries, and the copy's agreement with a quarter more
    queries at most.
    """

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
@dataclass(frozen=True, kw_only=True)
class WatchedAttacks(Detection):
    """What detectors said of honest accounts and of attacks."""

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


@dataclass(frozen=True, slots=True)
class NotRun:
    """A part of an audit that was left out, and why."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class ClassAgreement:
    """Agreement on the images to which the teacher answers a class."""

    number: Annotated[int, Field(alias="class")]
    name: str
    images: int
    agreement: float | None


@dataclass(frozen=True, slots=True)
class WhereWrong:
    """Images that the teacher gets wrong, and those of them where the copy gives its answer."""

    images: int
    same: int
    interval: Interval | None


@dataclass(frozen=True, slots=True)
class Calibration:
    """A calibration error."""

    value: float
    interval: Interval


@dataclass(frozen=True, slots=True)
class Followed:
    """Agreement on images outside the evaluation."""

    images: int
    agreement: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyFigures:
    """Figures of a copy beside the teacher's answers; None where these hide what one needs.

    ``top3_equal``: share of images where the copy's three likeliest classes are three likeliest of
    the teacher's, which of equal scores (rounded ones) are any. ``kendall_tau``: mean over the
    images where neither side ties all classes. ``kl``: mean KL(teacher || copy) in nats. ``l1``:
    mean |p - q|.
    """

    agreement: float
    agreement_balanced: float | None = None
    top3_equal: float | None = None
    kendall_tau: float | None = None
    kl: float | None = None
    l1: float | None = None


@dataclass(frozen=True, kw_only=True)
class _Examined:
    """A copy that was examined; these fields stand before its figures."""

    __slots__ = ()
    cell: str
    row: str
    mode: str
    seed: int
    images: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity(CopyFigures, _Examined):
    """A copy beside its teacher. ``table``: counts, teacher x copy; none of many classes.

    ``clone_ece``, ``teacher_ece``: calibration errors. ``procedural``, ``adversarial``: None where
    the teacher was not asked about such images.
    """

    interval: Interval | None
    per_class: Sequence[ClassAgreement]
    table: Sequence[Sequence[int]]
    where_wrong: WhereWrong | None = None
    teacher_ece: Calibration | None = None
    clone_ece: Calibration | None = None
    procedural: Followed | None = None
    adversarial: Followed | None = None


@dataclass(frozen=True, slots=True)
class DifferentAnswer:
    """An image, as an address that holds it, and the classes that model and copy answer."""

    image: str
    model: str
    clone: str


@dataclass(frozen=True, slots=True)
class Differences:
    """Of ``images``, the number on which copy and model ``differ``, and some of them."""

    row: str
    images: int
    differ: int
    shown: Sequence[DifferentAnswer]


SourceKind = Literal["clone", "stranger", "ceiling"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferRow:
    """Share of the images, made on a source by an attack, that lose their label."""

    source: str
    kind: SourceKind
    agreement: float | None
    attack: str
    eps: float
    success: float
    images: int
    interval: Interval


@dataclass(frozen=True, slots=True)
class TransferGain:
    """Success of a copy's images less that of the best stranger's, ``over`` whom."""

    source: str
    attack: str
    eps: float
    gain: float
    over: str


@dataclass(frozen=True, slots=True)
class Transfer:
    """Adversarial images made on copies and strangers. ``asked``: images, in all."""

    images: int
    eps: Sequence[float]
    headline_eps: float
    attacks: Sequence[str]
    asked: int
    rows: Sequence[TransferRow]
    gain: Sequence[TransferGain]


@dataclass(frozen=True, slots=True)
class Twin:
    """A net that was trained on the owner's data."""

    agreement: float
    accuracy: float | None
    file: str


@with_config(FORM)
@dataclass(frozen=True, slots=True, kw_only=True)
class CopyExamination:
    """What the finished copies are good for. ``asked``: images, in all."""

    fidelity: Sequence[Fidelity] = ()
    fidelity_seeds: Sequence[SeedsOfFigure] = ()
    differences: Differences | None = None
    transfer: Transfer | None = None
    twin: Twin | None = None
    asked: int = 0
    not_run: Sequence[NotRun] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecognisedCopies:
    """An attacker's copies by the test of ``run.py verify``, a value for each of ``cells``."""

    row: str
    mode: str
    cells: Sequence[str]
    matches: Sequence[float]
    e_values: Sequence[float]
    recognised: Sequence[bool]
    auroc: float


@with_config(FORM)
@dataclass(frozen=True, slots=True)
class Recognition:
    """``references``: the share of ``probes`` on which each gives the model's mistake."""

    probes: int
    p_reference: float
    references: Sequence[float]
    rows: Sequence[RecognisedCopies]


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedCopies:
    """An attacker's copies by ``run.py verify --marks``, a value for each of ``cells``.

    ``repeated``, ``controls``: shares of the marks, and of the controls, that a copy answers as
    marked.
    """

    row: str
    mode: str
    cells: Sequence[str]
    repeated: Sequence[float]
    controls: Sequence[float]
    e_values: Sequence[float]
    recognised: Sequence[bool]


@with_config(FORM)
@dataclass(frozen=True, slots=True, kw_only=True)
class MarkRecognition:
    """Would the owner recognise the copies by the mark of a key? ``key``: its digest.

    ``references``: the share of the marks that each answers as marked.
    """

    text: str
    key: str
    marks: int
    controls: int
    p_reference: float
    references: Sequence[float]
    rows: Sequence[MarkedCopies]
