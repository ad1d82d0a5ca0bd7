"""An audit before it begins: its two comparisons, and what it leaves out. No torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from dfme.audits.audit.drills import read_drill
from dfme.audits.audit.history import (
    AttackForm,
    Line,
    ScoringImages,
    read_before,
    require_comparable,
)
from dfme.audits.audit.ladder import weights_of
from dfme.audits.audit.options import LARGE_SIDE, PROFILES, AuditConfig
from dfme.audits.audit.parts import CellResult, NotRun
from dfme.audits.audit.price_lines import attack_of
from dfme.audits.audit.result import AuditResult, Halves
from dfme.audits.compare.plan import CompareConfig, ComparisonPlan
from dfme.audits.drill.result import DrillResult
from dfme.config.settings import EvaluationConfig, Job
from dfme.data import whole_name
from dfme.run.job import unwatched

FEW_ACCOUNTS = 2  # honest ones of each stream in ``quick`` on large images

Second = Callable[[str, Sequence[str]], ComparisonPlan]
"""Makes the comparison of a row's attackers against these defences."""


@dataclass(frozen=True)
class AuditPlan:
    """An audit before it begins; ``config`` has what the profile says where the user is silent.

    ``first`` compares attackers and label modes, ``second`` defences, if any are tried. ``options``
    is its own file, ``not_run`` what it leaves out and why. ``halves``: facts of the evaluation
    images' halves, if an attacker has one. ``planned``: makes one more comparison of the same
    teacher. ``side``: the longer one of the images, None where nobody knows it.
    """

    config: AuditConfig
    first: ComparisonPlan
    second: Second | None
    options: dict[str, Any]
    local: bool
    not_run: tuple[NotRun, ...]
    planned: Callable[[CompareConfig], ComparisonPlan]
    halves: Halves | None = None
    side: int | None = None

    @property
    def out(self) -> Path:
        return self.first.out

    def under_quota(self, cell: CellResult, images: int, steps: int) -> ComparisonPlan:
        """The comparison of one attack more: the cell's attacker with no more images than these,
        by students of so many steps.
        """
        answers = cell.answers if cell.mode == self.label_mode else cell.mode
        config = replace(
            self.first.config,
            methods=(cell.row,),
            seeds=(cell.seed,),
            answers=(answers,),
            label_modes=(self.label_mode,),
            budgets=(images,),
            student_steps=steps,
        )
        return replace(self.planned(config), stem="quota")

    @cached_property
    def drill(self) -> DrillResult | None:
        """The drill that is given. UserError for a folder without one."""
        return None if self.config.drill is None else read_drill(self.config.drill)

    @cached_property
    def against(self) -> AuditResult | None:
        """The audit before that is given. UserError for one that nothing can be compared with."""
        if self.config.against is None:
            return None
        before = read_before(self.config.against, self.out)
        on = self.job.config.evaluation
        images = self.halves.scored if self.halves and not on.limit else None
        scored = ScoringImages(on.dataset, images, None, self.halves)
        require_comparable(self._forms, scored, before)
        return before

    @property
    def _forms(self) -> dict[Line, AttackForm]:
        """What the attacks on the undefended model are, before they run."""
        jobs = {(cell.row, cell.mode): cell for cell in self.first.cells}
        seeds = len(self.config.seeds)
        return {
            line: AttackForm(self.config.profile, cell.budget, seeds, attack_of(cell.job))
            for line, cell in jobs.items()
        }

    def read_given(self) -> None:
        """Read what is given of other places, before anything is asked. UserError for what is not
        fit for use.
        """
        _ = self.drill, self.against

    @property
    def held_back(self) -> int:
        """Evaluation images that an attacker has, and on which no copy is scored."""
        return 0 if self.halves is None else self.halves.held_back

    @property
    def brief(self) -> bool:
        """True if adversarial images have one size of perturbation."""
        return self.config.profile == "quick"

    @property
    def weights(self) -> str | None:
        """Name of the public weights of an attacker, if one has any."""
        names = (weights_of(cell.job) for cell in self.first.cells)
        return next((name for name in names if name is not None), None)

    @property
    def label_mode(self) -> str:
        """The form of the teacher's own answers."""
        return self.config.label_modes[0]

    @property
    def job(self) -> Job:
        """A job whose teacher and evaluation are every cell's, and that nobody watches."""
        return unwatched(self.first.cells[0].job)

    @property
    def owner_evaluation(self) -> EvaluationConfig:
        """All evaluation images, which the owner measures on, whatever half an attacker has."""
        evaluation = self.job.config.evaluation
        return replace(evaluation, dataset=whole_name(evaluation.dataset))

    @property
    def texts(self) -> list[str]:
        """The defences and label modes whose price for honest users is measured."""
        images = self.job.config.evaluation.dataset != "none"
        return (
            [*self.config.defences, *self.config.label_modes[1:]] if self.local and images else []
        )

    @property
    def accounts(self) -> int:
        """Honest accounts of each stream on which detectors are measured; 0 where there are no
        detectors.
        """
        if not self.watch:
            return 0
        return (
            FEW_ACCOUNTS if self.brief and self.is_large else PROFILES[self.config.profile].accounts
        )

    @property
    def is_large(self) -> bool:
        """True if the images are known to be so large that ``quick`` tries less."""
        return self.side is not None and self.side > LARGE_SIDE

    @property
    def watch(self) -> tuple[str, ...]:
        """The detectors that see what the cells ask."""
        return self.first.cells[0].job.teacher.watch
