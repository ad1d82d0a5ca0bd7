"""``run.py evaluate``: which student is scored, against which teacher, on what."""

from collections.abc import Sequence
from dataclasses import field
from pathlib import Path

from pydantic.dataclasses import dataclass

from dfme.cli.arguments import RECIPE_ONLY, CommandInputs, arguments_of
from dfme.cli.flags import Flag, default_recipe, last_text, tell
from dfme.config.settings import EvaluationConfig, ExtractConfig, Job
from dfme.config.values import CONFIG, Device
from dfme.methods import METHODS
from dfme.owner_side import check_teacher
from dfme.report.terminal import Notes, aligned
from dfme.run.checks import evaluation_problems, file_problems


@dataclass(frozen=True, config=CONFIG)
class EvaluateConfig:
    """One evaluation of a student."""

    student: str
    """a run directory, or the student.safetensors of one"""
    device: Device = "auto"
    """auto, cpu, cuda or cuda:N"""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """what the student is scored on"""


def _recipe(flags: Sequence[Flag]) -> Path | None:
    """The configuration of the run that the student is from, where there is one."""
    student = Path(last_text(flags, "student") or "")
    run = student if student.is_dir() else student.parent
    written = run / "config.yaml"
    return written if written.is_file() else default_recipe(flags)


SUMMARY = "score a student against its teacher: accuracy, agreement, divergence"
IGNORED = RECIPE_ONLY - {"device", "evaluation"}
INPUTS = CommandInputs(EvaluateConfig, teacher=True, recipe=_recipe, ignored=IGNORED)


def run(words: Sequence[str]) -> int:
    """Score, and print the table."""
    arguments = arguments_of(words, INPUTS)
    config = arguments.config
    (teacher, kind_options) = arguments.teacher()
    student = Path(config.student)
    weights = student / "student.safetensors" if student.is_dir() else student
    arguments.report(file_problems("student", str(weights)))
    arguments.finish(evaluation_problems(config.evaluation, needed=True))
    settings = ExtractConfig(device=config.device, evaluation=config.evaluation)
    job = Job(settings, teacher, kind_options, "dfme", METHODS["dfme"].config())
    check_teacher(teacher, kind_options)
    from dfme.cli.scoring import score

    with Notes(tell) as notes:
        scores = score(weights, job, notes)
    texts = {
        name: f"{value:.4f}" if isinstance(value, float) else value
        for name, value in scores.items()
    }
    print(aligned(texts.items()))
    return 0
