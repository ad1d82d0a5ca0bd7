"""A comparison as text: its tables and what defences leave, figures of every seed, JSON and CSV. No
torch.
"""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from itertools import chain
from typing import Any

from dfme.audits.compare.attacked import BEST_BALANCED, OF_DEFENCES, defended, defended_lines
from dfme.audits.compare.figures import (
    LOST,
    OF_THE_TEACHER,
    ComparisonResult,
    Figures,
    Outcome,
    Reached,
    finished,
    reached,
)
from dfme.audits.compare.plan import Cell, count_text
from dfme.report.markdown import code, fitted_table, plain
from dfme.report.run_files import LEVELS
from dfme.statistics import spread

LEGEND = f"""\
Figures are means +- standard deviations (n - 1) over seeds, of the student that each run
delivered at the end, on the evaluation set; `vote` is the soft vote of all students of a run that
has several. Queries are images charged until the first evaluation with at least that agreement,
or with {OF_THE_TEACHER:.0%} of the teacher's accuracy (`teacher`), by a copy whose 95% interval
is above a constant answer; "2 of 3: 9,000" says how many seeds got there, and the median over
all, one that did not get there counting as more than any number. A run has `collapsed` whose last
agreement is below {LOST:.0%} of its own best on the way, or at most 2/K (of K classes; with fewer
than ten, ten points above chance); where a constant answer agrees on over half of the images, so
does one whose balanced agreement is no higher than that. `steps` are the optimiser steps of each
student; `seconds` are those of a run among all that ran beside it."""


BALANCED = "balanced agreement %"
HEADS = (
    "row",
    "seeds",
    "accuracy %",
    "agreement %",
    BALANCED,
    "KL",
    "vote accuracy %",
    "vote agreement %",
    *(f"to {level:.0%}" for level in LEVELS),
    "to teacher",
    "collapsed",
    "seconds",
    "steps",
)
FIRST = (
    "row",
    "defence",
    "best attacker",
    BEST_BALANCED,
    "to label-only",
    "seeds",
    "agreement %",
    BALANCED,
    "accuracy %",
    "to teacher",
    "collapsed",
    "to 90%",
    "to 50%",
    "steps",
)
"""The columns that a narrow terminal shows first."""


CONSTANT = "(constant answer)"
"""The row of one answer to everything, below all others."""

LARGE = """\
A constant answer agrees on {constant:.1%}, more than half of the images, without a query: read
the balanced agreement, in which each of the teacher's classes counts alike
(docs/evaluation.md).{of_constant}"""


def heads_of(findings: ComparisonResult) -> tuple[str, ...]:
    """The heads of a table; balanced agreement stands in it where a constant answer agrees on over
    half.
    """
    if findings.beside.is_large:
        return HEADS
    return tuple(name for name in HEADS if name != BALANCED)


def overview(findings: ComparisonResult, across: int | None = None) -> str:
    """The tables, one per label mode and budget, and the cells that failed or were never to be run.

    ``across``: the letters of a line of the terminal, where the tables have only what fits.
    """
    parts = []
    for mode, budget in findings.groups():
        if findings.defended:
            heads, *lines = defended_lines(findings, mode, budget)
        else:
            heads = heads_of(findings)
            rows = findings.rows(mode, budget).items()
            lines = [_line(row, outcomes, heads) for row, outcomes in rows]
            lines += _constant_line(findings, heads)
        table = fitted_table(heads, lines, FIRST, across)
        parts.append(f"### {mode}, {count_text(budget)} queries\n\n{table}")
    if findings.unequal:
        parts.append(f"Rows differ in {plain(findings.unequal)}.")
    parts += _constant_sentences(findings)
    not_run: dict[str, None] = {}
    for outcome in findings.outcomes:
        if outcome.state == "failed" and not outcome.shared:
            not_run[f"- failed: {code(outcome.cell.name)}: {plain(outcome.reason)}"] = None
    for outcome in findings.outcomes:
        if outcome.state == "not applicable":
            cell = f"{code(outcome.cell.label)} with {outcome.cell.mode}"
            not_run[f"- not applicable: {cell}: {plain(outcome.reason)}"] = None
    if not_run:
        parts.append("\n".join(not_run))
    return "\n\n".join(parts)


def _constant_sentences(findings: ComparisonResult) -> list[str]:
    """What one answer to everything gets, and what is to be read where that is much."""
    beside = findings.beside
    if beside.constant is None:
        return []
    if not beside.is_large:
        return [f"One answer to everything would agree on {beside.constant:.1%}."]
    balanced = (
        "" if beside.balanced is None else f" A constant answer has {beside.balanced:.1%} of that."
    )
    return [LARGE.format(constant=beside.constant, of_constant=balanced)]


def _constant_line(findings: ComparisonResult, heads: Sequence[str]) -> list[tuple[str, ...]]:
    """The row of one answer to everything, if its figures are known."""
    beside = findings.beside
    if beside.constant is None:
        return []
    texts = {HEADS[0]: CONSTANT, "agreement %": f"{100 * beside.constant:.2f}"}
    if beside.balanced is not None:
        texts[BALANCED] = f"{100 * beside.balanced:.2f}"
    return [tuple(texts.get(head, "-") for head in heads)]


def markdown(findings: ComparisonResult) -> str:
    """The whole report."""
    facts = "\n".join(
        f"- {name}: {code(value) if name == 'command' else plain(value)}"
        for name, value in findings.facts.items()
    )
    parts = [f"# {plain(findings.title)}", facts, overview(findings)]
    if findings.defended:
        parts.append(OF_DEFENCES)
    parts += [LEGEND, "## Each seed"]
    heads = heads_of(findings)
    for mode, budget in findings.groups():
        rows = findings.rows(mode, budget).values()
        lines = [
            _seed_line(outcome.cell, outcome.figures, heads)
            for outcome in chain.from_iterable(rows)
            if outcome.figures is not None
        ]
        if lines:
            table = fitted_table((heads[0], "seed", *heads[2:]), lines)
            parts.append(f"### {mode}, {count_text(budget)} queries\n\n{table}")
    return "\n\n".join(filter(None, parts)) + "\n"


def as_json(findings: ComparisonResult) -> str:
    """Facts, every row of every table with its spreads, and every cell with its figures."""
    tables = list[dict[str, Any]]()
    for mode, budget in findings.groups():
        rows = [_row_json(*row) for row in findings.rows(mode, budget).items()]
        used = {name for row in rows for name, value in row.items() if value is not None}
        rows = [{name: value for name, value in row.items() if name in used} for row in rows]
        tables.append({"label_mode": mode, "budget": budget, "rows": rows})
        if findings.defended:
            tables[-1]["defences"] = [asdict(line) for line in defended(findings, mode, budget)]
    content = {
        "title": findings.title,
        "facts": findings.facts,
        "tables": tables,
        "cells": _cells(findings),
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def as_csv(findings: ComparisonResult) -> str:
    """A line for every cell, with its figures but its curve; empty: not known, or not reached."""
    lines = _cells(findings)
    written = io.StringIO()
    for line in lines:
        figures = line.pop("figures") or {field.name: None for field in fields(Figures)}
        queries_to = figures.pop("queries_to") or {}
        line.update(figures)
        for level in LEVELS:
            line[f"queries_to_{100 * level:.0f}"] = queries_to.get(level)
        # no formula of a stranger's in a spreadsheet
        line["reason"] = line["reason"].lstrip("=+-@")
    table = csv.DictWriter(
        written, [name for name in lines[0] if name != "curve"], "", "ignore", lineterminator="\n"
    )
    table.writeheader()
    table.writerows(lines)
    return written.getvalue()


def _cells(findings: ComparisonResult) -> list[dict[str, Any]]:
    cells = []
    for outcome in findings.outcomes:
        cell = outcome.cell
        line: dict[str, Any] = {
            "row": cell.row,
            "label_mode": cell.mode,
            "budget": cell.budget,
            "seed": cell.seed,
        }
        if findings.defended:
            line["defence"] = cell.attempt.defence
            line["answers"] = cell.attempt.answers
        line["run"] = f"cells/{cell.name}"
        line["state"] = outcome.state
        line["reason"] = outcome.reason
        line["figures"] = outcome.figures and asdict(outcome.figures)
        cells.append(line)
    return cells


def _line(row: str, outcomes: Sequence[Outcome], heads: Sequence[str] = HEADS) -> tuple[str, ...]:
    """One row of a table with these heads, over the seeds that are finished."""
    runs = finished(outcomes)
    if not runs:
        return (plain(row), _seeds(outcomes), *("",) * (len(heads) - 2))
    names = ("accuracy", "agreement", "agreement_balanced", "vote_accuracy", "vote_agreement")
    percent = [_spread(runs, name, "{:.2f}", scale=100) for name in names]
    collapsed = [figures.collapsed for figures in runs if figures.collapsed is not None]
    steps = _spread(runs, "student_steps", "{:,.0f}").removesuffix(" +- 0")
    students = max(figures.students for figures in runs)
    cells = (
        plain(row),
        _seeds(outcomes),
        *percent[:3],
        _spread(runs, "kl", "{:.4f}"),
        *percent[3:],
        *_queries(runs),
        f"{sum(collapsed)} of {len(collapsed)}" if collapsed else "-",
        _spread(runs, "seconds", "{:,.1f}"),
        steps if students == 1 else f"{students} x {steps}",
    )
    by_head = dict(zip(HEADS, cells, strict=True))
    return tuple(by_head[head] for head in heads)


def _seed_line(cell: Cell, figures: Figures, heads: Sequence[str] = HEADS) -> tuple[str, ...]:
    line = list(_line(cell.label, [Outcome(cell, "finished", figures=figures)], heads))
    line[heads.index("seeds")] = str(cell.seed)
    line[heads.index("collapsed")] = {True: "yes", False: "no", None: "-"}[figures.collapsed]
    return tuple(line)


SPREADS = (
    "accuracy",
    "agreement",
    "kl",
    "vote_accuracy",
    "vote_agreement",
    "teacher_accuracy",
    "seconds",
    "agreement_balanced",
    "constant_agreement",
    "constant_balanced",
    "student_steps",
)
"""Figures of a row of the JSON, over seeds."""


def _row_json(row: str, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    runs = finished(outcomes)
    collapsed = [figures.collapsed for figures in runs if figures.collapsed is not None]
    line: dict[str, Any] = {"row": row, "seeds": [], "missing": {}}
    for outcome in outcomes:
        if outcome.figures is None:
            line["missing"][str(outcome.cell.seed)] = outcome.reason or outcome.state
        else:
            line["seeds"].append(outcome.cell.seed)
    for name in SPREADS:
        over_seeds = spread([getattr(figures, name) for figures in runs])
        line[name] = over_seeds and asdict(over_seeds)
    line["queries_to"] = {name: asdict(level) for name, level in _reached(runs).items()}
    line["collapse_rate"] = sum(collapsed) / len(collapsed) if collapsed else None
    return line


def _seeds(outcomes: Sequence[Outcome]) -> str:
    """Number of seeds the figures are of, or why there are none."""
    states = {outcome.state for outcome in outcomes}
    if len(states) == 1 and "finished" not in states:
        return states.pop()
    count = len(finished(outcomes))
    return str(count) if count == len(outcomes) else f"{count} of {len(outcomes)}"


def _spread(runs: Sequence[Figures], name: str, form: str, scale: float = 1) -> str:
    values = [getattr(figures, name) for figures in runs]
    over_seeds = spread([None if value is None else scale * value for value in values])
    return "-" if over_seeds is None else over_seeds.text(form)


def _reached(runs: Sequence[Figures]) -> dict[str, Reached]:
    levels = {
        f"{level:g}": reached([figures.queries_to[level] for figures in runs]) for level in LEVELS
    }
    return levels | {"teacher": reached([figures.queries_to_teacher for figures in runs])}


def _queries(runs: Sequence[Figures]) -> list[str]:
    """Cost of each level; if nothing could be counted, no level was missed either."""
    levels = {name: str(level) for name, level in _reached(runs).items()}
    if not any(figures.curve for figures in runs):
        return ["-"] * len(levels)
    if all(figures.teacher_accuracy is None for figures in runs):
        levels["teacher"] = "-"
    return list(levels.values())
