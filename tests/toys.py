"""Small things with known answers that the tests share."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from dfme.config import EstimatorConfig, StudentConfig
from dfme.generators import Generator
from dfme.ledger import Ledger
from dfme.losses import make_distance
from dfme.methods import METHODS
from dfme.methods.base import Parts
from dfme.oracle import Oracle
from dfme.randomness import Streams
from dfme.replay import Replay
from dfme.sentinel import Sentinel
from dfme.spec import ImageSpec, LabelMode
from dfme.students import StudentTrainer
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


def make_parts(teacher: LinearTeacher, budget: int, seed: int = 0, **student: object) -> Parts:
    """The parts a method needs, around a toy teacher, without files."""
    streams, sentinel = Streams(seed, teacher.device), Sentinel()
    oracle = Oracle(teacher, Ledger(budget), None, sentinel)
    config = StudentConfig(**{"lr": 0.05, "replay_batch": 8, **student})
    replay = Replay(64, teacher.spec, streams["replay"]) if config.replay_steps else None
    net = small_net(teacher.spec, teacher.num_classes, seed).to(teacher.device)
    trainer = StudentTrainer(net, config, make_distance("auto", teacher.label_mode), replay, lambda: 1.0)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        generator = Generator(8, teacher.spec).to(teacher.device)
    return Parts(oracle, generator, trainer, streams, sentinel, lambda: 1.0, 1_000)


def make_method(name: str, parts: Parts, **options: object):
    """A method by its name with a small configuration; options of the estimator go to the estimator."""
    from importlib import import_module

    entry = METHODS[name]
    own = {field.name for field in dataclasses.fields(EstimatorConfig)}
    estimator = {key: options.pop(key) for key in list(options) if key in own}
    parts = dataclasses.replace(parts, estimator=EstimatorConfig(**estimator))
    module, attribute = entry.implementation.split(":")
    config = entry.config(**{"batch_size": 8, "student_steps": 2, "latent_size": 8, **options})
    return getattr(import_module(module), attribute)(config, parts)
