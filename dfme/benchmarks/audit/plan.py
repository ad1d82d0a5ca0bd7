"""What an audit consists of: a comparison of attackers and label modes, then one of defences. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dfme.benchmarks.audit.options import AuditConfig
from dfme.benchmarks.compare.plan import ComparisonPlan
from dfme.config.settings import Job

OPTIONS, DATA, PAGE, CARD = "audit.yaml", "audit.json", "audit.html", "model_card.md"
"""The audit's own file of options, and what it leaves, in the order in which it is written."""

NOT_RUN = "an audit's attackers of a defence are kl, table and label"
"""Why a cell of the second comparison is none of the audit's."""

Second = Callable[[str, Sequence[str]], ComparisonPlan]
"""The comparison of these defences, for the attacker that was strongest before."""


@dataclass(frozen=True)
class AuditPlan:
    """An audit before it begins. ``config`` has all that it leaves open settled.

    ``first`` compares attackers and label modes; ``second`` is None of a teacher that others defend. ``options`` is its
    own file, ``not_run`` what it leaves out and why.
    """

    config: AuditConfig
    first: ComparisonPlan
    second: Second | None
    options: dict[str, Any]
    command: str
    local: bool
    not_run: tuple[dict[str, str], ...]

    @property
    def out(self) -> Path:
        return self.first.out

    @property
    def job(self) -> Job:
        """A job whose teacher and evaluation are every cell's."""
        return self.first.cells[0].job

    @property
    def own(self) -> str:
        """The form of the teacher's own answers."""
        return self.config.label_modes[0]

    @property
    def price(self) -> float | None:
        """Of a thousand images."""
        return self.job.teacher.price_per_1000
