"""The part of audit.json that is about finished copies: fidelity, transfer, recognition."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, with_config

from dfme.audits.audit.attacks import FORM, Interval, SeedsOfFigure


@dataclass(frozen=True, slots=True)
class NotRun:
    """A part of an audit that was left out, and why."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class ExaminedCell:
    """A finished run in ``directory``; runs that are not examined in full give only figures over
    seeds.

    ``pictured``: images on which this copy and the teacher differ are shown.
    """

    name: str
    row: str
    mode: str
    seed: int
    directory: Path
    examined_in_full: bool
    pictured: bool = False


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
