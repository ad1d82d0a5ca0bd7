"""``run.py serve``: which teacher is served, where, under what name and limits."""

import dataclasses
import importlib.util
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dfme import owner_side
from dfme.cli.arguments import RECIPE_ONLY, CommandInputs, arguments_of
from dfme.cli.flags import default_recipe
from dfme.config.settings import TeacherConfig
from dfme.errors import Problem, UserError
from dfme.owner_side import ServeConfig

SUMMARY = "serve a teacher over the Open Inference Protocol v2, to rehearse an audit"
INPUTS = CommandInputs(
    ServeConfig, teacher=True, recipe=default_recipe, ignored=RECIPE_ONLY - {"device"}
)


def run(words: Sequence[str]) -> int:
    """Serve until interrupted."""
    arguments = arguments_of(words, INPUTS)
    config = arguments.config
    (teacher, kind_options) = arguments.teacher()
    arguments.finish(_problems(config, teacher))
    if not all(importlib.util.find_spec(module) for module in ("starlette", "uvicorn")):
        raise UserError(
            "serve needs two packages that are not installed: pip install starlette uvicorn"
        )
    named = dataclasses.replace(config, model=config.model or _name(teacher, kind_options))
    if config.watch or config.benign:
        teacher = dataclasses.replace(
            teacher, watch=config.watch, benign=config.benign, on_alarm=config.on_alarm
        )
    owner_side.check_teacher(teacher, kind_options)
    # between requests torch's threads sleep, not spin: a client may share the machine
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    print(owner_side.serve(named, teacher, kind_options, tell=partial(print, flush=True)))
    return 0


def _name(teacher: TeacherConfig, kind_options: Mapping[str, Any]) -> str:
    """The name of the teacher's file or folder, of its class, or of its kind, as a part of a
    URL.
    """
    files = (kind_options.get(key) for key in ("checkpoint", "program", "model", "folder"))
    named = next((str(file) for file in files if file), None)
    name = Path(named).stem if named else teacher.kind.rpartition(":")[2]
    return "-".join(re.findall(r"[\w.-]+", name, re.ASCII)) or "teacher"


def _problems(config: ServeConfig, teacher: TeacherConfig) -> Iterator[Problem]:
    keys = {name: os.environ.get(name, "").strip() for name in config.key_names}
    for name in (name for name, key in keys.items() if not key):
        yield Problem(
            "api_key_env", f"the environment variable {name} is not set; it holds the key"
        )
    if config.api_key_env is not None and (
        not keys or len({*keys.values()}) < len(config.key_names)
    ):
        yield Problem(
            "api_key_env", "expected names of environment variables a,b with different keys"
        )
    if config.watch and teacher.watch:
        yield Problem("watch", "expected either it or --teacher.watch")
    if not config.watch and config.on_alarm != "log":
        yield Problem("on_alarm", "expected --watch with it")
    if config.alarm_file and not (config.watch or teacher.watch):
        yield Problem("alarm_file", "expected --watch with it")
    if config.benign and not (config.watch or (config.record and teacher.kind == "torch")):
        yield Problem("benign", "expected --watch with it, or --record of a teacher of kind torch")
    if config.record and config.retain_days is None:
        yield Problem(
            "retain_days", "expected days to keep what is recorded, personal data, such as 30"
        )
    if not config.record and (config.retain_days or config.record_images):
        key = "retain_days" if config.retain_days else "record_images"
        yield Problem(key, "expected --record FOLDER with it")
