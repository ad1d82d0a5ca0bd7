"""``run.py check``: ask a teacher a few hundred images, and say what its answers are good for."""

import shlex
from collections.abc import Sequence

from pydantic.dataclasses import dataclass

from dfme import owner_side
from dfme.cli.arguments import RECIPE_ONLY, CommandInputs, arguments_of
from dfme.cli.flags import default_recipe, tell
from dfme.config.values import CONFIG, Count, Device, Seed
from dfme.errors import Problem


@dataclass(frozen=True, config=CONFIG)
class CheckConfig:
    """One look at a teacher."""

    images: Count = 16
    """random images to ask for, twice each; some 200 to 400 are charged besides, for finite
    differences
    """
    seed: Seed = 0
    """seed of the images"""
    device: Device = "auto"
    """auto, cpu, cuda or cuda:N; where a teacher of kind torch runs"""
    sample: str | None = None
    """a file with one answer of a JSON API, for write_adapter to read; nothing is asked then"""
    write_adapter: str | None = None
    """the YAML file to write, which must not be there yet"""


SUMMARY = "ask a teacher a few hundred images and say what its answers are good for"
IGNORED = RECIPE_ONLY - {"seed", "device"}
INPUTS = CommandInputs(CheckConfig, teacher=True, recipe=default_recipe, ignored=IGNORED)


def run(words: Sequence[str]) -> int:
    """Ask, and print what was seen."""
    arguments = arguments_of(words, INPUTS)
    config = arguments.config
    if config.sample or config.write_adapter:
        text = "expected both --sample and --write-adapter"
        arguments.finish(
            Problem(key, text) for key in ("sample", "write_adapter") if not getattr(config, key)
        )
        print(owner_side.write_adapter(str(config.sample), str(config.write_adapter)))
        words = (
            f"--teacher json --teacher.adapter {shlex.quote(str(config.write_adapter))} "
            "--teacher.url URL"
        )
        print(f"then look at the service: run.py check {words}")
        return 0
    teacher, kind_options = arguments.teacher()
    arguments.finish()
    owner_side.check_teacher(teacher, kind_options)
    from dfme.cli.preflight import examine
    from dfme.report.terminal import Notes

    built = owner_side.make(teacher, kind_options, config.device)
    with Notes(tell) as notes:
        print(examine(built, config.images, config.seed, tell=notes))
    return 0
