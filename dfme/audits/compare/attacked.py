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
        row = outcomes[0].cell.row
        at = outcomes[0].cell.attempt
        places.setdefault((row, at.defence, at.stack), []).append(
            _attacked(label, at.answers, outcomes)
        )
    found = []
    for (row, defence, stack), attackers in places.items():
        bare = places.get((row, NO_DEFENCE, NO_DEFENCE), [])
        learnt = _best(x for x in attackers if not _recovers(x))
        every = tuple(_beside(learnt, each) for each in attackers)
        best = _best(attackers)
        way = _way(_best(bare), best, _best(each for each in bare if each.answers == "label"))
        bill = findings.bills.get(stack, {})
        answers = None if best is None else best.answers
        balanced = None if best is None or best.balanced is None else best.balanced.mean
        found.append(DefenceLine(row, defence, every, answers, way, bill, balanced))
    return found


def defended_lines(findings: ComparisonResult, mode: str, budget: int) -> list[tuple[str, ...]]:
    """A table of defences, its heads first."""
    every = defended(findings, mode, budget)
    answers = [one.answers for one in every[0].attackers]
    large = findings.beside.is_large
    balanced = (BEST_BALANCED,) if large else ()
    lines: list[tuple[str, ...]] = [
        ("defence", *answers, "best attacker", *balanced, "to label-only", *BILL)
    ]
    for each in every:
        name = (
            each.defence
            if len({other.row for other in every}) == 1
            else f"{each.row}, {each.defence}"
        )
        name = plain(name)
        texts = [f"**{one}**" if one.answers == each.best else str(one) for one in each.attackers]
        winners = [one for one in each.attackers if one.answers == each.best]
        best = [f"**{one.answers} {_percent(one.score)}**" for one in winners]
        way = "-" if each.to_label_only is None else f"{each.to_label_only:.0%}"
        told = [*texts, *(best or "-")]
        if large:
            told.append("-" if each.best_balanced is None else f"{each.best_balanced:.1%}")
        lines.append((name, *told, way, *(_paid(each.bill, form) for form in BILL.values())))
    return lines


def best_rows(findings: ComparisonResult, mode: str, budget: int) -> dict[str, list[Outcome]]:
    """The lines of each defence's best attacker."""
    every = defended(findings, mode, budget)
    best = set[str]()
    for each in every:
        best |= {one.label for one in each.attackers if one.answers == each.best}
    return {
        label: outcomes for label, outcomes in findings.rows(mode, budget).items() if label in best
    }


def _attacked(label: str, answers: str, outcomes: Sequence[Outcome]) -> Attacked:
    done = finished(outcomes)
    agreement = spread([of.agreement for of in done])
    renamed = spread([of.agreement_relabelled for of in done])
    if agreement is None:
        states = dict.fromkeys(
            "n/a" if each.state == "not applicable" else each.state for each in outcomes
        )
        return Attacked(label, answers, remarks=tuple(states))
    remarks = list[str]()
    if len(done) < len(outcomes):
        remarks.append(f"{len(done)} of {len(outcomes)}")
    if any(each.shared for each in outcomes):
        remarks.append("shared")
    score = agreement
    balanced = spread([of.agreement_balanced for of in done])
    if renamed and gains(renamed, agreement) and renamed.mean - agreement.mean > HALVES_DIFFER:
        score = renamed
        balanced = None
    return Attacked(label, answers, agreement, score, tuple(remarks), balanced)


def _beside(learnt: Attacked | None, each: Attacked) -> Attacked:
    """With a remark where a recovery gains less than the spread over the best who only learns."""
    if learnt is None or not (learnt.score and each.score) or not _recovers(each):
        return each
    if gains(each.score, learnt.score):
        return each
    little = "within the spread" if each.score.mean > learnt.score.mean else "gains nothing"
    return replace(each, remarks=(little, *each.remarks))


def _recovers(each: Attacked) -> bool:
    return bool(parse_attacker(each.answers).keys() - {"learn"})


def _best(attackers: Iterable[Attacked]) -> Attacked | None:
    scored = [(each.score.mean, each) for each in attackers if each.score]
    return max(scored, key=lambda pair: pair[0])[1] if scored else None


def _way(free: Attacked | None, best: Attacked | None, label: Attacked | None) -> float | None:
    """None if labels do not clearly cost agreement, or were not run."""
    scores = [
        each.score for each in (free, best, label) if each is not None and each.score is not None
    ]
    if len(scores) < 3 or not gains(scores[0], scores[2]):
        return None
    return (scores[0].mean - scores[1].mean) / (scores[0].mean - scores[2].mean)


def _percent(of: Spread | None) -> str:
    if of is None:
        return ""
    return Spread(100 * of.mean, None if of.sd is None else 100 * of.sd, of.count).text("{:.1f}")


def _paid(bill: Mapping[str, Any], form: str) -> str:
    """Cost to honest users, on held-out / on corrupted images; empty if it is not known."""
    try:
        return " / ".join(form.format(**bill[images]) for images in ("held_out", "corrupted"))
    except (KeyError, TypeError):
        return "-"
