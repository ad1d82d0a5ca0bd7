"""Parts of a job before anything is opened or asked: images, networks, and room for their state."""

import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.filesize import decimal as size_of

from dfme.answers.asking import Reader
from dfme.compute.device import has_fast_bf16
from dfme.config.sections import EstimatorConfig
from dfme.config.settings import Job
from dfme.data import ImageSet
from dfme.errors import OptionError, Ref, UserError, flag, say
from dfme.estimators.approximate import CHUNK
from dfme.estimators.build import default_settings, make_estimator, needs_preflight
from dfme.estimators.preflight.measure import preflight_images, require_budget
from dfme.methods import METHODS, entry_of
from dfme.queries.pool import ImageSource
from dfme.run.components import Nets, build_nets, build_replay, open_pool
from dfme.run.recipes import unfit, with_variants
from dfme.run.scores import evaluation_images
from dfme.spec import ImageSpec, Teacher
from dfme.students.losses import make_distance


@dataclass(frozen=True)
class RunParts:
    """A job that fits its teacher, the images of its evaluation and its pool, and its networks."""

    job: Job
    evaluation: ImageSet | None
    pool: ImageSource | None
    nets: Nets

    @property
    def scored(self) -> int:
        """Images of the evaluation set; 0 without one."""
        return 0 if self.evaluation is None else len(self.evaluation)


def sized(job: Job, teacher: Teacher, tell: Callable[[str], None]) -> Job:
    """The job with its recipe's variants that suit the teacher; ``tell`` hears which those are."""
    varied, line = with_variants(job, teacher.label_mode, teacher.spec.shape)
    if replace(varied, when=job.when) != job:
        tell(f"variants of the recipe that hold: {line}")
    return varied


def build_parts(
    job: Job,
    teacher: Teacher,
    device: torch.device,
    evaluation: ImageSet | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> RunParts:
    """The parts of a job. UserError where they do not fit the teacher.

    ``evaluation``: images that were handed over. ``tell`` hears what was done to their labels.
    """
    require_answers_fit(job, teacher)
    spec = teacher.spec
    estimates = "estimator" in entry_of(job).sections
    for line in (
        *unfit(job, spec.shape),
        *(weak_differences(job.estimator, spec) if estimates else ()),
    ):
        tell(line)
    job = sized(job, teacher, lambda line: None)
    config = job.config.with_precision(spec.shape, has_fast_bf16(device))
    job = replace(job, config=config)
    answers = config.answers
    if estimates:
        settled = with_placeholder_step(job.estimator, spec)
        make_estimator(settled, spec, lambda u_BCHW: u_BCHW, CHUNK, seed=0)
        if needs_preflight(job.estimator):
            require_budget(job.config.images, preflight_images(job.estimator, spec))
    make_distance(answers.loss(config.student.loss), answers.mode(teacher.label_mode))
    names = teacher.info.class_names
    data = evaluation_images(
        job.config.evaluation, spec, teacher.num_classes, names, evaluation, tell
    )
    pool = open_pool(job, spec)
    for note in getattr(pool, "notes", ()):  # a custom pool has none
        tell(f"pool: {note}")
    return RunParts(job, data, pool, build_nets(job, spec, teacher.num_classes, device))


def weak_differences(config: EstimatorConfig, spec: ImageSpec) -> list[str]:
    """A line for people where a difference along a random direction of large images says next to
    nothing.
    """
    random = config.direction not in ("dct", "range")
    if config.kind == "auto" or not random or spec.at_once(2) >= 2:
        return []
    cosine = math.sqrt(config.directions / spec.numel)
    return [
        f"warning: differences along {config.directions} of {spec.numel:,} directions have a "
        f"cosine of about {cosine:.2g} with the gradient (0.018 of one at 3x32x32); give "
        f"{flag('estimator.direction', 'dct')} or range, or take a method without them: "
        f"{flag('method.name', 'static')} or procedural"
    ]


def require_answers_fit(job: Job, teacher: Teacher) -> None:
    """UserError if the method cannot learn from such answers, with the methods that can."""
    name = job.method
    mode = Reader(job.config.answers, teacher.label_mode, teacher.num_classes).mode
    label_modes = entry_of(job).load().label_modes
    kind = mode.kind
    if kind not in label_modes:
        able = [other for other, entry in METHODS.items() if kind in entry.load().label_modes]
        raise UserError(
            say(
                "{} needs a teacher that answers {}, this one answers {}; methods that can use "
                "it: {}",
                Ref("method.name", name),
                " or ".join(label_modes),
                mode,
                ", ".join(able),
            )
        )


def runs_preflight(job: Job) -> bool:
    """True if the pre-flight check runs before the first step and completes the estimator."""
    return "estimator" in entry_of(job).sections and needs_preflight(job.estimator)


def with_placeholder_step(config: EstimatorConfig, spec: ImageSpec) -> EstimatorConfig:
    """The settings with a step, whatever the pre-flight check will find."""
    settings = default_settings(config, spec)
    if not needs_preflight(config):
        return settings
    return replace(settings, step=1.0 if settings.space == "lattice" else 1e-3)


CGROUP = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)
"""Of a container, the files with its limit and what is used of it, by versions 2 and 1."""


def replay_bytes(job: Job, teacher: Teacher) -> tuple[bool, int]:
    """Place of the replay, True if on disk, and its bytes when full."""
    answer = job.config.answers.mode(teacher.label_mode).answer_bytes(teacher.num_classes)
    replay = build_replay(job, teacher.spec, directory=Path())
    return (False, 0) if replay is None else (replay.on_disk, replay.size(answer))


def require_room(job: Job, teacher: Teacher, device: torch.device) -> None:
    """UserError, with the figures and what to lower, where the full replay cannot fit."""
    on_disk, needed = replay_bytes(job, teacher)
    free = free_disk(Path(job.config.out or "runs")) if on_disk else free_memory(device)
    if needed > free:
        where = say("the disk of {out}") if on_disk else device.type
        instead = "" if on_disk else say(", or take {student.replay_store:disk}")
        raise OptionError(
            "student.replay_capacity",
            say(
                "the full replay takes {}, and {} has {} free; lower it{}; nothing was asked",
                size_of(needed),
                where,
                size_of(free),
                instead,
            ),
        )


def free_disk(path: Path) -> int:
    """Bytes free for a directory that is there or is to be made."""
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    return shutil.disk_usage(there).free


def free_memory(device: torch.device) -> int:
    """Bytes that a run on this device can still have."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = [1 << 62]
    for line in (
        Path("/proc/meminfo").read_text().splitlines() if Path("/proc/meminfo").is_file() else ()
    ):
        if line.startswith("MemAvailable:"):
            free.append(int(line.split()[1]) * 1024)
    for limit, used in CGROUP:
        paths = [Path("/sys/fs/cgroup") / name for name in (limit, used)]
        if (
            all(path.is_file() for path in paths)
            and (most := paths[0].read_text().strip()).isdecimal()
        ):
            free.append(int(most) - int(paths[1].read_text()))
    return max(0, min(free))
