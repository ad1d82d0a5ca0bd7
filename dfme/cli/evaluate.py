"""``run.py evaluate``: which student is scored, against which teacher, on what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dfme.cli.arguments import CommandInputs, CommandLine
from dfme.cli.extract import RECIPE_ONLY, default_recipe
from dfme.cli.flags import Flag, last_text
from dfme.config.options import build
from dfme.config.ranges import Problem
from dfme.config.settings import EvaluationConfig, ExtractConfig, Job
from dfme.methods import METHODS
from dfme.run.checks import device_problems, evaluation_problems, file_problems, teacher_problems


@dataclass(frozen=True)
class EvaluateConfig:
    """One evaluation of a student.

    Args:
        student: a run directory, or the student.safetensors of one
        device: auto, cpu, cuda or cuda:N
        evaluation: what the student is scored on
    """

    student: str
    device: str = "auto"
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)


def _recipe(flags: Sequence[Flag]) -> Path | None:
    """The configuration of the run that the student is from, where there is one."""
    student = Path(last_text(flags, "student") or "")
    run = student if student.is_dir() else student.parent
    written = run / "config.yaml"
    return written if written.is_file() else default_recipe(flags)


LAYOUT = CommandInputs(EvaluateConfig, teacher=True, recipe=_recipe, ignored=RECIPE_ONLY - {"device", "evaluation"})


def plan_of(asked: CommandLine) -> tuple[Path, Job]:
    """The file of the student's weights, and a job that says by which teacher and on what it is scored.

    Raises:
        UserError: one line that names everything wrong.
    """
    reading = asked.read()
    teacher, options = asked.teacher(reading)
    config = build(EvaluateConfig, {"student": "", **reading.values})
    student = Path(config.student)
    weights = student / "student.safetensors" if student.is_dir() else student
    reading.report(file_problems("student", str(weights)))
    reading.report(device_problems(config.device))
    if config.evaluation.dataset == "none":
        reading.report([Problem("evaluation.dataset", "expected a data set or a folder of images, got none")])
    reading.report(evaluation_problems(config.evaluation))
    reading.report(teacher_problems(teacher, options))
    reading.finish()
    settings = ExtractConfig(device=config.device, evaluation=config.evaluation)
    return weights, Job(settings, teacher, options, "dfme", METHODS["dfme"].config())


def table(scores: Mapping[str, float | str]) -> str:
    """One line per score."""
    width = max(map(len, scores)) + 2
    return "\n".join(f"{name:{width}}{_shown(value)}" for name, value in scores.items())


def _shown(value: float | str) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
