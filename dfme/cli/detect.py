"""``run.py detect``: what detectors say, offline, of what ``serve --record`` wrote; nothing is asked of any client."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic.dataclasses import dataclass

from dfme.cli import teacher_side
from dfme.cli.arguments import RECIPE_ONLY, Arguments, CommandInputs
from dfme.cli.files import default_recipe
from dfme.config.fields import CONFIG, Basic, Device, Seed
from dfme.config.messages import Problem
from dfme.config.settings import EvaluationConfig
from dfme.config.watch_texts import DETECTORS
from dfme.report.markdown import table
from dfme.run.checks import evaluation_problems, fresh_directory_problems


@dataclass(frozen=True, config=CONFIG)
class DetectConfig:
    """One log; it is the first word: run.py detect LOG --benign digits."""

    log: Basic[str] = ""
    """the folder that run.py serve --record wrote"""
    other: Basic[str | None] = None
    """images of honest users that are like no others: another data set or FOLDER; a fifth stream"""
    out: Basic[str | None] = None
    """directory of the tables; by default a free name under runs/"""
    seed: Basic[Seed] = 0
    """seed of the honest accounts"""
    device: Basic[Device] = "auto"
    """auto, cpu, cuda or cuda:N"""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """held-out images, where --benign names none"""


SUMMARY = "say which accounts of a log (run.py detect LOG --benign digits) look like an extraction, and since when"
INPUTS = CommandInputs(
    DetectConfig, teacher=True, recipe=default_recipe, ignored=RECIPE_ONLY - {"device", "evaluation"}
)
FILES = ("detection.md", "detection.json")


def run(words: Sequence[str]) -> int:
    """Look through the log, print the tables, and keep them."""
    named = [f"--log={words[0]}", *words[1:]] if words and not words[0].startswith("-") else words
    asked = Arguments(named, INPUTS)
    config, (teacher, kind_options) = asked.settings(DetectConfig), asked.teacher()
    if not os.path.isdir(config.log):
        asked.report([Problem("log", f"expected the folder that run.py serve --record wrote, got {config.log!r}")])
    if asked.kind in teacher_side.KINDS and not teacher_side.KINDS[asked.kind].is_local:
        asked.report([Problem("teacher.kind", "expected the teacher that was served, on this machine")])
    evaluation = replace(config.evaluation, dataset=teacher.benign or config.evaluation.dataset)
    asked.finish([*evaluation_problems(evaluation, needed=True), *fresh_directory_problems(config.out)])
    from dfme import __version__
    from dfme.files import write_text
    from dfme.run.directory import RunDirectory

    tell, names = partial(print, file=sys.stderr, flush=True), teacher.watch or DETECTORS
    with RunDirectory.create(Path(config.out or RunDirectory.free_name(Path("runs/detect")))) as out:
        given = (teacher, kind_options, names, evaluation, config.device, config.other, config.seed, tell)
        found = {"command": shlex.join(["python", "run.py", "detect", *words]), "dfme": __version__}
        found |= teacher_side.detection(*given, log=Path(config.log))
        write_text(out.path / FILES[0], f"# What the log says\n\n{found['command']}\n\n{tables(found)}\n")
        write_text(out.path / FILES[1], json.dumps(found, indent=1, allow_nan=False) + "\n")
    print(f"{tables(found)}\n\n{', '.join(str(out.path / name) for name in FILES)}")
    return 0


def tables(found: Mapping[str, Any]) -> str:
    """Accounts with the thinned streams beside them, honest accounts, and which detectors had nothing to look at."""
    thresholds = {each["name"]: each["threshold"] for each in found["detectors"]}
    heads, lines = ["account", "images", "sent before", "detector", "first alarm", "largest", "threshold"], []
    for account in found["accounts"]:
        for name, of in account["detectors"].items():
            own = (account["account"], account["images"], account["repeats"], name, of["first_alarm"], of["largest"])
            lines.append([*map(_cell, (*own, thresholds[name], *of["thinned"].values()))])
    heads += [f"1/{every}" for every in found["thinned"]]
    rows = [
        [
            *(each["stream"], each["detector"], f"{each['sessions_with_alarm']} of {each['sessions']}"),
            *(f"{each['per_10000']:.1f}", f"{each['per_10000_upper']:.0f}"),
        ]
        for each in found["benign"]
    ]
    honest = ["honest accounts", "detector", "with an alarm", "alarms per 10,000", "at most"]
    parts = [table(heads, lines), table(honest, rows), *(f"- {each}" for each in found["remarks"])]
    return "\n\n".join(parts)


def _cell(value: Any) -> str:
    return "never" if value is None else f"{value:.4g}" if isinstance(value, float) else f"{value}"
