"""``run.py utility``: what each defence costs honest users of a teacher on this machine; no
attack.
"""

import json
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
from dfme.cli.flags import default_recipe, last_text, split_flags
from dfme.config.defences import parse_defences
from dfme.config.fields import CONFIG, Basic, Device, OwnTeacher, Seed
from dfme.config.messages import printable
from dfme.config.settings import EvaluationConfig, TeacherConfig
from dfme.errors import Problem, UserError
from dfme.oracle.ledger_log import audit
from dfme.report.markdown import fitted_table
from dfme.run.checks import evaluation_problems, fresh_directory_problems


@dataclass(frozen=True, config=CONFIG)
class UtilityConfig:
    """One bill per row."""

    out: Basic[str | None] = None
    """directory of tables and picture; by default a free name under runs/"""
    seed: Basic[Seed] = 0
    """seed of the order of images, their corruption, and an attack's"""
    device: Basic[Device] = "auto"
    """auto, cpu, cuda or cuda:N"""
    own_teacher: Basic[OwnTeacher] = "api"
    """of a class or function of your own: local, where it answers on this machine for nothing"""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """what honest users send"""


SUMMARY = (
    "say what each defence of a teacher (--teacher.defences a,b+c,label) costs its honest users"
)
IGNORED = RECIPE_ONLY - {"device", "evaluation"}
INPUTS = CommandInputs(UtilityConfig, teacher=True, recipe=default_recipe, ignored=IGNORED)
FILES = ("utility.md", "utility.json", "utility.png")
PARTS = {
    "states": "what each states",
    "held_out": "held-out images",
    "corrupted": "corrupted images",
    "data_free": "an attack's",
    "ms": "time",
}
PANELS = {
    "l1_mean": "mean L1 change of an answer",
    "accuracy_drop": "accuracy lost",
    "top1_changed": "share of top classes changed",
    "confidence_auroc": "confidence AUROC",
}
SHOWN_FIRST = ("row", "accuracy", "l1 mean", "confidence auroc", "accuracy drop", "top1 changed")


def run(words: Sequence[str]) -> int:
    """Measure, print the tables, and keep them with the picture."""
    flags = split_flags(words)
    key = "teacher.defences"
    stacks = dict[str, tuple[str, ...]]()
    asked = Arguments([flag for flag in flags if flag.key != key], INPUTS)
    config = asked.config
    (teacher, kind_options) = asked.teacher()
    for row in (last_text(flags, key) or "+".join(teacher.defences)).split(","):
        try:
            mode = teacher_side.label_mode_of([row.strip()])
            stack = [mode] if mode else parse_defences(row)
            if stack:
                stacks[row.strip()] = tuple(map(str, stack))
        except UserError as error:
            asked.report([Problem(key, str(error))])
    if asked.kind in teacher_side.KINDS and not teacher_side.KINDS[asked.kind].is_local:
        text = "expected a teacher on this machine; others are defended elsewhere"
        asked.report([Problem("teacher.kind", text)])
    asked.report(teacher_side.own_problems(asked.kind, config.own_teacher))
    asked.report(evaluation_problems(config.evaluation, needed=True))
    asked.finish(fresh_directory_problems(config.out))
    measure(
        config, teacher, kind_options, stacks, shlex.join(["python", "run.py", "utility", *words])
    )
    return 0


def measure(
    config: UtilityConfig,
    teacher: TeacherConfig,
    options: Mapping[str, Any],
    stacks: Mapping[str, tuple[str, ...]],
    command: str,
) -> None:
    """Measure the bill of each stack, print the tables, and keep them with the picture."""
    from dfme import __version__
    from dfme.compute import choose_device, device_name
    from dfme.files import write_text
    from dfme.report.terminal import columns
    from dfme.run.directory import RunDirectory

    with RunDirectory.create(
        Path(config.out or RunDirectory.free_name(Path("runs/utility")))
    ) as out:
        tell = partial(print, file=sys.stderr, flush=True)
        with teacher_side.benign_meter(teacher, options, out.path / "benign") as meter:
            given = replace(teacher, defences=()), options, [*stacks.values()], config.evaluation
            measured = teacher_side.bills(*given, config.device, config.seed, tell, meter)
        if meter:
            asked_for = audit(out.path / "benign" / "ledger.jsonl").served
            price = teacher.price_per_1000
            cost = "" if price is None else f", which cost {asked_for * price / 1000:,.2f}"
            tell(f"the teacher was asked {asked_for:,} images{cost}")
        bills = [
            {"row": row, **bill} for row, bill in zip(("none", *stacks), measured, strict=True)
        ]
        on = f"dfme {__version__} on {device_name(choose_device(config.device))}"
        facts = {"command": command, "measured": on}
        text = "\n\n".join(["# What honest users pay", *facts.values(), tables(bills)])
        write_text(out.path / FILES[0], f"{text}\n")
        write_text(
            out.path / FILES[1],
            json.dumps(facts | {"rows": bills}, indent=1, allow_nan=False) + "\n",
        )
        draw(bills, out.path / FILES[2])
    files = printable(", ".join(str(out.path / name) for name in FILES))
    print(f"{tables(bills, columns(sys.stdout))}\n\n{files}")


def tables(bills: Sequence[Mapping[str, Any]], across: int | None = None) -> str:
    """A table per stream, and one of milliseconds an image; ``across``: width of the terminal."""
    parts = []
    for part, title in PARTS.items():
        if not any(bill[part] for bill in bills):
            continue
        rows = [{"row": bill["row"], **bill[part]} for bill in bills]
        heads = list(dict.fromkeys(name for row in rows for name in row))
        lines = [[_cell(row.get(name)) for name in heads] for row in rows]
        table = fitted_table([name.replace("_", " ") for name in heads], lines, SHOWN_FIRST, across)
        parts.append(f"### {title}\n\n{table}")
    return "\n\n".join(parts)


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):  # what defences counted
        return ", ".join(f"{name} {_cell(each)}".strip() for name, each in value.items())
    if isinstance(value, list | tuple):
        return " to ".join(map(_cell, value))
    if value is None:
        return "-"
    return f"{value:.4f}" if isinstance(value, float) else f"{value}"


def draw(bills: Sequence[Mapping[str, Any]], path: Path) -> bool:
    """A line per defence, a panel per price: what held-out images pay (dots) and corrupted ones
    (rings).
    """
    from matplotlib.figure import Figure
    from numpy import array

    from dfme.report.curves import BLUE, GREY, ORANGE, frame, legend_entries, save_figure

    panels = [
        name for name in PANELS if any(bill["held_out"].get(name) is not None for bill in bills)
    ]
    figure = Figure(
        figsize=(2.2 + 2.1 * len(panels), 1.5 + 0.26 * len(bills)), layout="constrained"
    )
    grid: Any = figure.subplots(1, len(panels), sharey=True, squeeze=False)
    for axes, name in zip(grid[0], panels, strict=True):
        of = {
            at: array([bill[at].get(name) for bill in bills], float)
            for at in ("held_out", "corrupted")
        }
        rows = range(len(bills))
        axes.hlines(rows, of["held_out"], of["corrupted"], colors=GREY, linewidth=0.8)
        axes.plot(of["held_out"], rows, "o", markersize=3.5, color=BLUE, label="held-out images")
        ring = {"markersize": 6.5, "color": ORANGE, "fillstyle": "none", "label": "corrupted"}
        axes.plot(of["corrupted"], rows, "o", **ring)
        axes.set_xlabel(PANELS[name], fontsize=8)
        axes.tick_params(labelsize=8)
        frame(axes)
    grid[0, 0].set_yticks(range(len(bills)), [bill["row"] for bill in bills], parse_math=False)
    grid[0, 0].invert_yaxis()
    found = legend_entries(grid[0])
    look: dict[str, Any] = {
        "loc": "outside upper center",
        "ncols": 2,
        "frameon": False,
        "fontsize": 8.5,
    }
    figure.legend(found.values(), found.keys(), **look)
    return save_figure(figure, path)
