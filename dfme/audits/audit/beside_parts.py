"""The parts of audit.json that come from elsewhere: an audit before, and a drill."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, with_config

from dfme.audits.audit.parts import FORM, Interval, IntOrFloat, NotRun

Change = Literal["cheaper", "dearer", "cannot be told"]
Sameness = Literal["same", "other", "not known"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceChange:
    """What a copy by an attacker (``row``) from answers of a form (``mode``) came to in an audit
    before, and in this one.

    ``agreement``: its mean over seeds, before and now; ``difference``: their 95 % interval, over
    images. ``queries``: until 90 %, the median over seeds; None: not reached.
    """

    row: str
    mode: str
    change: Change
    agreement: tuple[float, float]
    difference: Interval
    queries: tuple[IntOrFloat | None, IntOrFloat | None]
    seeds: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditHistory:
    """This audit beside one before. ``model``, ``images``: by the digests of their files.

    ``left_out``: lines that are not compared, and why. ``limits``: those that held, and fail now.
    ``fails``: whether a copy from the model's own answers, or from labels, became cheaper.
    """

    started: str
    dfme: str
    model: Sameness
    images: Sameness
    lines: Sequence[PriceChange]
    left_out: Sequence[NotRun]
    limits: Sequence[str]
    fails: bool
    text: Sequence[str]

    def of(self, change: Change) -> list[PriceChange]:
        """The lines that changed so."""
        return [line for line in self.lines if line.change == change]

    @property
    def changed(self) -> list[PriceChange]:
        """The lines of which a change can be told, what became cheaper first."""
        return [*self.of("cheaper"), *self.of("dearer")]


ShareOrNone = Annotated[float, Field(ge=0, le=1)] | None
CountOrNone = Annotated[int, Field(ge=0)] | None
MAX_SENTENCE = 2_000
Sentence = Annotated[str, Field(max_length=MAX_SENTENCE)]


@with_config(FORM)
@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """What ``run.py drill`` found: an attack on a service of the owner's own, while somebody
    watched its alarms.

    ``images``: those asked when the first alarm was seen, at which the copy agreed on
    ``agreement``; at the end, after ``images_in_all``, on ``agreement_end``. ``constant``: what one
    answer to everything agrees on. ``refused_at``: images asked when the service first refused us.
    ``source``: the run whose queries were asked again, None of an attack of its own.
    """

    schema: Literal["dfme.drill/1"]
    rang: bool
    images: CountOrNone
    agreement: ShareOrNone
    agreement_end: ShareOrNone
    constant: ShareOrNone
    images_in_all: Annotated[int, Field(ge=0)]
    refused_at: CountOrNone
    attack: Sentence
    teacher: Sentence
    channel: Literal["alarm_file", "webhook_log"]
    alarm: Annotated[str, Field(max_length=300)] | None
    source: Annotated[Sentence | None, Field(alias="from")]
    finished: bool
    made: Sentence
    text: Sentence
