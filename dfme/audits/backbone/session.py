"""The asking: drawn images to a teacher, charged and on record; then a look at the answers."""

import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dfme.answers.reading import unanswered
from dfme.audits.backbone.candidates import SHARE, BackboneSource
from dfme.audits.backbone.features import Backbone
from dfme.audits.backbone.images import DrawnImages, ImagesAt, StepHeard
from dfme.audits.backbone.question import backbone_question
from dfme.audits.backbone.verdict import BackboneVerdict, spoken
from dfme.compute.device import choose_device
from dfme.compute.modules import DeferredChecks
from dfme.config.settings import Job
from dfme.config.yaml_files import dump_yaml, load_yaml
from dfme.errors import BudgetExhausted, OptionError, Unserved, UserError
from dfme.files import write_text
from dfme.nets.public import read_weights
from dfme.oracle.oracle import Oracle
from dfme.run.build import build_oracle, build_teacher, facts_of
from dfme.run.directory import RunDirectory
from dfme.run.job import document, resume_command
from dfme.spec import Teacher
from dfme.version import __version__

CONFIG = "config.yaml"
RESULT = "backbone.json"
MIN_IMAGES = 10
"""Images that are asked: by fewer nothing can be compared."""
AT_ONCE = 64
"""Images of up to 64x64 pixels in a batch."""
Tell = Callable[[str], None]


def look(
    job: Job,
    candidates: Sequence[BackboneSource],
    images: int | None,
    tell: Tell,
    progress: StepHeard,
) -> tuple[BackboneVerdict, Path]:
    """Ask the job's teacher at most ``images``, by default ``SHARE`` for each feature of the widest
    candidate, and judge the candidates; the verdict, and the directory of its record.

    The job says seed, device, directory (``out``) and whether one is gone on with (``resume``).
    UserError for what cannot work, before the teacher is asked; TeacherError where it fails for
    good.
    """
    weights = [read_weights(candidate.weights, candidate.arch) for candidate in candidates]
    with ExitStack() as held:
        teacher = build_teacher(job, None, choose_device(job.config.device))
        held.callback(teacher.info.close)
        backbones = [Backbone(each, teacher.spec) for each in weights]
        width = max(backbone.width for backbone in backbones)
        count = _count(job, images, width, teacher)
        job = replace(job, config=replace(job.config, budget=count))
        directory = held.enter_context(_directory(job, candidates, count))
        oracle = build_oracle(
            job, teacher, directory, {}, (checks := DeferredChecks()), facts_of(job, teacher)
        )
        held.enter_context(closing(oracle)).report_to(tell)
        tell(_plan(job, teacher, backbones, count, width))
        tell(f"if stopped, go on with:\n  {resume_command(directory.path, job, 'check')}")
        drawn = DrawnImages(teacher.spec, count, job.config.seed, progress)
        answers = _ask(oracle, drawn, tell, progress)
        checks.verify()
        if bool(unanswered(answers).all()):
            raise Unserved(f"the service named a class for none of {len(answers)} drawn images")
        verdict = backbone_question(
            backbones,
            drawn,
            answers,
            oracle.label_mode,
            oracle.spec,
            oracle.num_classes,
            progress,
            job.config.seed,
        )
        verdict = replace(
            verdict,
            asked=oracle.ledger.spent,
            requests=oracle.ledger.requests,
            price_per_1000=job.teacher.price_per_1000,
            rate=teacher.info.wire.images_per_second,
        )
        _write(directory, verdict, oracle)
    return verdict, directory.path


def _count(job: Job, images: int | None, width: int, teacher: Teacher) -> int:
    """How many images are asked. UserError for a service that nobody named a number for, and for
    another number than a look was begun with.
    """
    usual = math.ceil(SHARE * width)
    if images is not None and images < MIN_IMAGES:
        raise OptionError(
            "images", f"expected {MIN_IMAGES} or more, such as {usual}", got=str(images)
        )
    if job.config.resume:
        recorded = load_yaml(Path(job.config.out or "") / CONFIG, own=True).get("images")
        if not isinstance(recorded, int) or images not in (None, recorded):
            raise OptionError(
                "images", f"expected {recorded}, which this was begun with", got=str(images)
            )
        return recorded
    if images is not None:
        return min(images, usual)
    if teacher.info.remote is not None:
        expected = (
            f"expected how many images the service may be asked, such as {usual}: {SHARE} for "
            f"each of {width:,} features; no default, since each may cost money"
        )
        raise OptionError("images", expected)
    return usual


def _directory(job: Job, candidates: Sequence[BackboneSource], count: int) -> RunDirectory:
    """A new directory, or the one of the look that is gone on with."""
    config = job.config
    if config.resume:
        return RunDirectory.open_for_resume(Path(config.out or ""))
    path = Path(config.out or RunDirectory.free_name(Path("runs/check")))
    directory = RunDirectory.create(path)
    directory.is_new_run = True
    directory.write_config(dump_yaml(_settings(job, candidates, count)))
    return directory


def _settings(job: Job, candidates: Sequence[BackboneSource], count: int) -> dict[str, Any]:
    """The content of config.yaml."""
    backbone = []
    for candidate in candidates:
        path = Path(candidate.weights)
        weights = str(path.absolute()) if path.exists() else candidate.weights
        backbone.append(weights if candidate.arch == "auto" else f"{candidate.arch}={weights}")
    settings = document(job)
    kept = {name: settings[name] for name in ("seed", "device", "teacher")}
    return {"backbone": backbone, "images": count, **kept}


def _plan(job: Job, teacher: Teacher, backbones: Sequence[Backbone], count: int, width: int) -> str:
    """What is going to be asked, what it costs and how long it takes, in a line."""
    price = job.teacher.price_per_1000
    cost = "" if price is None else f", {count * price / 1000:,.2f} at the price given"
    seconds = sum(backbone.seconds(count) for backbone in backbones)
    rate = teacher.info.wire.images_per_second
    paced = "" if rate is None else f" (at least {spoken(count / rate)}, at the rate given)"
    return (
        f"{count:,} drawn images are asked and charged (check){cost}: {count / width:.2g} for "
        f"each of {width:,} features; about {spoken(seconds)} here, besides the teacher's answers"
        f"{paced}"
    )


def _ask(oracle: Oracle, images: ImagesAt, tell: Tell, progress: StepHeard) -> Tensor:
    """The answers to all images, or to the first ones, as far as the budget reaches."""
    total = oracle.remaining
    size = oracle.spec.at_once(AT_ONCE)
    answers: list[Tensor] = []
    began = time.monotonic()
    done = 0
    ask = partial(oracle, purpose="check")
    while done < total and (count := min(size, total - done, oracle.remaining)):
        try:
            answers.append(ask(images(done, done + count)))
        except BudgetExhausted:  # what a service failed to answer is charged too
            break
        if not done and (seconds := (time.monotonic() - began) * (total / count - 1)) > 5:
            tell(f"the teacher's answers take about {spoken(seconds)}")
        done += count
        progress("asking the teacher", done, total)
    if not answers:
        raise UserError("images: none could be asked")
    return torch.cat(answers)


def _write(directory: RunDirectory, verdict: BackboneVerdict, oracle: Oracle) -> None:
    totals = asdict(oracle.ledger.totals())
    content = {"dfme": __version__, **verdict.document(), "ledger": totals}
    text = json.dumps(content, indent=1, allow_nan=False)
    write_text(directory.path / RESULT, text + "\n")
