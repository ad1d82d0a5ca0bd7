"""Facts of an audit beside its figures: its target, the tool, and the sheet of queries."""

from __future__ import annotations

import platform
import subprocess

import torch

from dfme import __version__
from dfme.benchmarks.audit.findings import Entry
from dfme.benchmarks.audit.options import AuditPlan
from dfme.report.console import teacher_name
from dfme.report.page import embedded
from dfme.run.job import PROJECT, document

MAX_SHEET = 400_000
"""Bytes of a picture that the page carries."""


def target(plan: AuditPlan, example: Entry) -> Entry:
    """The audited teacher; ``example``: the summary of a finished run of its own answers, or empty."""
    teacher, scored = example.get("teacher") or {}, example.get("evaluation") or {}
    accuracy, name = example.get("teacher_accuracy"), teacher_name(document(plan.job)["teacher"])
    told = {"kind": plan.job.teacher.kind, "name": name, "local": plan.local, "label_mode": plan.own}
    told |= {key: teacher.get(key) for key in ("shape", "num_classes", "levels")}
    told |= {"defences": [*plan.job.teacher.defences], "authorised_by": example.get("authorised_by")}
    evaluation = {"name": scored.get("name"), "images": scored.get("images"), "labelled": accuracy is not None}
    return told | {"accuracy": accuracy, "evaluation": evaluation}


def tool() -> Entry:
    """Versions, and the commit of a checkout."""
    versions = {"dfme": __version__, "torch": torch.__version__, "python": platform.python_version()}
    return versions | {"commit": commit() or None}


def commit() -> str:
    """The commit of a checkout and a mark of changed files; empty outside a checkout."""
    return first_line("git describe --always --dirty") if (PROJECT / ".git").exists() else ""


def first_line(command: str) -> str:
    """The first line that a program prints; empty where the program is missing or fails."""
    words = command.split()
    try:
        done = subprocess.run(words, cwd=PROJECT, capture_output=True, text=True, timeout=20)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout.partition("\n")[0].strip()


def pictures(plan: AuditPlan, attacker: str | None) -> Entry:
    """The sheet of the strongest attacker's queries."""
    every = (cell for cell in plan.first.cells if (cell.row, cell.mode) == (attacker, plan.own))
    sheets = [plan.first.directory(cell) / "samples.png" for cell in every]
    sheet = next((file for file in sheets if file.is_file() and file.stat().st_size <= MAX_SHEET), None)
    return {"samples": embedded(sheet)} if sheet else {}
