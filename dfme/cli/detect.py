"""``run.py detect``: what detectors say of the accounts in a log of ``serve --record``; nobody is asked anything."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
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
from dfme.config.watch_texts import DETECTORS, WatchText
from dfme.report.markdown import table
from dfme.run.checks import evaluation_problems, fresh_directory_problems


@dataclass(frozen=True, config=CONFIG)
class DetectConfig:
    """One log, beside honest accounts."""

    log: Basic[str]
    """folder that run.py serve --record wrote; it may stand first and alone: run.py detect LOG --benign digits"""
    benign: Basic[str | None] = None
    """held-out labelled images of the owner, which calibrate the detectors by one half: a data set's name, or FOLDER"""
    other: str | None = None
    """other images that honest users may send, a fifth stream: a data set's name, or FOLDER"""
    watch: WatchText = ()
    """detectors, such as pairs,sequential; by default all that the log can feed"""
    out: Basic[str | None] = None
    """directory of the tables; by default a free name under runs/"""
    seed: Seed = 0
    """seed of the honest accounts"""
    device: Device = "auto"
    """auto, cpu, cuda or cuda:N"""


SUMMARY = "say which accounts in a log of serve --record look like an extraction (run.py detect LOG --benign digits)"
INPUTS = CommandInputs(DetectConfig, teacher=True, recipe=default_recipe, ignored=RECIPE_ONLY - {"device"})
FILES = ("detection.md", "detection.json")
ACCOUNT = ("account", "images", "sent before", "detector", "first alarm", "largest", "threshold")
HONEST = (
    "Honest accounts of {images} images that rang (alarms in 10,000 images, and what 95 % confidence bounds them by):"
)


def run(words: Sequence[str]) -> int:
    """Look through the log, print the tables, and keep them."""
    first = [f"--log={words[0]}"] if words and not words[0].startswith("-") else []
    asked = Arguments([*first, *words[len(first) :]], INPUTS)
    config, (teacher, kind_options) = asked.settings(DetectConfig), asked.teacher()
    benign = EvaluationConfig(dataset=config.benign or teacher.benign or "none")
    asked.report(Problem("benign", text) for _, text in evaluation_problems(benign, needed=True))
    asked.finish(fresh_directory_problems(config.out))
    names = config.watch or teacher.watch or DETECTORS
    given = (replace(teacher, benign=None), kind_options, names, benign, config.device, config.other, config.seed)
    tell, facts = partial(print, file=sys.stderr, flush=True), shlex.join(["python", "run.py", "detect", *words])
    found = teacher_side.detection(*given, tell, Path(config.log))
    from dfme import __version__
    from dfme.files import write_text
    from dfme.report.terminal import columns
    from dfme.run.directory import RunDirectory

    with RunDirectory.create(Path(config.out or RunDirectory.free_name(Path("runs/detect")))) as out:
        told = {"command": facts, "dfme": __version__, **found}
        write_text(out.path / FILES[0], f"# What a log says\n\n{facts}\n\n{tables(found)}\n")
        write_text(out.path / FILES[1], json.dumps(told, indent=1, allow_nan=False) + "\n")
    print(f"{tables(found)}\n\n{', '.join(str(out.path / name) for name in FILES)}")
    return 0


def tables(found: Mapping[str, Any]) -> str:
    """Accounts and, beside each, its stream thinned; honest accounts; what was not looked at."""
    thresholds = {each["name"]: each["threshold"] for each in found["detectors"]}
    lines, heads, rows = list[list[str]](), [*ACCOUNT], {name: [name] for name in thresholds}
    for account in found["accounts"]:
        for name, of in account["detectors"].items():
            heads = [*ACCOUNT, *(f"1/{every}" for every in of["thinned"])]
            cells = (account["account"], account["images"], account["repeats"], name, of["first_alarm"], of["largest"])
            lines.append([*map(_cell, (*cells, thresholds[name], *of["thinned"].values()))])
    for each in found["benign"]:
        rate = f"{each['per_10000']:.0f} < " if each["alarms"] else "< "
        rung = f"{each['sessions_with_alarm']} of {each['sessions']}"
        rows[each["detector"]].append(f"{rung} ({rate}{math.ceil(each['per_10000_upper'])})")
    missing = found["accounts_in_all"] - len(found["accounts"])
    return "\n\n".join(
        [
            f"First alarms, in images of the account, and of those left where its stream is thinned to 1/2, ...:",
            table(heads, lines),
            HONEST.format(images=found["session"]),
            table(["detector", *dict.fromkeys(each["stream"] for each in found["benign"])], [*rows.values()]),
            *(f"Not looked at: {name}, since {why}." for name, why in found["left_out"].items()),
            *([f"Not looked at: the {missing:,} accounts with the fewest images."] if missing else []),
        ]
    )


def _cell(value: Any) -> str:
    return "never" if value is None else f"{value:.3g}" if isinstance(value, float) else f"{value}"
