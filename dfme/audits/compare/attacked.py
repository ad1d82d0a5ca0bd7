"""What defences leave of an attack: the best attacker of each, beside what honest users pay. No
torch.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dfme.audits.compare.figures import ComparisonResult, Outcome, finished
from dfme.audits.compare.plan import NO_DEFENCE, parse_attacker
from dfme.report.markdown import plain
from dfme.statistics import Spread, spread

OF_DEFENCES = """\
A defence's score is its best attacker that was run (bold, by the mean over seeds); what none of
them recovers, another may. Attackers recover what answers tell, and nothing else: none hides,
splits or disguises a client. Agreement is with the undefended teacher, in per cent, as mean +-
standard deviation (n - 1) over seeds. `relabelled`, under the best renaming of a student's
classes, counts where it gains more than the spread, the larger of the two deviations, and than
five points, since half of the images tell it. Who undoes, repeats or votes is held against the
best who only learns. `shared`: another defence's run stands for it, whose labels, or answers, are
the same; a quota's is that run's last evaluation before images run out. `to label-only` is (A -
best) / (A - L), A the best agreement without a defence and L that of `label` there: at 100%
scores are worth no more than labels. Then what honest users pay, on held-out / on corrupted
images: accuracy lost, top classes changed, mean and 95% L1 change of an answer, and P(a right
answer scores higher than a wrong one)."""

BILL = {
    "lost": "{accuracy_drop:.1%}",
    "changed": "{top1_changed:.1%}",
    "L1": "{l1_mean:.3f}",
    "L1 95%": "{l1_p95:.2f}",
    "AUROC": "{confidence_auroc:.3f}",
}
"""Columns of honest users, each with its form."""

BEST_BALANCED = "balanced %"

HALVES_DIFFER = 0.05
"""What relabelled agreement must gain to count: it is that of half of some hundred images
(heuristic).
"""


@dataclass(frozen=True)
class Attacked:
    """Best figures of one attacker against a defence, line ``label``; ``score``: agreement or
    relabelled.

    ``balanced``: that agreement balanced over the teacher's classes; None if the score is
    relabelled.
    """

    label: str
    answers: str
    agreement: Spread | None = None
    score: Spread | None = None
    remarks: tuple[str, ...] = ()
    balanced: Spread | None = None

    def __str__(self) -> str:
        text = _percent(self.agreement)
        remarks = ", ".join(self.remarks)
        text += f", relabelled {_percent(self.score)}" if self.score != self.agreement else ""
        return f"{text} ({remarks})" if text and remarks else text or remarks


@dataclass(frozen=True)
class DefenceLine:
    """A row's defence and its attackers, the best one's name, and the share of the way to labels
    left.
    """

    row: str
    defence: str
    attackers: tuple[Attacked, ...]
    best: str | None
    to_label_only: float | None
    bill: Mapping[str, Any]
    best_balanced: float | None = None


def gains(more: Spread, less: Spread) -> bool:
    """True if a mean is larger by more than the larger of the two deviations."""
    return more.mean - less.mean > max(more.sd or 0.0, less.sd or 0.0)


def defended(findings: ComparisonResult, mode: str, budget: int) -> list[DefenceLine]:
    """One for each row and defence, in order."""
    places: dict[tuple[str, str, str], list[Attacked]] = {}
    for label, outcomes in findings.rows(mode, budget).items():
        row, attempt = outcomes[0].cell.row, outcomes[0].cell.attempt
        attackers = places.setdefault((row, attempt.defence, attempt.stack), [])
        attackers.append(_attacked(label, attempt.answers, outcomes))
    lines = []
    for (row, defence, stack), attackers in places.items():
        undefended = places.get((row, NO_DEFENCE, NO_DEFENCE), [])
        best_learner = _best(attacker for attacker in attackers if not _recovers(attacker))
        best = _best(attackers)
        line = DefenceLine(
            row,
            defence,
            attackers=tuple(_beside(best_learner, attacker) for attacker in attackers),
            best=best.answers if best else None,
            to_label_only=_way(
                _best(undefended),
                best,
                _best(attacker for attacker in undefended if attacker.answers == "label"),
            ),
            bill=findings.bills.get(stack, {}),
            best_balanced=best.balanced.mean if best and best.balanced else None,
        )
        lines.append(line)
    return lines


def defended_lines(findings: ComparisonResult, mode: str, budget: int) -> list[tuple[str, ...]]:
    """A table of defences, its heads first."""
    lines = defended(findings, mode, budget)
    several_rows = len({line.row for line in lines}) > 1
    balanced_head = (BEST_BALANCED,) if findings.beside.is_large else ()
    attackers = (attacker.answers for attacker in lines[0].attackers)
    table: list[tuple[str, ...]] = [
        ("defence", *attackers, "best attacker", *balanced_head, "to label-only", *BILL)
    ]
    for line in lines:
        cells = [plain(f"{line.row}, {line.defence}" if several_rows else line.defence)]
        best = "-"
        for attacker in line.attackers:
            cells.append(str(attacker))
            if attacker.answers == line.best:
                cells[-1] = f"**{attacker}**"
                best = f"**{attacker.answers} {_percent(attacker.score)}**"
        cells.append(best)
        if balanced_head:
            cells.append("-" if line.best_balanced is None else f"{line.best_balanced:.1%}")
        cells.append("-" if line.to_label_only is None else f"{line.to_label_only:.0%}")
        table.append((*cells, *(_paid(line.bill, form) for form in BILL.values())))
    return table


def best_rows(findings: ComparisonResult, mode: str, budget: int) -> dict[str, list[Outcome]]:
    """The lines of each defence's best attacker."""
    best = set[str]()
    for line in defended(findings, mode, budget):
        best |= {attacker.label for attacker in line.attackers if attacker.answers == line.best}
    rows = findings.rows(mode, budget)
    return {label: rows[label] for label in rows if label in best}


def _attacked(label: str, answers: str, outcomes: Sequence[Outcome]) -> Attacked:
    runs = finished(outcomes)
    agreement = spread([figures.agreement for figures in runs])
    if agreement is None:
        states = dict.fromkeys(outcome.state for outcome in outcomes)
        remarks = ["n/a" if state == "not applicable" else state for state in states]
        return Attacked(label, answers, remarks=tuple(remarks))
    remarks = []
    if len(runs) < len(outcomes):
        remarks.append(f"{len(runs)} of {len(outcomes)}")
    if any(outcome.shared for outcome in outcomes):
        remarks.append("shared")
    relabelled = spread([figures.agreement_relabelled for figures in runs])
    balanced = spread([figures.agreement_balanced for figures in runs])
    if (
        relabelled is None
        or not gains(relabelled, agreement)
        or relabelled.mean - agreement.mean <= HALVES_DIFFER
    ):
        return Attacked(label, answers, agreement, agreement, tuple(remarks), balanced)
    return Attacked(label, answers, agreement, relabelled, tuple(remarks))


def _beside(learner: Attacked | None, attacker: Attacked) -> Attacked:
    """With a remark where a recovery gains less than the spread over the best who only learns."""
    if learner is None or not (learner.score and attacker.score) or not _recovers(attacker):
        return attacker
    if gains(attacker.score, learner.score):
        return attacker
    remark = "gains nothing"
    if attacker.score.mean > learner.score.mean:
        remark = "within the spread"
    return replace(attacker, remarks=(remark, *attacker.remarks))


def _recovers(attacker: Attacked) -> bool:
    return bool(parse_attacker(attacker.answers).keys() - {"learn"})


def _best(attackers: Iterable[Attacked]) -> Attacked | None:
    scored = [(attacker.score.mean, attacker) for attacker in attackers if attacker.score]
    return max(scored, key=lambda pair: pair[0])[1] if scored else None


def _way(free: Attacked | None, best: Attacked | None, label: Attacked | None) -> float | None:
    """None if labels do not clearly cost agreement, or were not run."""
    scores = [attacker.score for attacker in (free, best, label) if attacker and attacker.score]
    if len(scores) < 3 or not gains(scores[0], scores[2]):
        return None
    return (scores[0].mean - scores[1].mean) / (scores[0].mean - scores[2].mean)


def _percent(share: Spread | None) -> str:
    if share is None:
        return ""
    deviation = None if share.sd is None else 100 * share.sd
    return Spread(100 * share.mean, deviation, share.count).text("{:.1f}")


def _paid(bill: Mapping[str, Any], form: str) -> str:
    """Cost to honest users, on held-out / on corrupted images; empty if it is not known."""
    try:
        return " / ".join(form.format(**bill[images]) for images in ("held_out", "corrupted"))
    except (KeyError, TypeError):
        return "-"
