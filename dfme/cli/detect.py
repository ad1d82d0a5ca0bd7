"""``run.py detect``: detectors over the accounts in a log of ``serve --record``; asks nothing."""

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
from dfme.cli.flags import Flag, default_recipe, split_flags
from dfme.config.detectors import DETECTORS
from dfme.config.fields import CONFIG, Basic, OwnTeacher
from dfme.config.messages import printable
from dfme.config.settings import EvaluationConfig
from dfme.files import write_text
from dfme.report.markdown import table
from dfme.run.checks import dataset_problems, fresh_directory_problems
from dfme.run.directory import RunDirectory
from dfme.version import __version__


@dataclass(frozen=True, config=CONFIG)
class DetectConfig:
    """One log, beside honest accounts; --teacher.watch names detectors, by default all it can
    feed.
    """

    log: Basic[str]
    """folder that run.py serve --record wrote; it may stand first and alone: run.py detect LOG ...
    """
    benign: Basic[str]
    """held-out labelled images of the owner, half of which calibrate the detectors: a data set, or
    FOLDER
    """
    other: str | None = None
    """other images that honest users may send, a fifth stream: a data set's name, or FOLDER"""
    own_teacher: Basic[OwnTeacher] = "api"
    """of a class or function of your own: local, where it answers on this machine for nothing"""
    out: Basic[str | None] = None
    """directory of the tables; by default a free name under runs/"""


SUMMARY = (
    "say which accounts in a log of serve --record look like an extraction (run.py detect LOG ...)"
)
INPUTS = CommandInputs(DetectConfig, teacher=True, recipe=default_recipe, ignored=RECIPE_ONLY)
FILES = ("detection.md", "detection.json")
ACCOUNT = ("account", "images", "sent before", "detector", "largest", "threshold", "first alarm")


def run(words: Sequence[str]) -> int:
    """Look through the log, print the tables, and keep them."""
    first = [Flag("log", word) for word in words[:1] if not word.startswith("-")]
    asked = Arguments([*first, *split_flags(words[len(first) :])], INPUTS)
    config = asked.config
    (teacher, kind_options) = asked.teacher()
    for name in ("benign", "other")[: 1 + (config.other is not None)]:
        asked.report(dataset_problems(name, getattr(config, name), "datasets", False))
    own = teacher_side.own_problems(asked.kind, config.own_teacher)
    asked.finish([*own, *fresh_directory_problems(config.out)])
    owned = replace(teacher, benign=config.benign)
    given = owned, kind_options, teacher.watch or DETECTORS, EvaluationConfig()
    tell = partial(print, file=sys.stderr, flush=True)
    command = shlex.join(["python", "run.py", "detect", *words])
    found = teacher_side.detection(*given, "auto", config.other, tell=tell, log=Path(config.log))
    told = {"command": command, "dfme": __version__, **found}
    shown = tables(found)
    with RunDirectory.create(
        Path(config.out or RunDirectory.free_name(Path("runs/detect")))
    ) as out:
        write_text(out.path / FILES[0], f"# What a log says\n\n{command}\n\n{shown}\n")
        write_text(out.path / FILES[1], json.dumps(told, indent=1, allow_nan=False) + "\n")
    print(f"{shown}\n\n{printable(', '.join(str(out.path / name) for name in FILES))}")
    return 0


def tables(found: Mapping[str, Any]) -> str:
    """Accounts and, beside each, its stream thinned; honest accounts; what was not looked at."""
    lines = list[list[str]]()
    rows = {each["name"]: [each["name"]] for each in found["detectors"]}
    thinned = [f"1/{every}" for every in found["accounts"][0]["thinned"]]
    for account in found["accounts"]:
        for name, of in account["thinned"][1].items():
            own = [account["account"], f"{account['images']}", f"{account['repeats']}", name]
            when = [
                f"{each[name]['first_alarm'] or 'never'}" for each in account["thinned"].values()
            ]
            lines.append([*own, f"{of['largest']:.3g}", f"{of['threshold']:.3g}", *when])
    for each in found["benign"]:
        rate = f"{each['per_10000']:.0f} < " if each["alarms"] else "< "
        rung = f"{each['sessions_with_alarm']} of {each['sessions']}"
        rows[each["detector"]].append(f"{rung} ({rate}{math.ceil(each['per_10000_upper'])})")
    missing = found["accounts_in_all"] - len(found["accounts"])
    unseen = [f"{name}, since {why}" for name, why in found["left_out"].items()]
    if missing:
        unseen.append(f"the {missing:,} accounts with the fewest images")
    parts = [
        "First alarms, in images that the account asked (an evaluation too), and of those left "
        "when thinned:",
        table([*ACCOUNT, *thinned[1:]], lines),
        f"Honest accounts of {found['session']} images with an alarm (alarms in 10,000 images < 95 "
        "% upper "
        "bound):",
        table(
            ["detector", *dict.fromkeys(each["stream"] for each in found["benign"])],
            [*rows.values()],
        ),
    ]
    return "\n\n".join([*parts, *(f"Not looked at: {each}." for each in unseen)])
