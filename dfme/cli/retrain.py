"""``run.py retrain``: whose answers a fresh student learns from, and how."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, fields, replace
from pathlib import Path
from typing import Any, Literal

from pydantic.dataclasses import dataclass

from dfme.cli.arguments import RECIPE_ONLY, CommandInputs, arguments_of
from dfme.cli.flags import Flag, last_text, tell
from dfme.config.layers import Author
from dfme.config.sections import AnswersConfig
from dfme.config.settings import EvaluationConfig, ExtractConfig, ScheduleConfig, StudentConfig
from dfme.config.values import CONFIG, Basic, Device, Seed, narrowed
from dfme.errors import Problem
from dfme.report.console import balanced_agreement, constant_answer, paid_answers
from dfme.report.run_files import Beside
from dfme.report.terminal import aligned
from dfme.run.checks import (
    answers_problems,
    evaluation_problems,
    fresh_directory_problems,
    net_problems,
    weights_problems,
)
from dfme.run.directory import RunDirectory


@dataclass(frozen=True, config=CONFIG)
class RetrainConfig:
    """A fresh student on the answers that a run paid for; the teacher is asked nothing.

    What is not given is as the run had it, its number of student steps included.
    """

    run: Basic[str]
    """the run directory whose answers are learnt from"""
    out: Basic[str | None] = None
    """directory of the new student; by default a free name under runs/"""
    seed: Basic[Seed] = 0
    """seed of the student's weights and of the draws"""
    device: Basic[Device] = "auto"
    """auto, cpu, cuda or cuda:N"""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """of the training steps: fp32 or bf16 (autocast); auto: bf16 where a CPU is fast in it"""
    channels_last: Literal["auto", "yes", "no"] = "auto"
    """memory format of convolutions; auto picks it where it is faster"""
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    """learning-rate schedule, over the steps"""
    student: StudentConfig = field(default_factory=StudentConfig)
    """the student"""
    answers: AnswersConfig = field(default_factory=AnswersConfig)
    """what is made of the answers; recover and knows of a run that kept them as the teacher gave
    them
    """
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """the run's evaluation set, whose recorded answers the student is scored on"""


def _recipe(flags: Sequence[Flag]) -> Path | None:
    """The configuration of the run that paid for the answers."""
    written = Path(last_text(flags, "run") or "") / "config.yaml"
    return written if written.is_file() else None


SUMMARY = "train a fresh student on the answers that a run paid for, asking nothing"
OWN = {option.name for option in fields(RetrainConfig)} - {"run", "out"}
INPUTS = CommandInputs(RetrainConfig, recipe=_recipe, ignored=(RECIPE_ONLY | {"teacher"}) - OWN)


def run(words: Sequence[str]) -> int:
    """Train, and print what came of it."""
    arguments = arguments_of(words, INPUTS)
    config = arguments.config
    authors = map(arguments.settings.author, ("student.weights", "student.arch"))
    if tuple(authors) == (Author.FLAG, Author.RECORD):  # other weights than the run's say theirs
        config = replace(config, student=replace(config.student, arch="auto"))
    arguments.finish(_problems(config))
    from dfme.run.retrain import retrain

    out = Path(config.out or RunDirectory.free_name(Path(f"{config.run.rstrip('/')}-retrained")))
    settings = replace(narrowed(ExtractConfig, config), out=None)
    print(table(retrain(Path(config.run), out, settings, tell=tell), out))
    return 0


def _problems(config: RetrainConfig) -> Iterator[Problem]:
    if config.student.weights is None:
        yield from net_problems("student.arch", config.student.arch)
    else:
        yield from weights_problems(config.student.weights, config.student.arch)
    yield from evaluation_problems(config.evaluation)
    yield from answers_problems(config.answers, config.student.loss, config.answers.times)
    if not (Path(config.run) / "config.yaml").is_file():
        yield Problem("run", f"expected a run directory, but {config.run!r} has no config.yaml")
    yield from fresh_directory_problems(config.out)


def table(summary: Mapping[str, Any], out: Path) -> str:
    """Result, beside what the run itself had come to."""
    source = summary["source"]
    constant = Beside.of_summary(summary).constant
    shares = {
        "teacher_accuracy": "teacher accuracy",
        "accuracy": "student accuracy",
        "agreement": "agreement",
        "vote_agreement": "agreement of the vote",
    }
    rows = [
        (
            "answers",
            f"{summary['answers']:,} of {source['run']} ({source['method']}); no query was asked",
        ),
        ("student", f"{summary['student_arch']}, {summary['student_steps']:,} steps"),
    ]
    for name, title in shares.items():
        if summary.get(name) is None:
            continue
        text = f"{summary[name]:.2%}"
        if name in ("accuracy", "agreement") and source.get(name):
            text += f" (the run's own student: {source[name]:.2%})"
        if name.endswith("agreement") and constant is not None:
            text += f"; constant answer {constant:.2%}"
        rows.append((title, text))
    rows += [
        *balanced_agreement(summary),
        *constant_answer(summary),
        *paid_answers(summary),
        ("time", f"{summary['wall_seconds']:,.1f} s"),
        ("weights", str(out / "student.safetensors")),
        *(("warning", line) for line in summary["warnings"]),
    ]
    return aligned(rows)
