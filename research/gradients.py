"""Measure estimated gradients against the true ones of a teacher of one's own: train, stop,
measure, keep.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from dfme.cli.arguments import RECIPE_ONLY, CommandInputs, arguments_of
from dfme.cli.flags import default_recipe
from dfme.compute.device import device_name, within_memory
from dfme.config.settings import ExtractConfig, Job
from dfme.config.values import narrowed
from dfme.errors import Problem, UserError, say
from dfme.files import write_text
from dfme.methods import SECTIONS, find_method
from dfme.report.markdown import table
from dfme.run.build import white_box
from dfme.run.checks import find_problems, fresh_directory_problems
from dfme.run.directory import RunDirectory
from dfme.run.opening import free_name
from dfme.run.recipes import fitted
from dfme.spec import LabelMode
from dfme.students.losses import AUTO_LOSS, FITTING_LOSSES
from dfme.teachers.local.pytorch import TorchTeacher
from dfme.version import __version__
from research.candidates import CANDIDATES, CONDITIONS, Condition
from research.measure import Sizes, measure
from research.options import EVERYTHING, GradientsConfig
from research.picture import draw
from research.script import run_script
from research.synthetic_course import synthetic_section
from research.table import (
    WHITE_BOX,
    GradientsResult,
    Section,
    StageFacts,
    as_json,
    details,
    markdown,
    overview,
)
from research.truth import TrueGradient, stages

SUMMARY = "measure estimated gradients against the true ones of a teacher of your own"
HEEDED = {
    "budget",
    "seed",
    "device",
    "channels_last",
    "schedule",
    "student",
    "evaluation",
    "method",
    *SECTIONS,
}
INPUTS = CommandInputs(
    GradientsConfig, teacher=True, method=True, recipe=default_recipe, ignored=RECIPE_ONLY - HEEDED
)
FILES = ("gradients.md", "gradients.json", "gradients.png")


def run(words: Sequence[str]) -> None:
    """Measure, and print as it goes. UserError: one line that names everything wrong."""
    arguments = arguments_of(words, INPUTS)
    require_local(arguments.kind)
    config: GradientsConfig = arguments.config
    job = arguments.job(replace(narrowed(ExtractConfig, config), out=None))
    arguments.finish([*_problems(config, job), *find_problems(job, arguments.settings.says)])
    job = fitted(job)
    compare_gradients(white_box(job), job, config)


def require_local(kind: str) -> None:
    """UserError for a kind of teacher whose gradients are not on this machine."""
    if kind != "torch":
        raise UserError(
            f"--teacher {kind}: expected a network on this machine (kind torch, "
            "--teacher.checkpoint), "
            "since estimates "
            "are measured against the teacher's own gradients; run.py check probes a teacher "
            "behind an API"
        )


def _problems(config: GradientsConfig, job: Job) -> Iterator[Problem]:
    """A directory that is taken, and jobs of which no difference can be measured."""
    yield from fresh_directory_problems(config.out)
    if job.teacher.defences:
        yield Problem(
            "teacher.defences", "expected none: the network's own gradients are measured against"
        )
    mode = job.teacher.label_mode
    if mode is not None and LabelMode.parse(mode).kind == "label":
        yield Problem(
            "teacher.label_mode", "expected scores, whose differences are measured here, got label"
        )
    if not hasattr(job.method_config, "latent_size"):
        text = (
            "expected a method with a generator, whose gradients are measured here, got "
            f"{job.method}"
        )
        yield Problem("method.name", text)
    if config.free and "estimator" not in find_method(job.method).sections:
        yield Problem("free", f"expected a method that estimates gradients, got {job.method}")


def compare_gradients(box: TorchTeacher, job: Job, config: GradientsConfig) -> Path:
    """Measure every estimator under every condition at every stage; the directory of table, JSON
    and picture.

    Rows are printed as they come, and kept stage by stage. Global random state is as it was
    afterwards.

    Raises:
        UserError: a condition that this machine or teacher does not have, or a directory that is
        taken or
            cannot be written.
    """
    print(WHITE_BOX, flush=True)
    loss = AUTO_LOSS["probabilities"] if config.student.loss == "auto" else config.student.loss
    sizes = Sizes(config.batches, config.batch_size, config.seed, loss)
    conditions = _conditions(config, box, loss)
    names = config.estimators
    candidates = {
        name: CANDIDATES[name] for name in CANDIDATES if name in names or EVERYTHING in names
    }
    out = Path(config.out or free_name(job, "gradients"))
    result = GradientsResult(_facts(job, config, box), box.spec.numel, [], [], [])
    gpus = [box.device] if box.device.type == "cuda" else []
    memory = within_memory(box.device, say("{batch_size} or {method.batch_size}"))
    with RunDirectory.create(out), memory, torch.random.fork_rng(gpus):
        for stage in stages(box, job, config.stages):
            facts = StageFacts(stage.share, stage.queries, stage.agreement)
            result.stages.append(facts)
            for name in conditions:
                rows = measure(box, stage, name, candidates, sizes)
                result.rows.extend(rows)
                if rows:
                    print(f"\n{details(facts, name, rows)}", flush=True)
            _write(result, out)
        if job.estimator.kind == "synthetic":
            _add(result, synthetic_section(box, job, sizes, out), out)
        if config.free:
            _add(result, _free_section(result, box, job, config), out)
    print(f"\n{overview(result)}\n\n{', '.join(str(out / name) for name in FILES)}")
    return out


def _free_section(
    result: GradientsResult, box: TorchTeacher, job: Job, config: GradientsConfig
) -> Section:
    """Run the recipe once more with the true gradient in place of every estimate."""
    free = stages(box, job, config.stages, lambda squash: TrueGradient(box, squash))
    lines = [
        (f"{stage.share:.0%}", f"{stage.agreement:.1%}", f"{other.agreement:.1%}")
        for stage, other in zip(result.stages, free, strict=True)
    ]
    heads = ("share of the budget", "agreement", "agreement with the true gradient")
    return "The true gradient for nothing", table(heads, lines)


def _add(result: GradientsResult, section: Section, out: Path) -> None:
    result.sections.append(section)
    print("\n### {}\n\n{}".format(*section), flush=True)
    _write(result, out)


def _conditions(config: GradientsConfig, box: TorchTeacher, loss: str) -> list[str]:
    """The conditions asked for; of all, those that there can be here."""
    lacking = {
        name: reason for name, entry in CONDITIONS.items() if (reason := _lacking(entry, box, loss))
    }
    for name in config.conditions:
        if name in lacking:
            raise UserError(f"--conditions {name}: {lacking[name]}; leave it out")
    names = CONDITIONS if EVERYTHING in config.conditions else config.conditions
    return [name for name in CONDITIONS if name in names and name not in lacking]


def _lacking(condition: Condition, box: TorchTeacher, loss: str) -> str:
    """The reason why there can be no such condition here; empty if there can."""
    mode = LabelMode.parse(condition.mode)
    if condition.arithmetic == "tf32" and box.device.type != "cuda":
        return f"expected a CUDA device, which alone has TF32, got {box.device}"
    if mode.k is not None and mode.k >= box.num_classes:
        return f"expected more than {mode.k} classes, got {box.num_classes}"
    if loss not in FITTING_LOSSES[mode.kind]:
        return (
            f"expected a loss among {', '.join(FITTING_LOSSES[mode.kind])}, got "
            f"--student.loss {loss}"
        )
    return ""


def _facts(job: Job, config: GradientsConfig, box: TorchTeacher) -> dict[str, str]:
    teacher = job.teacher_options.get("checkpoint", job.teacher.kind)
    shape = "x".join(map(str, box.spec.shape))
    return {
        "teacher": f"{Path(str(teacher)).name}, {box.num_classes} classes, images {shape}",
        "students": f"by the method {job.method} with a budget of {int(job.config.budget):,}, seed "
        f"{config.seed}",
        "measured": f"{config.batches} batches of {config.batch_size} images",
        "machine": f"{device_name(box.device)}, {torch.get_num_threads()} threads",
        "versions": f"torch {torch.__version__}, dfme {__version__}",
    }


def _write(result: GradientsResult, out: Path) -> None:
    write_text(out / FILES[0], markdown(result))
    write_text(out / FILES[1], as_json(result))
    draw(result, out / FILES[2])


if __name__ == "__main__":
    raise SystemExit(run_script("gradients", SUMMARY, INPUTS, run))
