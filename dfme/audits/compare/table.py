"""A comparison as text: its tables and what defences leave, figures of every seed, JSON and CSV. No torch."""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from dfme.audits.compare.figures import (
    LOST,
    OF_THE_TEACHER,
    ComparisonResult,
    Figures,
    Outcome,
    Reached,
    Spread,
    reached,
    spread,
)
from dfme.audits.compare.plan import NO_DEFENCE, Cell, count_text, parse_attacker
from dfme.report.facts import LEVELS
from dfme.report.markdown import fitted_table

OF_DEFENCES = """\
A defence's score is its best attacker that was run (bold, by the mean over seeds); what none of them
recovers, another may. Attackers recover what answers tell, and nothing else: none hides, splits or disguises
a client. Agreement is with the undefended teacher, in per cent, as mean +- standard deviation (n - 1) over
seeds. `relabelled`, under the best renaming of a student's classes, counts where it gains more than the
spread, the larger of the two deviations, and than five points, since half of the images tell it. Who undoes,
repeats or votes is held against the best who only learns. `shared`: another defence's run stands for it,
whose labels, or answers, are the same; a quota's is that run's last evaluation before images run out. `to
label-only` is (A - best) / (A - L), A the best agreement without a defence and L that of `label` there: at
100% scores are worth no more than labels. Then what honest users pay, on held-out / on corrupted images:
accuracy lost, top classes changed, mean and 95% L1 change of an answer, and P(a right answer scores higher
than a wrong one)."""

BILL = {"lost": "{accuracy_drop:.1%}", "changed": "{top1_changed:.1%}", "L1": "{l1_mean:.3f}"}
BILL |= {"L1 95%": "{l1_p95:.2f}", "AUROC": "{confidence_auroc:.3f}"}
"""Columns of honest users, each with its form."""

HALVES_DIFFER = 0.05
"""What relabelled agreement must gain to count: it is that of half of some hundred images (heuristic)."""


@dataclass(frozen=True)
class Attacked:
    """Best figures of one attacker against a defence, line ``label``; ``score``: agreement or relabelled."""

    label: str
    answers: str
    agreement: Spread | None = None
    score: Spread | None = None
    remarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = _percent(self.agreement)
        remarks = ", ".join(self.remarks)
        text += f", relabelled {_percent(self.score)}" if self.score != self.agreement else ""
        return f"{text} ({remarks})" if text and remarks else text or remarks


@dataclass(frozen=True)
class DefenceLine:
    """A row's defence and its attackers, the best one's name, and the share of the way to labels left."""

    row: str
    defence: str
    attackers: tuple[Attacked, ...]
    best: str | None
    to_label_only: float | None
    bill: Mapping[str, Any]


def gains(more: Spread, less: Spread) -> bool:
    """True if a mean is larger by more than the larger of the two deviations."""
    return more.mean - less.mean > max(more.sd or 0.0, less.sd or 0.0)


def defended(findings: ComparisonResult, mode: str, budget: int) -> list[DefenceLine]:
    """One for each row and defence, in order."""
    places: dict[tuple[str, str, str], list[Attacked]] = {}
    for label, outcomes in findings.rows(mode, budget).items():
        row = outcomes[0].cell.row
        at = outcomes[0].cell.attempt
        places.setdefault((row, at.defence, at.stack), []).append(_attacked(label, at.answers, outcomes))
    found = []
    for (row, defence, stack), attackers in places.items():
        bare = places.get((row, NO_DEFENCE, NO_DEFENCE), [])
        learnt = _best(x for x in attackers if not _recovers(x))
        every = tuple(_beside(learnt, each) for each in attackers)
        best = _best(attackers)
        way = _way(_best(bare), best, _best(each for each in bare if each.answers == "label"))
        bill = findings.bills.get(stack, {})
        found.append(DefenceLine(row, defence, every, None if best is None else best.answers, way, bill))
    return found


def defended_lines(findings: ComparisonResult, mode: str, budget: int) -> list[tuple[str, ...]]:
    """A table of defences, its heads first."""
    every = defended(findings, mode, budget)
    answers = [one.answers for one in every[0].attackers]
    lines: list[tuple[str, ...]] = [("defence", *answers, "best attacker", "to label-only", *BILL)]
    for each in every:
        name = each.defence if len({other.row for other in every}) == 1 else f"{each.row}, {each.defence}"
        texts = [f"**{one}**" if one.answers == each.best else str(one) for one in each.attackers]
        winners = [one for one in each.attackers if one.answers == each.best]
        best = [f"**{one.answers} {_percent(one.score)}**" for one in winners]
        way = "-" if each.to_label_only is None else f"{each.to_label_only:.0%}"
        lines.append((name, *texts, *(best or "-"), way, *(_paid(each.bill, form) for form in BILL.values())))
    return lines


def best_rows(findings: ComparisonResult, mode: str, budget: int) -> dict[str, list[Outcome]]:
    """The lines of each defence's best attacker."""
    every = defended(findings, mode, budget)
    best = {one.label for each in every for one in each.attackers if one.answers == each.best}
    return {label: outcomes for label, outcomes in findings.rows(mode, budget).items() if label in best}


def _attacked(label: str, answers: str, outcomes: Sequence[Outcome]) -> Attacked:
    done = finished(outcomes)
    agreement = spread([of.agreement for of in done])
    renamed = spread([of.agreement_relabelled for of in done])
    if agreement is None:
        states = dict.fromkeys("n/a" if each.state == "not applicable" else each.state for each in outcomes)
        return Attacked(label, answers, remarks=tuple(states))
    remarks = (f"{len(done)} of {len(outcomes)}",) * (len(done) < len(outcomes))
    remarks += ("shared",) * any(each.shared for each in outcomes)
    score = agreement
    if renamed and gains(renamed, agreement) and renamed.mean - agreement.mean > HALVES_DIFFER:
        score = renamed
    return Attacked(label, answers, agreement, score, remarks)


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
    scores = [each.score for each in (free, best, label) if each is not None and each.score is not None]
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


LEGEND = f"""\
Figures are means +- standard deviations (n - 1) over seeds, of the student that each run delivered at the
end, on the evaluation set; `vote` is the soft vote of all students of a run that has several. Queries are
images charged until the first evaluation with at least that agreement, or with {OF_THE_TEACHER:.0%} of the
teacher's accuracy (`teacher`); "2 of 3: 9,000" says how many seeds got there, and the median over all, one
that did not get there counting as more than any number. A run has `collapsed` whose last agreement is below
{LOST:.0%} of its own best on the way, or at most 2/K (of K classes; with fewer than ten, ten points above
chance). `steps` are the optimiser steps of each student; `seconds` are those of a run among all that ran
beside it."""


HEADS = (
    *("row", "seeds", "accuracy %", "agreement %", "KL", "vote accuracy %", "vote agreement %"),
    *(f"to {level:.0%}" for level in LEVELS),
    *("to teacher", "collapsed", "seconds", "steps"),
)
FIRST = (
    *("row", "defence", "best attacker", "to label-only", "seeds", "agreement %", "accuracy %", "to teacher"),
    *("collapsed", "to 90%", "to 50%", "steps"),
)
"""The columns that a narrow terminal shows first."""


def overview(findings: ComparisonResult, across: int | None = None) -> str:
    """The tables, one per label mode and budget, and the cells that failed or were never to be run.

    ``across``: the letters of a line of the terminal, where the tables have only what fits.
    """
    parts = []
    for mode, budget in findings.groups():
        lines = [HEADS, *(_line(row, outcomes) for row, outcomes in findings.rows(mode, budget).items())]
        heads, *lines = defended_lines(findings, mode, budget) if findings.defended else lines
        table = fitted_table(heads, lines, FIRST, across)
        parts.append(f"### {mode}, {count_text(budget)} queries\n\n{table}")
    parts += [f"Rows differ in {findings.unequal}."] if findings.unequal else []
    of = findings.outcomes
    constants = [done.constant_agreement for done in finished(of) if done.constant_agreement is not None]
    parts += [f"One answer to everything would agree on {max(constants):.1%}."] if constants else []
    failed = [each for each in of if each.state == "failed" and not each.shared]
    left_out = [f"- failed: `{each.cell.name}`: {each.reason}" for each in failed]
    never = [each for each in of if each.state == "not applicable"]
    why = (f"- not applicable: `{each.cell.label}` with {each.cell.mode}: {each.reason}" for each in never)
    left_out += dict.fromkeys(why)
    return "\n\n".join([*parts, *(["\n".join(left_out)] if left_out else [])])


def markdown(findings: ComparisonResult) -> str:
    """The whole report."""
    facts = "\n".join(f"- {name}: {value}" for name, value in findings.facts.items())
    parts = [f"# {findings.title}", facts, overview(findings), LEGEND, "## Each seed"]
    parts[3:3] = [OF_DEFENCES] if findings.defended else []
    for mode, budget in findings.groups():
        each = [outcome for outcomes in findings.rows(mode, budget).values() for outcome in outcomes]
        lines = [_seed_line(one.cell, one.figures) for one in each if one.figures is not None]
        if lines:
            heads = (HEADS[0], "seed", *HEADS[2:])
            parts.append(f"### {mode}, {count_text(budget)} queries\n\n{fitted_table(heads, lines)}")
    return "\n\n".join(part for part in parts if part) + "\n"


def as_json(findings: ComparisonResult) -> str:
    """Facts, every row of every table with its spreads, and every cell with its figures."""
    tables = list[dict[str, Any]]()
    for mode, budget in findings.groups():
        rows = [_row_json(*row) for row in findings.rows(mode, budget).items()]
        known = {name for row in rows for name, value in row.items() if value is not None}
        filled = [{name: value for name, value in row.items() if name in known} for row in rows]
        tables.append({"label_mode": mode, "budget": budget, "rows": filled})
        if findings.defended:
            tables[-1]["defences"] = [asdict(one) for one in defended(findings, mode, budget)]
    content = {"title": findings.title, "facts": findings.facts, "tables": tables, "cells": _cells(findings)}
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def as_csv(findings: ComparisonResult) -> str:
    """A line for every cell, with its figures but its curve; empty: not known, or not reached."""
    lines = _cells(findings)
    written = io.StringIO()
    for line in lines:
        figures = line.pop("figures") or {field.name: None for field in fields(Figures)}
        reached = figures.pop("queries_to") or {}
        line |= figures | {f"queries_to_{100 * level:.0f}": reached.get(level) for level in LEVELS}
        line["reason"] = line["reason"].lstrip("=+-@")  # no formula of a stranger's in a spreadsheet
    columns = [name for name in lines[0] if name != "curve"]
    table = csv.DictWriter(written, columns, "", "ignore", lineterminator="\n")
    table.writeheader()
    table.writerows(lines)
    return written.getvalue()


def _cells(findings: ComparisonResult) -> list[dict[str, Any]]:
    cells = []
    for outcome in findings.outcomes:
        cell = outcome.cell
        figures = None if outcome.figures is None else asdict(outcome.figures)
        named = {"row": cell.row, "label_mode": cell.mode, "budget": cell.budget, "seed": cell.seed}
        asked = {"defence": cell.attempt.defence, "answers": cell.attempt.answers}
        named |= asked if findings.defended else {}
        state = {"run": f"cells/{cell.name}", "state": outcome.state, "reason": outcome.reason}
        cells.append(named | state | {"figures": figures})
    return cells


def _line(row: str, outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    """One row of a table, over the seeds that are finished."""
    done = finished(outcomes)
    if not done:
        return (row, _seeds(outcomes), *("",) * (len(HEADS) - 2))
    names = ("accuracy", "agreement", "vote_accuracy", "vote_agreement")
    percent = [_spread(done, name, "{:.2f}", scale=100) for name in names]
    collapsed = [figures.collapsed for figures in done if figures.collapsed is not None]
    share = f"{sum(collapsed)} of {len(collapsed)}" if collapsed else "-"
    steps = _spread(done, "student_steps", "{:,.0f}").removesuffix(" +- 0")
    students = max(figures.students for figures in done)
    scores = *percent[:2], _spread(done, "kl", "{:.4f}"), *percent[2:]
    effort = _spread(done, "seconds", "{:,.1f}"), steps if students == 1 else f"{students} x {steps}"
    return row, _seeds(outcomes), *scores, *_queries(done), share, *effort


def _seed_line(cell: Cell, figures: Figures) -> tuple[str, ...]:
    line = list(_line(cell.label, [Outcome(cell, "finished", figures=figures)]))
    line[HEADS.index("seeds")] = str(cell.seed)
    line[HEADS.index("collapsed")] = {True: "yes", False: "no", None: "-"}[figures.collapsed]
    return tuple(line)


def _row_json(row: str, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    done = finished(outcomes)
    named = ("accuracy", "agreement", "kl", "vote_accuracy", "vote_agreement", "teacher_accuracy", "seconds")
    spreads = {name: spread([getattr(each, name) for each in done]) for name in (*named, "student_steps")}
    collapsed = [figures.collapsed for figures in done if figures.collapsed is not None]
    return {
        "row": row,
        "seeds": [outcome.cell.seed for outcome in outcomes if outcome.figures is not None],
        "missing": {str(one.cell.seed): one.reason or one.state for one in outcomes if one.figures is None},
        **{name: None if found is None else asdict(found) for name, found in spreads.items()},
        "queries_to": {name: asdict(found) for name, found in _reached(done).items()},
        "collapse_rate": sum(collapsed) / len(collapsed) if collapsed else None,
    }


def finished(outcomes: Iterable[Outcome]) -> list[Figures]:
    """The figures of those that have some."""
    return [outcome.figures for outcome in outcomes if outcome.figures is not None]


def _seeds(outcomes: Sequence[Outcome]) -> str:
    """Number of seeds the figures are of, or why there are none."""
    states = {outcome.state for outcome in outcomes}
    if len(states) == 1 and "finished" not in states:
        return states.pop()
    done = sum(outcome.state == "finished" for outcome in outcomes)
    return str(done) if done == len(outcomes) else f"{done} of {len(outcomes)}"


def _spread(done: Sequence[Figures], name: str, form: str, scale: float = 1) -> str:
    values = [getattr(figures, name) for figures in done]
    found = spread([None if value is None else scale * value for value in values])
    return "-" if found is None else found.text(form)


def _reached(done: Sequence[Figures]) -> dict[str, Reached]:
    levels = {f"{level:g}": reached([figures.queries_to[level] for figures in done]) for level in LEVELS}
    return levels | {"teacher": reached([figures.queries_to_teacher for figures in done])}


def _queries(done: Sequence[Figures]) -> list[str]:
    """Cost of each level; if nothing could be counted, no level was missed either."""
    levels = {name: str(found) for name, found in _reached(done).items()}
    if not any(figures.curve for figures in done):
        return ["-"] * len(levels)
    if all(figures.teacher_accuracy is None for figures in done):
        levels["teacher"] = "-"
    return list(levels.values())
