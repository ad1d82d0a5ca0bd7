"""``run.py extract``: the job that flags and a recipe describe, checked as far as that goes without torch."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

from dfme.cli.arguments import CommandInputs, CommandLine
from dfme.cli.flags import Flag, last_text
from dfme.cli.reading import Reading
from dfme.config.options import build
from dfme.config.ranges import Problem
from dfme.config.settings import ExtractConfig, Job
from dfme.errors import UserError
from dfme.methods import METHODS, SECTIONS
from dfme.run.checks import find_problems, parse_count
from dfme.run.job import DEFAULT_RECIPE


def default_recipe(flags: Sequence[Flag]) -> Path | None:
    """Without --config: a resumed run's own; the digits', unless a teacher is named; else none."""
    resuming = any(flag.key == "resume" and flag.text in (None, "true", "True", "yes") for flag in flags)
    out = last_text(flags, "out")
    if resuming:
        if not out:
            raise UserError("--resume: expected --out as well: the run directory to go on with")
        written = Path(out) / "config.yaml"
        if not os.path.isfile(written):
            raise UserError(f"--out: expected a run directory to resume, but {out!r} has no config.yaml")
        return written
    names_teacher = any(flag.key in ("teacher.kind", "teacher.checkpoint") for flag in flags)
    return None if names_teacher else DEFAULT_RECIPE


RECIPE_ONLY = frozenset({field.name for field in dataclasses.fields(ExtractConfig)} | {"method", *SECTIONS})
"""Sections of an extraction's recipe besides its teacher: what other commands with a teacher may skip."""

LAYOUT = CommandInputs(ExtractConfig, teacher=True, method=True, recipe=default_recipe)


def job_of(asked: CommandLine) -> Job:
    """The job, complete and plausible.

    Raises:
        UserError: one line that names everything wrong.
    """
    reading = asked.read()
    reading.values["budget"] = _budget(reading)
    teacher, options = asked.teacher(reading)
    config = build(ExtractConfig, reading.values)
    entry = METHODS[asked.method]
    method = build(entry.config, reading.values, "method.")
    sections = {name: build(entry.section(name), reading.values, f"{name}.") for name in SECTIONS}
    job = Job(config, teacher, options, asked.method, method, **sections)
    reading.report(find_problems(job))
    reading.finish()
    return job


def _budget(reading: Reading) -> int:
    try:
        return parse_count(reading.value("budget"))
    except ValueError as error:
        reading.report([Problem("budget", str(error))])
        return 1
