"""The parts of audit.json, from what an audit measured."""

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from dfme.audits.audit import headline
from dfme.audits.audit.advice import advice
from dfme.audits.audit.controls import controls
from dfme.audits.audit.detection import joined
from dfme.audits.audit.findings import Findings
from dfme.audits.audit.model import Entry
from dfme.audits.audit.options import OPTIONS, AuditPlan, limits
from dfme.audits.audit.quota import sheet
from dfme.oracle.ledger_log import Totals
from dfme.report.console import teacher_name
from dfme.report.page import embedded
from dfme.run.build import spared_images
from dfme.run.job import PROJECT, document
from dfme.version import __version__

OPTIONS_SHOWN = (
    "profile",
    "budget",
    "seeds",
    "attackers",
    "label_modes",
    "defences",
    "total",
    "transfer",
    "keep_below",
    "per",
)


@dataclass(frozen=True)
class Measured:
    """Results of an audit's phases so far.

    ``detection``: what the owner's side measured of detectors. ``beside``: what was asked outside
    the cells. ``under``: the cell that was attacked under the quota.
    """

    of: Findings
    utility: Sequence[Entry]
    detection: Entry | None
    examined: Entry
    recognised: Entry | None
    not_run: Sequence[Entry]
    beside: Sequence[Totals]
    under: str | None


def parts(plan: AuditPlan, measured: Measured) -> Entry:
    """All of audit.json but what made it."""
    of = measured.of
    examined = measured.examined
    seeds = plan.config.seeds
    acceptable = limits(plan.config.acceptable, plan.config.budget)
    cells = of.cells()
    games = of.games(examined.get("twin"))
    detection = _detection(measured, cells, games["constant"])
    first = headline.headline(of, seeds)
    whole = {
        "options": _options(plan, acceptable),
        "target": target(plan, of.example),
        "halves": plan.halves or None,
        "headline": first,
        "advice": advice(of, detection),
        "verdicts": of.verdicts(acceptable),
        "price": of.price,
        "games": games,
        "defences": of.defences,
        "utility": measured.utility,
        "pareto": of.pareto(),
        "detection": detection,
        "cells": cells,
        "fidelity": examined.get("fidelity", []),
        "fidelity_seeds": examined.get("fidelity_seeds", []),
        "differences": examined.get("differences"),
        "transfer": examined.get("transfer"),
        "recognition": measured.recognised,
        "ledger": of.ledger(measured.beside, spared_images(plan.out / "cells")),
        "taxonomy": headline.TAXONOMY,
        "not_run": [*measured.not_run, *examined.get("not_run", ()), *of.not_run()],
        "limits": headline.what_it_does_not_tell(of, len(seeds), plan.local),
        "pictures": pictures(plan, first["attacker"]),
    }
    whole["quota"] = sheet(whole, measured.under)
    whole["controls"] = controls(whole)
    return whole


def _options(plan: AuditPlan, acceptable: Mapping[str, float]) -> Entry:
    options = {name: getattr(plan.config, name) for name in OPTIONS_SHOWN}
    options["price_per_1000"] = plan.job.teacher.price_per_1000
    options["acceptable"] = acceptable
    return options


def _detection(measured: Measured, cells: Sequence[Entry], constant: float | None) -> Entry | None:
    """What was measured of detectors, with their alarms at the attacks, but that on the quota."""
    if measured.detection is None:
        return None
    watched = []
    for cell in cells:
        name = cell["name"]
        summary = {} if name == measured.under else measured.of.summaries.get(name, {})
        watched.append({**cell, "constant": constant, "watch": summary.get("watch")})
    return joined(measured.detection, watched)


def target(plan: AuditPlan, example: Entry) -> Entry:
    """The audited teacher; ``example``: the summary of a finished run of its own answers, or
    empty.
    """
    teacher = example.get("teacher") or {}
    scored = example.get("evaluation") or {}
    accuracy = example.get("teacher_accuracy")
    name = teacher_name(document(plan.job)["teacher"])
    files = (plan.job.teacher_options.get(option) for option in teacher.get("files") or ())
    places = [os.path.relpath(str(file)) for file in (*files, plan.out / OPTIONS) if file]
    place = next((place for place in places if not place.startswith("..")), OPTIONS)
    return {
        "kind": plan.job.teacher.kind,
        "name": name,
        "local": plan.local,
        "label_mode": plan.own,
        "shape": teacher.get("shape"),
        "num_classes": teacher.get("num_classes"),
        "levels": teacher.get("levels"),
        "defences": [*plan.job.teacher.defences],
        "authorised_by": example.get("authorised_by"),
        "accuracy": accuracy,
        "evaluation": {
            "name": scored.get("name"),
            "images": scored.get("images"),
            "labelled": accuracy is not None,
        },
        "place": Path(place).as_posix(),
    }


def tool() -> Entry:
    """Versions, and the commit of a checkout with a mark of changed files."""
    found = {"dfme": __version__, "torch": torch.__version__, "python": platform.python_version()}
    words = ["git", "describe", "--always", "--dirty"]
    with suppress(OSError, subprocess.SubprocessError):
        if (PROJECT / ".git").exists():
            done = subprocess.run(  # noqa: S603
                words,
                cwd=PROJECT,
                capture_output=True,
                text=True,
                timeout=20,
                check=True,
            )
            return {**found, "commit": done.stdout.strip() or None}
    return {**found, "commit": None}


def pictures(plan: AuditPlan, attacker: str | None) -> Entry:
    """The sheet of the strongest attacker's queries, if it is not too large for the page."""
    every = (cell for cell in plan.first.cells if (cell.row, cell.mode) == (attacker, plan.own))
    sheets = [plan.first.directory(cell) / "samples.png" for cell in every]
    sheet = next(
        (file for file in sheets if file.is_file() and file.stat().st_size <= 400_000), None
    )
    return {"samples": embedded(sheet.read_bytes())} if sheet else {}
