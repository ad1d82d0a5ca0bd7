"""Small things with known answers that the tests share."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dfme.answers.asking import Reader
from dfme.compute.device import Streams
from dfme.compute.modules import DeferredChecks
from dfme.config.sections import AnswersConfig, EstimatorConfig, QueriesConfig
from dfme.config.settings import ExtractConfig, Job, ScheduleConfig, StudentConfig, TeacherConfig
from dfme.estimators.base import ImageFunction, Objective
from dfme.methods import METHODS
from dfme.methods.base import Components
from dfme.nets.generators import Generator, Transforming
from dfme.oracle.ledger import Ledger
from dfme.oracle.oracle import Oracle
from dfme.queries.programs import ProceduralImages
from dfme.queries.sampler import Evolution, QuerySampler
from dfme.run.components import Nets, build_components
from dfme.spec import ImageSpec, LabelMode, TeacherInfo
from dfme.teachers.label_modes import reveal


class LinearTeacher:
    """Scores that are a fixed linear map of the image; counts the images it was really asked
    for.
    """

    def __init__(
        self,
        spec: ImageSpec,
        num_classes: int = 3,
        mode: str = "probabilities",
        device: str = "cpu",
    ) -> None:
        self.spec = spec
        self.num_classes = num_classes
        self.label_mode = LabelMode.parse(mode)
        self.images = 0
        self.info = TeacherInfo(device)
        weight = torch.randn(spec.numel, num_classes, generator=torch.Generator().manual_seed(7))
        self.weight = weight.to(device)

    def logits(self, images: Tensor) -> Tensor:
        return (images - 0.5).flatten(1) @ self.weight

    def __call__(self, images: Tensor, /) -> Tensor:
        self.images += len(images)
        logits = self.logits(images)
        if self.label_mode.kind in ("label", "top_k"):
            return reveal(logits, LabelMode("logits"), self.label_mode)
        return logits if self.label_mode.kind == "logits" else logits.softmax(dim=1)


class Recording(LinearTeacher):
    """Keeps the images that it was asked about."""

    def __call__(self, images: Tensor, /) -> Tensor:
        self.asked = [*getattr(self, "asked", []), images.clone()]
        return super().__call__(images)


def small_net(spec: ImageSpec, num_classes: int = 3, seed: int = 0) -> nn.Module:
    """A net with batch normalisation, the same for the same seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(spec.numel, 16),
            nn.BatchNorm1d(16),
            nn.ReLU(),
            nn.Linear(16, num_classes),
        )


def make_parts(
    teacher: LinearTeacher,
    budget: int,
    seed: int = 0,
    queries: QueriesConfig | None = None,
    keeps: bool = False,
    answers: AnswersConfig | None = None,
    schedule: ScheduleConfig | None = None,
    **student: object,
) -> Components:
    """What a method works with, around a toy teacher, without files; ``keeps``: a replay in any
    case.

    ``schedule``: of the learning rates, which else are constant.
    """
    spec, classes = teacher.spec, teacher.num_classes
    settings = StudentConfig(**{"lr": 0.05, "replay_batch": 8, "replay_capacity": 64, **student})
    schedule = schedule or ScheduleConfig(kind="constant")
    reading = answers or AnswersConfig()
    config = ExtractConfig(
        budget=budget, seed=seed, student=settings, schedule=schedule, answers=reading
    )
    method = "knockoff" if keeps else "static"
    small = METHODS[method].config(
        **({"batch_size": 8} if keeps else {"batch_size": 8, "latent_size": 8})
    )
    job = Job(config, TeacherConfig(), {}, method, small, queries=queries or QueriesConfig())
    deferred, rng = DeferredChecks(), Streams(seed, torch.device(teacher.info.device))
    oracle = Oracle(
        teacher,
        Ledger(budget),
        None,
        deferred,
        reader=Reader(reading, teacher.label_mode, classes, seed),
    )
    job = dataclasses.replace(job, config=config.with_precision(teacher.spec.shape))

    def nets(first: int) -> list[nn.Module]:
        return [
            small_net(spec, classes, seed + first + number).to(teacher.info.device)
            for number in range(settings.count or 1)
        ]

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        draw = ProceduralImages(spec, job.queries.programs).draw
        made = Generator(8, spec) if job.queries.base == "none" else Transforming(8, spec, draw)
    built = Nets("small", nets(0), made.to(teacher.info.device), lambda number: nets(200 + number))
    return build_components(job, built, oracle, rng, deferred)


def make_method(name: str, parts: Components, **options: object):
    """A method by its name with a small configuration; options of the estimator go to the
    estimator.
    """
    entry = METHODS[name]
    own = {field.name for field in dataclasses.fields(EstimatorConfig)}
    estimator = entry.section("estimator")(
        **{key: options.pop(key) for key in list(options) if key in own}
    )
    small = {"batch_size": 8, "student_steps": 2, "latent_size": 8, **options}
    known = {field.name for field in dataclasses.fields(entry.config)} | options.keys()
    config = entry.config(**{name: small[name] for name in small.keys() & known})
    oracle, students = parts.oracle, parts.students
    draw = ProceduralImages(oracle.spec, parts.sources.programs).draw
    generator = parts.generator if hasattr(config, "latent_size") else None
    evolution = None
    if parts.sources.evolve and students.replay is not None:
        evolution = Evolution(students.replay, oracle.label_mode, oracle.num_classes)
    queries = QuerySampler(
        parts.sources,
        oracle.spec,
        generator,
        draw,
        students.nets,
        parts.rng,
        config.batch_size,
        evolution,
    )
    pool = entry.load().open_pool(config, oracle.spec, oracle.ledger.budget // oracle.times)
    own = {"generator": generator, "queries": queries, "estimator": estimator, "pool": pool}
    return entry.load()(config, dataclasses.replace(parts, **own))


def goes_on_bit_for_bit(begin: Callable[[int], Any], before: int = 3, after: int = 2) -> Any:
    """A method of another seed, loaded after ``before`` steps of one, ends as that: the loaded
    method.
    """
    whole, first, second = begin(0), begin(0), begin(99)
    for method in (whole, first):
        method.prepare()
        for _ in range(before):
            method.step()
    second.load_state_dict(first.state_dict())
    second.students.load_state_dict(first.students.state_dict())
    second.rng.load_state_dict(first.rng.state_dict())
    asked = second.oracle.ledger.spent
    assert second.prepare() == ()
    assert second.oracle.ledger.spent == asked, "a resumed run checks nothing again"
    for method in (whole, second):
        for _ in range(after):
            method.step()
    for mine, theirs in (
        (whole, second),
        (whole.students, second.students),
        (whole.rng, second.rng),
    ):
        assert not differences(mine.state_dict(), theirs.state_dict(), type(mine).__name__)
    return second


def differences(one: Any, other: Any, where: str) -> list[str]:
    """The places in which two states differ."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        same = one.dtype == other.dtype and torch.equal(one.nan_to_num(7.5), other.nan_to_num(7.5))
        return [] if same else [where]
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        if one.keys() != other.keys():
            return [where]
        return [
            place for key in one for place in differences(one[key], other[key], f"{where}.{key}")
        ]
    if (
        isinstance(one, Sequence)
        and not isinstance(one, str | bytes)
        and isinstance(other, Sequence)
    ):
        if len(one) != len(other):
            return [where]
        pairs = enumerate(zip(one, other, strict=True))
        return [
            place for number, (a, b) in pairs for place in differences(a, b, f"{where}[{number}]")
        ]
    return [] if one == other else [where]


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def point(batch: int, shape: tuple[int, ...], seed: int = 1) -> Tensor:
    return torch.randn(batch, *shape, generator=rng(seed))


class Linear:
    """f(x) = <g_i, x_i> in float64, whose gradient is g whatever the step; records what it was
    asked for.
    """

    def __init__(self, batch: int, shape: tuple[int, ...]) -> None:
        self.gradient = point(batch, shape, seed=2).double()
        self.calls: list[Tensor] = []

    def __call__(self, images_NCHW: Tensor) -> Tensor:
        start = sum(map(len, self.calls))
        self.calls.append(images_NCHW.clone())
        # Rows follow each other in whole batches, so the place in the stream tells which image is
        # meant.
        which_N = torch.arange(start, start + len(images_NCHW)) % len(self.gradient)
        return (images_NCHW.double() * self.gradient[which_N]).sum((1, 2, 3))


class Toy:
    """A student and a teacher that is known, so that autograd can go through both."""

    def __init__(self, shape: tuple[int, ...], seed: int = 3) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.student, self.teacher = (
                nn.Sequential(
                    nn.Flatten(), nn.Linear(math.prod(shape), 64), nn.Tanh(), nn.Linear(64, 10)
                )
                for _ in range(2)
            )

    def __call__(self, u_NCHW: Tensor) -> Tensor:
        x_NCHW = u_NCHW.tanh()
        return -(self.student(x_NCHW) - self.teacher(x_NCHW)).square().mean(1)

    def gradient(self, u_BCHW: Tensor) -> Tensor:
        u_BCHW = u_BCHW.detach().requires_grad_()
        return torch.autograd.grad(self(u_BCHW).sum(), u_BCHW)[0]


class OverImages:
    """Toy's objective with images in place of what comes before tanh."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        self.toy = Toy(shape)

    def __call__(self, x_NCHW: Tensor) -> Tensor:
        return -(self.toy.student(x_NCHW) - self.toy.teacher(x_NCHW)).square().mean(1)


def composed(over_images: OverImages) -> Objective:
    """The toy's objective as the API's part and our own, with all that may come along."""
    toy = over_images.toy
    return Objective(
        toy.teacher,
        lambda x_NCHW, answers: -(toy.student(x_NCHW) - answers).square().mean(1),
        features_BFHW=torch.ones(3, 2, 4, 4),
        scores=toy.student,
    )


def of_answers(query: ImageFunction, features_BFHW: Tensor | None = None) -> Objective:
    """An objective that is the answers themselves."""
    return Objective(query, lambda _, answers: answers, features_BFHW)


def featured(objective: ImageFunction, point_BCHW: Tensor, width: int = 5) -> Objective:
    """The objective with something that a last convolution might have read at these points."""
    batch, _, height, rows = point_BCHW.shape
    features_BFHW = torch.randn(batch, width, height, rows, generator=rng(11)).to(point_BCHW)
    return of_answers(objective, features_BFHW)


def agreement(estimate_BCHW: Tensor, truth_BCHW: Tensor) -> tuple[float, float]:
    """Cosine, and the scale <estimate, truth> / <truth, truth>, over the whole batch."""
    dot = (estimate_BCHW * truth_BCHW).sum()
    return float(dot / estimate_BCHW.norm() / truth_BCHW.norm()), float(
        dot / truth_BCHW.square().sum()
    )
