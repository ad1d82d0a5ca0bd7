"""What a job is made of before anything of it is opened or asked: images, networks, and the memory that they need."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable
from dataclasses import replace

import torch

from dfme.answers.asking import Reader
from dfme.compute import THREADS_GIVEN, worthwhile_threads
from dfme.config.estimator_settings import EstimatorConfig
from dfme.config.settings import Job
from dfme.data import ImageSet
from dfme.errors import UserError
from dfme.estimators.approximate import CHUNK
from dfme.estimators.build import make_estimator
from dfme.estimators.preflight import default_settings, needs_preflight, preflight_images, require_budget
from dfme.methods import METHODS, find_method
from dfme.queries.pool import ImageSource
from dfme.run.checks import keeps_answers
from dfme.run.components import Nets, build_nets, open_pool
from dfme.run.evaluation import evaluation_images
from dfme.run.memory import SMALL, needed_memory
from dfme.run.recipes import unfit
from dfme.spec import ImageSpec, Teacher
from dfme.students.losses import make_distance


def build_parts(
    job: Job,
    teacher: Teacher,
    device: torch.device,
    evaluation: ImageSet | None = None,
    tell: Callable[[str], None] = lambda line: None,
    always: bool = False,
) -> tuple[ImageSet | None, ImageSource | None, Nets, dict[str, int]]:
    """Images of evaluation and of the method's pool, networks, and the memory that they need.

    UserError for what does not fit together. Of images so small that memory is no question, only ``always`` tells it.
    ``evaluation``: images that were handed over. ``tell`` hears what was done to their labels.
    """
    require_answers_fit(job, teacher)
    spec = teacher.spec
    weak = weak_differences(job.estimator, spec) if "estimator" in find_method(job.method).sections else ()
    for line in (*unfit(job, spec.shape), *weak):
        tell(line)
    answers = job.config.answers
    call = _require_estimator(job, spec) * answers.times
    make_distance(answers.loss(job.config.student.loss), answers.mode(teacher.label_mode))
    names = getattr(teacher, "class_names", None)
    data = evaluation_images(job.config.evaluation, spec, teacher.num_classes, names, evaluation, tell)
    pool = open_pool(job, spec)
    nets = build_nets(job, spec, teacher.num_classes, device)
    large = always or 4 * call * spec.numel >= SMALL
    return data, pool, nets, needed_memory(job, teacher, nets, call) if large else {}


def take_threads(job: Job, nets: Nets, spec: ImageSpec) -> list[str]:
    """Take as many threads of torch as pay for this job's steps on a CPU, where nobody says how many. A line to say."""
    most = torch.get_num_threads()
    if most == 1 or any(os.environ.get(name) for name in THREADS_GIVEN):
        return []
    net = copy.deepcopy(nets.students[0])  # not compiled, and its statistics are nobody's
    images = job.config.student.replay_batch if keeps_answers(job) else job.method_config.batch_size
    x_BCHW = torch.rand(images, *spec.shape, generator=torch.Generator().manual_seed(0))

    def step(count: int) -> None:
        net.zero_grad()
        net(x_BCHW[:count]).square().mean().backward()

    torch.set_num_threads(taken := worthwhile_threads(step, images, most))
    return [f"threads: {taken} of {most}, by timing a few steps of the student; OMP_NUM_THREADS=N takes N"]


def weak_differences(config: EstimatorConfig, spec: ImageSpec) -> list[str]:
    """A line for people where a difference along a random direction of large images says next to nothing."""
    random = config.kind in ("finite_difference", "synthetic") and config.direction not in ("dct", "range")
    cosine = math.sqrt(config.directions / spec.numel)
    return [
        f"warning: differences along {config.directions} of {spec.numel:,} directions have a cosine of about "
        f"{cosine:.2g} with the gradient (0.018 of one at 3x32x32); give --estimator.direction dct or range, or take a "
        "method without them: --method.name static or procedural"
    ] * (random and spec.at_once(2) < 2)


def require_answers_fit(job: Job, teacher: Teacher) -> None:
    """UserError if the method cannot learn from what is made of the teacher's answers, with those that can."""
    name, mode = job.method, Reader(job.config.answers, teacher.label_mode, teacher.num_classes).mode
    label_modes, kind = find_method(name).load().label_modes, mode.kind
    if kind not in label_modes:
        able = [other for other, entry in METHODS.items() if kind in entry.load().label_modes]
        raise UserError(
            f"--method.name {name} needs a teacher that answers {' or '.join(label_modes)}, this one "
            f"answers {mode}; methods that can use it: {', '.join(able)}"
        )


def is_checked(job: Job) -> bool:
    """Whether the pre-flight check runs before the first step, and decides what the estimator's settings leave open."""
    return "estimator" in find_method(job.method).sections and needs_preflight(job.estimator)


def _require_estimator(job: Job, spec: ImageSpec) -> int:
    """Images of the largest batch that is asked about at once.

    UserError if the estimator does not fit the teacher's images, or the budget the check that it is left to.
    """
    batch_size: int = job.method_config.batch_size
    if "estimator" not in find_method(job.method).sections:
        return batch_size
    estimator = make_estimator(drafted(job.estimator, spec), spec, lambda u_BCHW: u_BCHW, CHUNK, seed=0)
    if is_checked(job):
        require_budget(job.config.images, preflight_images(job.estimator, spec))
    return max(batch_size, *estimator.calls(batch_size))


def drafted(config: EstimatorConfig, spec: ImageSpec) -> EstimatorConfig:
    """The settings with a step, whatever the pre-flight check will find."""
    settings = default_settings(config, spec)
    if not needs_preflight(config):
        return settings
    return replace(settings, step=1.0 if settings.space == "lattice" else 1e-3)
