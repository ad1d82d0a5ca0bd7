"""Small things with known answers that the tests share."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dfme.answers.asking import Reader
from dfme.compute.deferred import DeferredChecks
from dfme.config.answer_settings import AnswersConfig
from dfme.config.estimator_settings import EstimatorConfig
from dfme.config.query_settings import QueriesConfig
from dfme.config.settings import ExtractConfig, Job, ScheduleConfig, StudentConfig, TeacherConfig
from dfme.methods import METHODS
from dfme.methods.base import Components
from dfme.nets.generators import Generator, Transforming
from dfme.oracle.ledger import Ledger
from dfme.oracle.oracle import Oracle
from dfme.queries.programs import ProceduralImages
from dfme.queries.sampler import Evolution, QuerySampler
from dfme.randomness import Streams
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
        count = settings.count or 1
        return [
            small_net(spec, classes, seed + first + number).to(teacher.info.device)
            for number in range(count)
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
