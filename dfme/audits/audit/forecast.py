"""What an audit will ask, cost and take, known before anybody is asked."""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dfme.audits.audit.accounts import query_bytes, recorded_cells
from dfme.audits.audit.examine import MAX_IMAGES, PROCEDURAL, open_twin
from dfme.audits.audit.ladder import delay, parse_rate, possessed
from dfme.audits.audit.marks import require_marked
from dfme.audits.audit.options import TWIN_EPOCHS
from dfme.audits.audit.parts import NotRun
from dfme.audits.audit.plan import AuditPlan
from dfme.audits.audit.recognition import case_of
from dfme.audits.audit.transfer import ATTACKS, EPS
from dfme.audits.compare.plan import Cell, rates_of
from dfme.audits.compare.rehearsal import Rehearsal
from dfme.audits.owner import Owner
from dfme.audits.verify.probes import LOOKED_AT
from dfme.data import has_train_part, load_dataset
from dfme.errors import UserError
from dfme.report.console import duration
from dfme.run.build import is_local
from dfme.run.plan import table
from dfme.run.work import shorter

BACKWARD = 3  # answers that a step on the teacher itself takes as long as; heuristic
STRANGERS = 4
"""Sources of adversarial images beside the copies: random signs, an untrained net, a twin and the
teacher.
"""


@dataclass(frozen=True)
class Forecast:
    """Images that an audit will ask: ``evaluation`` and those of ``attacks`` exactly, the others at
    most.

    ``seconds``: of each part, by its name; ``asking``: those of a stated rate, 0 without one.
    ``recorded``: bytes of recorded queries.
    """

    plan: AuditPlan
    attacks: int
    charged: int
    evaluation: int
    benign: int
    transfer: int
    seconds: dict[str, float]
    asking: float
    recorded: int = 0

    @property
    def total(self) -> int:
        """The images that --total counts."""
        return self.charged + self.benign + self.transfer

    @property
    def text(self) -> str:
        """The images that --total counts, in a sentence."""
        budget = self.plan.config.budget
        most = "at most " if self.charged < self.attacks * budget else ""
        end = "" if self.attacks == 1 else "s"
        beside = {"as images of honest users": self.benign, "to examine the copies": self.transfer}
        more = (
            f", and at most {images:,} more {what}" for what, images in beside.items() if images
        )
        return (
            f"{self.attacks} attack{end} of {most}{budget:,} images may be charged "
            f"{self.charged:,} in all{''.join(more)}"
        )

    @property
    def line(self) -> str:
        """All images and their price, as they are said before the first one is asked."""
        cost = "cost not known: state the price by --price-per-1000"
        if (price := self.plan.job.teacher.price_per_1000) is not None:
            cost = f"cost at most {(self.total + self.evaluation) * price / 1000:,.2f}"
        return f"{self.text}; {self.evaluation:,} more to score the copies; {cost}"

    @property
    def disk(self) -> str:
        """The recorded queries, in words; empty if there are none."""
        if not self.recorded:
            return ""
        attacks = len(recorded_cells(self.plan.first))
        end = "" if attacks == 1 else "s"
        megabytes = math.ceil(self.recorded / 1e6)
        return f"{megabytes:,} MB for the queries of {attacks} attack{end}, which are recorded"

    @property
    def time(self) -> str:
        """The time of the whole audit and of its parts, in words."""
        parts = ", ".join(
            f"{duration(seconds)} {part}" for part, seconds in self.seconds.items() if seconds >= 1
        )
        total = sum(self.seconds.values())
        text = f"about {duration(total)} on this machine: {parts}"
        text += shorter(
            total, "a smaller --budget, fewer --student-steps, --attackers or --defences"
        )
        text = text if parts else "the time is not known: no attack is left here to be rehearsed"
        if self.asking:
            return f"{text}; at least {duration(self.asking)} to ask, at the rate that is stated"
        return (
            text
            if self.plan.local
            else f"{text}; asking comes on top, at a rate that nobody states"
        )


def forecast(
    plan: AuditPlan,
    cells: Sequence[Cell],
    waiting: Collection[str],
    rehearsal: Rehearsal | None,
    owner: Owner,
) -> Forecast:
    """Images of the audit, in ``cells`` and beside, and the time of what is left of it.

    ``waiting``: names of the cells that are not finished; ``rehearsal`` is None if all are.

    UserError beyond ``--total``, and for a wrong ``--twin``, ``--references`` or ``--marks``.
    """
    config = plan.config
    scored = 0 if rehearsal is None else rehearsal.scored
    benign = 0
    if plan.local and not is_local(plan.job):
        benign = owner.benign_at_most(
            scored + plan.held_back, bool(plan.texts), plan.accounts, len(cells)
        )
    attacks = len(cells)
    charged = sum(cell.budget for cell in cells)
    if config.keep_below is not None:  # one more tries the quota
        attacks += 1
        charged += config.budget
    evaluation = len({cell.mode for cell in cells}) * scored  # cells share the answers
    transfer, of_source = _transfer(plan, scored)
    seconds = dict[str, float]()
    if rehearsal:
        to_run = [cell for cell in cells if cell.name in waiting]
        seconds = _seconds(plan, to_run, rehearsal, transfer, of_source, owner)
    expected = Forecast(
        plan,
        attacks=attacks,
        charged=charged,
        evaluation=evaluation,
        benign=benign,
        transfer=transfer,
        seconds=seconds,
        recorded=_recorded(plan, rehearsal),
        asking=(charged + evaluation) / rates_of(plan.job).get("images_per_second", math.inf),
    )
    if config.total is not None and expected.total > config.total:
        raise UserError(
            f"--total: {expected.text}, more than {config.total:,}; give a smaller "
            "--budget, or fewer attackers, label modes, defences or seeds"
        )
    if config.twin not in ("none", "train") and rehearsal:
        open_twin(Path(config.twin), plan.job, rehearsal.spec, rehearsal.num_classes)
    if config.references and rehearsal:
        case_of(plan.job, config.references, lambda line: None)
        if config.marks:
            require_marked(plan, owner)
    return expected


def plan_table(plan: AuditPlan, expected: Forecast, left_out: Sequence[NotRun]) -> str:
    """The text of ``--dry-run``; ``left_out``: what will not run, and why."""
    config = plan.config
    attackers = f"{', '.join(config.attackers)}; answers {', '.join(config.label_modes)}; seeds "
    attackers += ", ".join(map(str, config.seeds))
    rows = [
        ("attackers", attackers),
        *_of_attackers(plan),
        ("defences", ", ".join(config.defences) or "none"),
        ("images", expected.line),
        ("time", expected.time),
        *([("on disk", expected.disk)] if expected.disk else []),
        *(("left out", f"{part.what}: {part.why}") for part in left_out),
    ]
    return table(rows)


def _of_attackers(plan: AuditPlan) -> Iterator[tuple[str, str]]:
    """What each attacker has, the images that it may ask, and how long a key's limit makes that."""
    rate = None if plan.config.rate is None else parse_rate(plan.config.rate)
    first = {cell.row: cell for cell in reversed(plan.first.cells)}
    for cell in (first[row] for row in plan.config.attackers if row in first):
        text = f"{possessed(cell.row, cell.job)}; {cell.budget:,} images"
        if rate is not None:
            text += f", {delay(rate.hours(cell.budget))} with {rate.text}"
        yield cell.row, text


def _transfer(plan: AuditPlan, scored: int) -> tuple[int, int]:
    """Most images of an examination, and of each source if they have images of their own."""
    here = is_local(plan.job)
    if plan.config.transfer == "false" or (plan.config.transfer == "auto" and not here):
        return 0, 0
    sizes = 1 if plan.brief else len(next(iter(EPS.values())))
    images = min(MAX_IMAGES, scored) * len(ATTACKS) * sizes
    copies = sum(cell.seed == plan.config.seeds[0] for cell in plan.first.cells)
    return (PROCEDURAL + images * (copies + STRANGERS), images) if here else (images, 0)


def _seconds(
    plan: AuditPlan,
    cells: Sequence[Cell],
    rehearsal: Rehearsal,
    transfer: int,
    of_source: int,
    owner: Owner,
) -> dict[str, float]:
    """Seconds of each part, by its name; ``transfer`` and ``of_source`` are those of ``_transfer``.

    A step of an adversarial image takes about as long as one of training on it.
    """
    step, answer = rehearsal.of_image[0] if rehearsal.of_image else (0.0, 0.0)
    images = rehearsal.scored + plan.held_back
    steps = sum(attack.steps for attack in ATTACKS.values()) / len(ATTACKS)
    # two of the sources are no students: random signs and the teacher
    by_students = steps * (transfer - 2 * of_source)
    evaluation = plan.owner_evaluation
    if plan.config.twin == "train" and has_train_part(evaluation.dataset):
        by_students += TWIN_EPOCHS * len(
            load_dataset(evaluation.dataset, "train", root=evaluation.root, lazy=True)
        )
    by_teacher = float(transfer)
    if plan.job.teacher.kind == "torch":
        by_teacher += BACKWARD * steps * of_source
    return {
        "for the attacks": rehearsal.total(cells, plan.first.jobs),
        "to bill honest users": owner.billing_seconds(len(plan.texts), images, answer),
        "to watch honest accounts": _watching(plan, rehearsal, answer, owner),
        "to score the attacks from many accounts": _splitting(plan, rehearsal, answer, owner),
        "to try to recognise the copies": LOOKED_AT * answer if plan.config.references else 0.0,
        "to examine the copies": by_students * step + by_teacher * answer,
    }


def _watching(plan: AuditPlan, rehearsal: Rehearsal, answer: float, owner: Owner) -> float:
    """Seconds of the honest accounts, and of the watched teacher that they ask."""
    if not plan.accounts:
        return 0.0
    return rehearsal.building + owner.streamed(plan.accounts) * (rehearsal.watched or answer)


def _recorded(plan: AuditPlan, rehearsal: Rehearsal | None) -> int:
    """Bytes of all recorded queries; 0 where no attack is left to be run."""
    if rehearsal is None:
        return 0
    size = query_bytes(rehearsal.spec, rehearsal.num_classes)
    return size * sum(cell.budget for cell in recorded_cells(plan.first))


def _splitting(plan: AuditPlan, rehearsal: Rehearsal, answer: float, owner: Owner) -> float:
    """Seconds of the detectors that look at recorded queries as many accounts would send them."""
    if not rehearsal.watched:
        return 0.0
    looking = max(0.0, rehearsal.watched - answer)
    cells = recorded_cells(plan.first)
    return sum(owner.splitting_seconds(cell.budget, looking) for cell in cells)
