"""A comparison as text: a table per label mode and budget, figures of every seed, and JSON."""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from typing import Any

from dfme.audits.compare.defended import LEGEND as OF_DEFENCES
from dfme.audits.compare.defended import defended, defended_lines
from dfme.audits.compare.figures import (
    LOST,
    OF_THE_TEACHER,
    ComparisonResult,
    Figures,
    Outcome,
    Reached,
    reached,
    spread,
)
from dfme.audits.compare.plan import Cell, count_text
from dfme.report.facts import LEVELS
from dfme.report.markdown import fitted_table

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
        parts.append(
            f"### {mode}, {count_text(budget)} queries\n\n{fitted_table(heads, lines, FIRST, across)}"
        )
    parts += [f"Rows differ in {findings.unequal}."] if findings.unequal else []
    of = findings.outcomes
    constants = [done.constant_agreement for done in _done(of) if done.constant_agreement is not None]
    parts += [f"One answer to everything would agree on {max(constants):.1%}."] if constants else []
    failed = [each for each in of if each.state == "failed" and not each.shared]
    left_out = [f"- failed: `{each.cell.name}`: {each.reason}" for each in failed]
    never = [each for each in of if each.state == "not applicable"]
    left_out += dict.fromkeys(
        f"- not applicable: `{each.cell.label}` with {each.cell.mode}: {each.reason}" for each in never
    )
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
    tables: list[dict[str, Any]] = [
        {"label_mode": mode, "budget": budget, "rows": _filled([_row_json(*row) for row in rows.items()])}
        for mode, budget, rows in ((*group, findings.rows(*group)) for group in findings.groups())
    ]
    for each, group in zip(tables, findings.groups(), strict=True) if findings.defended else ():
        each["defences"] = [asdict(one) for one in defended(findings, *group)]
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
    """Every cell with its state and its figures."""
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


def _filled(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows without what none of them has."""
    known = {name for row in rows for name, value in row.items() if value is not None}
    return [{name: value for name, value in row.items() if name in known} for row in rows]


def _line(row: str, outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    """One row of a table, over the seeds that are finished."""
    done = _done(outcomes)
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
    done = _done(outcomes)
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


def _done(outcomes: Iterable[Outcome]) -> list[Figures]:
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
