"""``run.py check``: ask a teacher a few hundred images, and say what its answers are good for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from pydantic.dataclasses import dataclass

from dfme.cli import teacher_side
from dfme.cli.arguments import RECIPE_ONLY, Arguments, CommandInputs
from dfme.cli.files import default_recipe
from dfme.config.fields import CONFIG, Count, Device, Seed


@dataclass(frozen=True, config=CONFIG)
class CheckConfig:
    """One look at a teacher."""

    images: Count = 16
    """random images to ask for, twice each; some 200 to 400 go into trying finite differences besides, and a paid API
    charges for all"""
    seed: Seed = 0
    """seed of the images"""
    device: Device = "auto"
    """auto, cpu, cuda or cuda:N; where a teacher of kind torch runs"""


SUMMARY = "ask a teacher a few hundred images and say what its answers are good for"
INPUTS = CommandInputs(CheckConfig, teacher=True, recipe=default_recipe, ignored=RECIPE_ONLY - {"seed", "device"})


def run(words: Sequence[str]) -> int:
    """Ask, and print what was seen."""
    asked = Arguments(words, INPUTS)
    config, (teacher, kind_options) = asked.settings(CheckConfig), asked.teacher()
    asked.finish()
    teacher_side.check_teacher(teacher, kind_options)
    from dfme.cli.preflight import examine

    made = teacher_side.make(teacher, kind_options, config.device)
    print(examine(made, config.images, config.seed, tell=partial(print, file=sys.stderr, flush=True)))
    return 0
