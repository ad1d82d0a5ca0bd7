"""The part of audit.json that comes from elsewhere: what an audit before says beside this one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dfme.audits.audit.parts import Interval, IntOrFloat, NotRun

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
