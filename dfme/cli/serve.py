"""``run.py serve``: which teacher is served, where, under what name and limits."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dfme.cli.arguments import CommandInputs, CommandLine
from dfme.cli.extract import RECIPE_ONLY, default_recipe
from dfme.config.commands import ServeConfig
from dfme.config.options import build
from dfme.config.ranges import AT_LEAST_ONE, NOT_NEGATIVE, RATE, Problem, Rule
from dfme.config.settings import TeacherConfig
from dfme.errors import UserError
from dfme.run.checks import device_problems, teacher_problems

PORT = Rule(lambda value: 0 <= value < 65_536, "a port from 0 (a free one) to 65535")
RULES = {
    "port": PORT,
    "max_batch": AT_LEAST_ONE,
    "images_per_second": RATE,
    "requests_per_second": RATE,
    "threads": NOT_NEGATIVE,
}
NAME = re.compile(r"[\w.-]+", re.ASCII)
FILES = ("checkpoint", "program", "model", "folder")
"""Options of the kinds of teacher from which a model's name is taken."""

LAYOUT = CommandInputs(ServeConfig, teacher=True, recipe=default_recipe, ignored=RECIPE_ONLY - {"device"})


def plan_of(asked: CommandLine) -> tuple[ServeConfig, TeacherConfig, dict[str, Any]]:
    """How to serve, the model's name included, and the teacher.

    Raises:
        UserError: one line that names everything wrong, or the extra that is not installed.
    """
    reading = asked.read()
    teacher, options = asked.teacher(reading)
    config = build(ServeConfig, reading.values)
    reading.report(_problems(config))
    reading.report(device_problems(config.device))
    reading.report(teacher_problems(teacher, options))
    reading.finish()
    if not all(importlib.util.find_spec(module) for module in ("starlette", "uvicorn")):
        raise UserError('serve needs starlette and uvicorn, which are not installed: pip install "dfme[serve]"')
    return dataclasses.replace(config, model=config.model or default_name(teacher, options)), teacher, options


def default_name(teacher: TeacherConfig, options: Mapping[str, Any]) -> str:
    """The name of the teacher's file or folder, of its class, or of its kind, as a part of a URL."""
    named = next((str(options[key]) for key in FILES if options.get(key)), None)
    name = Path(named).stem if named else teacher.kind.rpartition(":")[2]
    return "-".join(NAME.findall(name)) or "teacher"


def _problems(config: ServeConfig) -> Iterator[Problem]:
    for name, rule in RULES.items():
        value = getattr(config, name)
        if value is not None and not rule.holds(value):
            yield Problem(name, f"expected {rule.words}, got {value}")
    if config.model is not None and not NAME.fullmatch(config.model):
        yield Problem("model", f"expected letters, digits, dots, - and _ alone, got {config.model!r}")
    if config.api_key_env is not None and not os.environ.get(config.api_key_env, "").strip():
        yield Problem("api_key_env", f"the environment variable {config.api_key_env} is not set; it holds the key")
