"""``run.py check``: which teacher is asked a few hundred images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dfme.cli.arguments import CommandInputs, CommandLine
from dfme.cli.extract import RECIPE_ONLY, default_recipe
from dfme.config.options import build
from dfme.config.ranges import AT_LEAST_ONE, SEED, Problem
from dfme.config.settings import TeacherConfig
from dfme.run.checks import device_problems, teacher_problems


@dataclass(frozen=True)
class CheckConfig:
    """One look at a teacher.

    Args:
        images: random images to ask for, twice each; some 200 to 400 go into trying finite differences besides, and
            a paid API charges for all
        seed: seed of the images
        device: auto, cpu, cuda or cuda:N; where a teacher of kind torch runs
    """

    images: int = 16
    seed: int = 0
    device: str = "auto"


LAYOUT = CommandInputs(CheckConfig, teacher=True, recipe=default_recipe, ignored=RECIPE_ONLY - {"seed", "device"})


def plan_of(asked: CommandLine) -> tuple[CheckConfig, TeacherConfig, dict[str, Any]]:
    """The check's own settings, and the teacher.

    Raises:
        UserError: one line that names everything wrong.
    """
    reading = asked.read()
    teacher, options = asked.teacher(reading)
    config = build(CheckConfig, reading.values)
    for name, rule in (("images", AT_LEAST_ONE), ("seed", SEED)):
        value = getattr(config, name)
        if not rule.holds(value):
            reading.report([Problem(name, f"expected {rule.words}, got {value}")])
    reading.report(device_problems(config.device))
    reading.report(teacher_problems(teacher, options))
    reading.finish()
    return config, teacher, options
