"""The parts of audit.json that are prices: of each attacker, of the headline, and a catalogue's
test of the strongest copy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from dfme.audits.audit.parts import Interval, IntOrFloat
from dfme.audits.compare.figures import RunState
from dfme.statistics import Spread

Pictures = Literal["public", "like"]
"""What an attacker asks that no program drew: public pictures, or images like the owner's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceLine:
    """What an attacker (``row``) gets from answers of a form (``mode``), over seeds.

    ``balanced``: the agreement balanced over the teacher's classes. ``interval``: of the mean, over
    images. ``knows``: what the attacker knows that the model is for. ``has``: what it had, in
    words; ``weights``: those that anybody can download, by name. ``queries_to``: by the level of
    agreement, the queries of every seed; ``hours_to_90`` by the owner's rate limit. ``alarms``: the
    first one of each seed that was watched. ``attack``: options of its students and queries that
    are not the defaults, by their keys; empty where they are not known.
    """

    row: str
    mode: str
    agreement: Sequence[float | None]
    mean: float | None
    sd: float | None
    agreement_balanced: Sequence[float | None] | None = None
    balanced: float | None = None
    has_images: bool
    has: str = ""
    weights: str | None = None
    pictures: Pictures | None = None
    budget: int
    knows: str | None
    interval: Interval | None
    queries_to: Mapping[str, Sequence[int | None]]
    state: RunState
    reason: str
    cells: Sequence[str]
    cost_to_90: float | None
    hours_to_90: float | None = None
    alarms: Sequence[int | None] = ()
    attack: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyPrice:
    """What a copy costs by the strongest attacker, None if no attack has finished.

    ``has``: what it had, in words. ``queries``: of each seed until the level of the headline,
    ``by_seed`` the same in words, ``median`` over seeds; ``hours``: until then, by the owner's rate
    limit. ``balanced``: the best agreement balanced over the teacher's classes.
    """

    attacker: str | None
    has: str = ""
    knows: str | None
    queries: Sequence[int | None]
    median: IntOrFloat | None
    cost: float | None
    hours: float | None = None
    by_seed: Sequence[str]
    balanced: float | None = None
    best_agreement: Spread | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelsPrice(CopyPrice):
    """The price from labels alone, and what these cost honest users."""

    l1_mean: float | None


@dataclass(frozen=True, kw_only=True)
class _OfMode:
    """Stands before the price."""

    __slots__ = ()
    mode: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LikePrice(CopyPrice, _OfMode):
    """The price for somebody with images like the owner's, from answers of a form."""


@dataclass(frozen=True, kw_only=True)
class _Level:
    """Stands before the price."""

    __slots__ = ()
    level: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline(CopyPrice, _Level):
    """The price of a copy from the teacher's own answers, in figures and sentences."""

    mode: str
    labels: LabelsPrice | None
    like: Sequence[LikePrice]
    sentences: Annotated[Sequence[str], Field(min_length=1)]


Rating = Literal["vulnerability detected", "warning", "low"]
DETECTED: Rating = "vulnerability detected"
WARNING: Rating = "warning"
"""A catalogue's words for an agreement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FidelityTest:
    """A catalogue's test of the strongest copy after so many queries at most.

    ``rating``: None where no copy is shown to be above one answer to everything.
    """

    test: str
    queries: int
    attacker: str
    mode: str
    has: str
    fidelity: float
    rating: Rating | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicBackbone:
    """Whether the model is public ``weights`` with a last layer of its own, by solving for it.

    ``residual``: what the solve leaves of held-back log-odds, over what a constant answer leaves.
    ``queries``: after which the copy agreed on nearly all images; None if it did not.
    """

    weights: str
    residual: float
    is_head: bool
    queries: int | None
    cell: str
    text: str
