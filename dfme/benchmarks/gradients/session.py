"""One comparison from the white box to the files: train, stop, measure, tell, keep."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import torch

from dfme import __version__
from dfme.benchmarks.gradients.candidates import CANDIDATES, CONDITIONS, Condition
from dfme.benchmarks.gradients.measure import Sizes, measure
from dfme.benchmarks.gradients.stages import WhiteBox, stages
from dfme.benchmarks.gradients.synthetic_course import synthetic_section
from dfme.benchmarks.gradients.table import WHITE_BOX, GradientsResult, StageFacts, as_json, details, markdown, overview
from dfme.benchmarks.gradients.truth import TrueGradient
from dfme.benchmarks.options import EVERYTHING, GradientsConfig
from dfme.compute import device_name, within_memory
from dfme.config.settings import Job
from dfme.errors import UserError
from dfme.files import write_text
from dfme.report.markdown import table
from dfme.run.directory import RunDirectory
from dfme.run.opening import free_name
from dfme.spec import LabelMode
from dfme.students.losses import AUTO_LOSS, FITTING_LOSSES

FILES = ("gradients.md", "gradients.json", "gradients.png")

T = TypeVar("T")


def compare_gradients(box: WhiteBox, job: Job, config: GradientsConfig, tell: Callable[[str], None]) -> Path:
    """Measure every estimator under every condition at every stage; the directory of table, JSON and picture.

    What is done is printed as it comes, beginning with the line that says whose gradients are looked at, and kept
    stage by stage. Global random state is as it was afterwards.

    Raises:
        UserError: a condition that this machine or teacher does not have, or a directory that is taken or cannot be
            written.
    """
    tell(WHITE_BOX)
    loss = AUTO_LOSS["probabilities"] if config.student.loss == "auto" else config.student.loss
    sizes = Sizes(config.batches, config.batch_size, config.seed, loss)
    conditions = _conditions(config, box, loss)
    candidates = _named(CANDIDATES, config.estimators)
    out = Path(config.out or free_name(job, "gradients"))
    findings = GradientsResult(_facts(job, config, box), box.spec.numel, [], [], [])
    gpus = [box.device] if box.device.type == "cuda" else []
    memory = within_memory(box.device, "--batch-size or --method.batch-size")
    with RunDirectory.create(out), memory, torch.random.fork_rng(gpus):
        for stage in stages(box, job, config.stages):
            facts = StageFacts(stage.share, stage.queries, stage.agreement)
            findings.stages.append(facts)
            for name, condition in conditions.items():
                rows = measure(box, stage, name, condition, candidates, sizes)
                findings.rows.extend(rows)
                if rows:
                    tell(f"\n{details(facts, name, rows)}")
            _write(findings, out)
        if job.estimator.kind == "synthetic":
            findings.sections.append(synthetic_section(box, job, sizes, out))
            tell("\n### {}\n\n{}".format(*findings.sections[-1]))
            _write(findings, out)
        if config.free:
            true = stages(box, job, config.stages, lambda squash: TrueGradient(box, squash))
            pairs = zip(findings.stages, true, strict=True)
            lines = [(f"{one.share:.0%}", f"{one.agreement:.1%}", f"{other.agreement:.1%}") for one, other in pairs]
            heads = ("share of the budget", "agreement", "agreement with the true gradient")
            findings.sections.append(("The true gradient for nothing", table(heads, lines)))
            tell("\n### {}\n\n{}".format(*findings.sections[-1]))
            _write(findings, out)
    tell(f"\n{overview(findings)}\n\n{', '.join(str(out / name) for name in FILES)}")
    return out


def _named(known: Mapping[str, T], names: tuple[str, ...]) -> dict[str, T]:
    """The entries of these names, in the order known."""
    return {name: each for name, each in known.items() if name in names or EVERYTHING[0] in names}


def _conditions(config: GradientsConfig, box: WhiteBox, loss: str) -> dict[str, Condition]:
    """Those asked for; of all, those that there can be here."""
    lacking = {name: reason for name, each in CONDITIONS.items() if (reason := _lacking(each, box, loss))}
    for name in config.conditions:
        if name in lacking:
            raise UserError(f"--conditions {name}: {lacking[name]}; leave it out")
    return {name: each for name, each in _named(CONDITIONS, config.conditions).items() if name not in lacking}


def _lacking(condition: Condition, box: WhiteBox, loss: str) -> str:
    """Why there can be no such condition here; empty if there can."""
    mode = LabelMode.parse(condition.mode)
    if condition.arithmetic == "tf32" and box.device.type != "cuda":
        return f"expected a CUDA device, which alone has TF32, got {box.device}"
    if mode.k is not None and mode.k >= box.num_classes:
        return f"expected more than {mode.k} classes, got {box.num_classes}"
    if loss not in FITTING_LOSSES[mode.kind]:
        return f"expected a loss among {', '.join(FITTING_LOSSES[mode.kind])}, got --student.loss {loss}"
    return ""


def _facts(job: Job, config: GradientsConfig, box: WhiteBox) -> dict[str, str]:
    """On what, how much and where was measured."""
    teacher = job.teacher_options.get("checkpoint", job.teacher.kind)
    shape = "x".join(map(str, box.spec.shape))
    return {
        "teacher": f"{Path(str(teacher)).name}, {box.num_classes} classes, images {shape}",
        "students": f"by the method {job.method} with a budget of {int(job.config.budget):,}, seed {config.seed}",
        "measured": f"{config.batches} batches of {config.batch_size} images",
        "machine": f"{device_name(box.device)}, {torch.get_num_threads()} threads",
        "versions": f"torch {torch.__version__}, dfme {__version__}",
    }


def _write(findings: GradientsResult, out: Path) -> None:
    """The three files, whole or not at all."""
    from dfme.benchmarks.gradients.picture import draw

    write_text(out / FILES[0], markdown(findings))
    write_text(out / FILES[1], as_json(findings))
    draw(findings, out / FILES[2])
