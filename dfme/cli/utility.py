"""``run.py utility``: what each defence costs honest users of a teacher on this machine; no
attack.
"""

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from pydantic.dataclasses import dataclass

from dfme import owner_side
from dfme.cli.arguments import RECIPE_ONLY, Arguments, CommandInputs
from dfme.cli.flags import default_recipe, last_text, split_flags, tell
from dfme.config.defences import parse_defences
from dfme.config.messages import printable
from dfme.config.settings import EvaluationConfig, Job
from dfme.config.values import CONFIG, Basic, Device, OwnTeacher, Seed
from dfme.errors import Problem, UserError
from dfme.files import write_text
from dfme.measured import Bill
from dfme.oracle.ledger_log import audit
from dfme.report.markdown import fitted_table
from dfme.run.checks import evaluation_problems, fresh_directory_problems
from dfme.version import __version__


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
    """of a custom teacher: local, if it runs on this machine and costs nothing to ask"""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """what honest users send"""


SUMMARY = (
    "say what each defence of a teacher (--teacher.defences a,b+c,label) costs its honest users"
)
IGNORED = RECIPE_ONLY - {"device", "evaluation"}
INPUTS = CommandInputs(UtilityConfig, teacher=True, recipe=default_recipe, ignored=IGNORED)
DEFENCES = "teacher.defences"
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
    arguments = Arguments([flag for flag in flags if flag.key != DEFENCES], INPUTS)
    config = arguments.config
    (teacher, kind_options) = arguments.teacher()
    stacks = dict[str, tuple[str, ...]]()
    for row in (last_text(flags, DEFENCES) or "+".join(teacher.defences)).split(","):
        try:
            if stack := _stack(row.strip()):
                stacks[row.strip()] = stack
        except UserError as error:
            arguments.report([Problem(DEFENCES, str(error))])
    kind = arguments.kind
    if kind in owner_side.KINDS and not owner_side.KINDS[kind].is_local:
        text = "expected a teacher on this machine; others are defended elsewhere"
        arguments.report([Problem("teacher.kind", text)])
    arguments.report(owner_side.custom_problems(kind, config.own_teacher))
    arguments.report(evaluation_problems(config.evaluation, needed=True))
    arguments.finish(fresh_directory_problems(config.out))
    job = owner_side.job_of(
        replace(teacher, defences=()), kind_options, config.device, config.evaluation
    )
    measure(config, job, stacks, shlex.join(["python", "run.py", "utility", *words]))
    return 0


def _stack(row: str) -> tuple[str, ...]:
    """The defences, or the label mode, of a row."""
    mode = owner_side.label_mode_of([row])
    return (str(mode),) if mode else tuple(map(str, parse_defences(row)))


def measure(
    config: UtilityConfig, job: Job, stacks: Mapping[str, tuple[str, ...]], command: str
) -> None:
    """Measure the bill of each stack, print the tables, and keep them with the picture."""
    from dfme.compute.device import choose_device, device_name
    from dfme.report.terminal import columns
    from dfme.run.directory import RunDirectory

    path = Path(config.out or RunDirectory.free_name(Path("runs/utility")))
    with RunDirectory.create(path) as out:
        owner = owner_side.owner_of(job)
        with owner.benign_meter(out.path / "benign") as meter:
            measured = owner.bills([*stacks.values()], tell, meter, config.seed)
        if meter:
            tell(_asking(job, out.path / "benign" / "ledger.jsonl"))
        bills = [
            replace(bill, row=row) for row, bill in zip(("none", *stacks), measured, strict=True)
        ]
        facts = {
            "command": command,
            "measured": f"dfme {__version__} on {device_name(choose_device(config.device))}",
        }
        text = "\n\n".join(["# What honest users pay", *facts.values(), tables(bills)])
        write_text(out.path / FILES[0], f"{text}\n")
        content = facts | {"rows": [bill.to_json() for bill in bills]}
        write_text(out.path / FILES[1], json.dumps(content, indent=1, allow_nan=False) + "\n")
        draw(bills, out.path / FILES[2])
    files = printable(", ".join(str(out.path / name) for name in FILES))
    print(f"{tables(bills, columns(sys.stdout))}\n\n{files}")


def _asking(job: Job, ledger: Path) -> str:
    """How many images the teacher was asked, and what they cost."""
    images = audit(ledger).served
    price = job.teacher.price_per_1000
    cost = "" if price is None else f", which cost {images * price / 1000:,.2f}"
    return f"the teacher was asked {images:,} images{cost}"


def tables(bills: Sequence[Bill], across: int | None = None) -> str:
    """A table per stream, and one of milliseconds an image; ``across``: width of the terminal."""
    entries = [bill.to_json() for bill in bills]
    parts = []
    for part, title in PARTS.items():
        if not any(entry[part] for entry in entries):
            continue
        rows = [{"row": entry["row"], **entry[part]} for entry in entries]
        heads = list(dict.fromkeys(name for row in rows for name in row))
        lines = [[_cell(row.get(name)) for name in heads] for row in rows]
        table = fitted_table([name.replace("_", " ") for name in heads], lines, SHOWN_FIRST, across)
        parts.append(f"### {title}\n\n{table}")
    return "\n\n".join(parts)


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):  # what defences counted
        return ", ".join(f"{name} {_cell(count)}".strip() for name, count in value.items())
    if isinstance(value, list | tuple):
        return " to ".join(map(_cell, value))
    if value is None:
        return "-"
    return f"{value:.4f}" if isinstance(value, float) else f"{value}"


def draw(bills: Sequence[Bill], path: Path) -> bool:
    """A line per defence, a panel per price: what held-out images pay (dots) and corrupted ones
    (rings).
    """
    from matplotlib.figure import Figure
    from numpy import array

    from dfme.report.curves import BLUE, GREY, ORANGE, frame, legend_entries, save_figure

    panels = [
        name for name in PANELS if any(getattr(bill.held_out, name) is not None for bill in bills)
    ]
    figure = Figure(
        figsize=(2.2 + 2.1 * len(panels), 1.5 + 0.26 * len(bills)), layout="constrained"
    )
    grid: Any = figure.subplots(1, len(panels), sharey=True, squeeze=False)
    rows = range(len(bills))
    ring = {"markersize": 6.5, "color": ORANGE, "fillstyle": "none", "label": "corrupted"}
    for axes, name in zip(grid[0], panels, strict=True):
        held_out = array([getattr(bill.held_out, name) for bill in bills], float)
        corrupted = array([getattr(bill.corrupted, name) for bill in bills], float)
        axes.hlines(rows, held_out, corrupted, colors=GREY, linewidth=0.8)
        axes.plot(held_out, rows, "o", markersize=3.5, color=BLUE, label="held-out images")
        axes.plot(corrupted, rows, "o", **ring)
        axes.set_xlabel(PANELS[name], fontsize=8)
        axes.tick_params(labelsize=8)
        frame(axes)
    grid[0, 0].set_yticks(range(len(bills)), [bill.row for bill in bills], parse_math=False)
    grid[0, 0].invert_yaxis()
    entries = legend_entries(grid[0])
    figure.legend(
        entries.values(),
        entries.keys(),
        loc="outside upper center",
        ncols=2,
        frameon=False,
        fontsize=8.5,
    )
    return save_figure(figure, path)
