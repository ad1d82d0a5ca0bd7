"""Small things with known answers that the tests share."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from dfme.compute import DeferredChecks
from dfme.config.settings import EstimatorConfig, QueriesConfig, ScheduleConfig, StudentConfig
from dfme.methods import METHODS
from dfme.methods.base import Parts, opened_for
from dfme.nets.generators import Generator, GeneratorNet, Transforming
from dfme.oracle.ledger import Ledger
from dfme.oracle.oracle import Oracle
from dfme.queries.programs import ProceduralImages
from dfme.randomness import Streams
from dfme.spec import ImageSpec, LabelMode
from dfme.students.losses import make_distance
from dfme.students.replay import Replay
from dfme.students.trainer import StudentTrainer
from teachers.label_modes import reveal


class LinearTeacher:
    """Scores that are a fixed linear map of the image; counts the images it was really asked for."""

    def __init__(self, spec: ImageSpec, num_classes: int = 3, mode: str = "probabilities", device: str = "cpu") -> None:
        self.spec = spec
        self.num_classes = num_classes
        self.label_mode = LabelMode.parse(mode)
        self.images = 0
        self.device = torch.device(device)
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


def small_net(spec: ImageSpec, num_classes: int = 3, seed: int = 0) -> nn.Module:
    """A net with batch normalisation, the same for the same seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Flatten(), nn.Linear(spec.numel, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, num_classes)
        )


def make_parts(
    teacher: LinearTeacher,
    budget: int,
    seed: int = 0,
    queries: QueriesConfig | None = None,
    keeps: bool = False,
    **student: object,
) -> Parts:
    """The parts a method needs, around a toy teacher, without files; ``keeps``: a replay in any case."""
    streams, deferred = Streams(seed, teacher.device), DeferredChecks()
    oracle = Oracle(teacher, Ledger(budget), None, deferred)
    config = StudentConfig(**{"lr": 0.05, "replay_batch": 8, **student})
    kept = keeps or config.replay_steps or config.steps
    replay = Replay(64, teacher.spec, streams["replay"]) if kept else None
    nets = [
        small_net(teacher.spec, teacher.num_classes, seed + number).to(teacher.device)
        for number in range(config.count or 1)
    ]
    distance = make_distance("auto", teacher.label_mode)
    constant = ScheduleConfig(kind="constant")
    trainer = StudentTrainer(
        nets,
        config,
        distance,
        replay,
        lambda: oracle.ledger.share,
        constant,
        streams["augment"],
        fresh=lambda number: [small_net(teacher.spec, teacher.num_classes, seed + 200 + number) for _ in nets],
    )
    queries = queries or QueriesConfig()
    draw = ProceduralImages(teacher.spec, queries.programs).draw
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        based = queries.base != "none"
        made: GeneratorNet = Transforming(8, teacher.spec, draw) if based else Generator(8, teacher.spec)
    made.to(teacher.device)
    return Parts(oracle, made, trainer, streams, deferred, lambda: 1.0, 1_000, queries=queries, draw=draw)


def make_method(name: str, parts: Parts, **options: object):
    """A method by its name with a small configuration; options of the estimator go to the estimator."""
    entry = METHODS[name]
    own = {field.name for field in dataclasses.fields(EstimatorConfig)}
    estimator = {key: options.pop(key) for key in list(options) if key in own}
    parts = dataclasses.replace(parts, estimator=entry.section("estimator")(**estimator))
    made = entry.load()
    small = {"batch_size": 8, "student_steps": 2, "latent_size": 8, **options}
    known = {field.name for field in dataclasses.fields(entry.config)}
    config = entry.config(**{name: value for name, value in small.items() if name in known or name in options})
    if not hasattr(config, "latent_size"):
        parts = dataclasses.replace(parts, made=None)
    opened = opened_for(made, config, parts.oracle.spec, parts.oracle.ledger.budget)
    return made(config, dataclasses.replace(parts, opened=opened))
