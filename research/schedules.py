"""Every method under every plan of student steps on the digits: agreement, and the rates as
taken.
"""

import contextlib
import io
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pydantic.dataclasses import dataclass

from dfme.cli.arguments import CommandInputs, arguments_of
from dfme.cli.main import main
from dfme.config.values import CONFIG, Basic, Count
from dfme.report.markdown import table
from dfme.report.metrics import read_metrics
from research.script import run_script

SUMMARY = (
    "agreement and learning rates of every method under every plan of student steps, on the digits"
)

METHODS = {
    "dfme": ("16", ""),
    "maze": ("4", ""),
    "disguide": ("32", ""),
    "dual_students": ("32", ""),
    "dfms": ("32", "--method.gan-steps 20"),
    "knockoff": ("256", "--method.pool digits@like"),
    "static": ("32", ""),
    "procedural": ("32", ""),
}
"""A batch of each method, of which the budget holds few, and options of its own."""

SCORES_ALONE = ("dfme", "maze")

PLANS = {
    "of the recipe": "",
    "steps": "--student.steps {steps}",
    "all steps afterwards": "--student.steps {steps} --student.rounds 1",
    "steps in rounds": "--student.steps {steps} --student.rounds .3,1",
    "replay off": "--student.replay-steps 0",
    "of the recipe, less than a batch": "--method.batch-size 256",
    "steps, less than a batch": "--student.steps {steps} --method.batch-size 256",
    "steps, milestones": "--student.steps {steps} --schedule.kind steps",
    "steps, constant rate": "--student.steps {steps} --schedule.kind constant",
    "minutes": "--minutes .15",
    "retrain": "",
    "resumed with twice the budget": "",
}
"""Plans by their names, and the flags that make them."""

COLUMNS = [
    "method",
    "answers",
    "plan",
    "steps",
    "first",
    "least",
    "greatest",
    "at 0",
    "agreement",
    "odd",
]

ODD = re.compile(
    r"step -[\d,]+|of 0\b|\b(?:10[1-9]|1[1-9]\d|[2-9]\d\d)%|\bnan\b|learning rate was[^\n]*"
)
"""What no line of a run may say: negative steps, steps of none, more than the whole, no number."""


@dataclass(frozen=True, config=CONFIG)
class SchedulesOptions:
    """Which methods and plans are tried, and how large the runs are."""

    methods: Basic[tuple[str, ...]] = tuple(METHODS)
    """methods to try"""
    plans: Basic[tuple[str, ...]] = tuple(PLANS)
    """plans to try, by their names"""
    budget: Basic[Count] = 170
    """images of each run"""
    steps: Basic[Count] = 200
    """student steps of the plans that say a number"""


INPUTS = CommandInputs(SchedulesOptions)


@contextlib.contextmanager
def recorded() -> Iterator[list[float]]:
    """The rate of every step that a run's student takes within the context, as its optimiser had
    it.
    """
    from dfme.students.trainer import StudentTrainer

    rates: list[float] = []
    trainers: list[StudentTrainer] = []
    take_step = StudentTrainer._step

    def step(trainer: StudentTrainer, *batch: Any) -> Any:
        losses = take_step(trainer, *batch)
        if trainer not in trainers:  # what stepped before was a rehearsal
            trainers.append(trainer)
            rates.clear()
        rates.append(float(trainer._optimizer._optimizer.param_groups[0]["lr"]))
        return losses

    with patch.object(StudentTrainer, "_step", step):
        yield rates


def commands(
    method: str, answers: str, plan: str, options: SchedulesOptions, out: Path
) -> list[list[str]]:
    """The commands of one row; the last one writes its run into ``out``."""
    batch, own = METHODS[method]
    flags = PLANS[plan].format(steps=options.steps)
    if "batch-size" not in flags:
        flags += f" --method.batch-size {batch}"
    words = (
        f"--method {method} --teacher.label-mode {answers} --evaluation.dataset "
        f"digits@scored {own} {flags}"
    )
    resumed = plan == "resumed with twice the budget"
    budget = options.budget // 2 if resumed else options.budget
    begin = [*words.split(), "--budget", str(budget), "--out", str(out)]
    if resumed:
        return [begin, ["--resume", "--out", str(out), "--budget", str(options.budget)]]
    if plan == "retrain":
        source = f"{out}-source"
        train = [
            "retrain",
            "--run",
            source,
            "--out",
            str(out),
            "--student.steps",
            str(options.steps),
        ]
        return [[*begin[:-1], source], train]
    return [begin]


def row(method: str, answers: str, plan: str, options: SchedulesOptions, out: Path) -> list[str]:
    """What came of one method under one plan; the rates are those of the last command."""
    text = io.StringIO()
    rates: list[float] = []
    for words in commands(method, answers, plan, options, out):
        with (
            recorded() as taken,
            contextlib.redirect_stdout(text),
            contextlib.redirect_stderr(text),
        ):
            code = main(words)
        rates = taken
        if code:
            refused = text.getvalue().strip().splitlines()[-1]
            return [method, answers, plan, *["-"] * 6, refused]
    told = json.loads((out / "summary.json").read_text())["agreement"]
    odd = {match.group() for match in ODD.finditer(text.getvalue())}
    logged = [
        record["student_lr_greatest"]
        for record in read_metrics(out / "metrics.jsonl")
        if "student_lr_greatest" in record
    ]
    if plan != "retrain" and not logged:
        odd.add("metrics.jsonl has no rate")
    figures = [f"{value:.2g}" for value in (rates[0], min(rates), max(rates))]
    idle = f"{sum(rate == 0 for rate in rates) / len(rates):.1%}"
    return [
        method,
        answers,
        plan,
        f"{len(rates):,}",
        *figures,
        idle,
        f"{told:.1%}",
        "; ".join(sorted(odd)),
    ]


def run(words: Sequence[str]) -> None:
    """Print the table, and each row as soon as it is there."""
    asked = arguments_of(words, INPUTS)
    options: SchedulesOptions = asked.config
    asked.finish()
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        for method in options.methods:
            for answers in ("probabilities", *(("label",) if method not in SCORES_ALONE else ())):
                for plan in options.plans:
                    rows.append(row(method, answers, plan, options, Path(folder, str(len(rows)))))
                    print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    print(table(COLUMNS, rows))


if __name__ == "__main__":
    sys.exit(run_script("schedules", SUMMARY, INPUTS, run))
