"""The digits teacher behind defences, and what it is asked."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from dfme.config.settings import TeacherConfig
from dfme.config.values import from_mapping
from dfme.data import load_dataset
from dfme.spec import Teacher
from dfme.teachers.build import make_teacher
from dfme.teachers.defences.wrapper import Defended

WEIGHTS = "teachers/checkpoints/digits.safetensors"
KEY = "Kn4-never-to-be-seen-7Xq"


def digits(defences: str = "none", mode: str | None = None) -> Teacher:
    config = from_mapping(TeacherConfig, {"defences": defences, "label_mode": mode})
    return make_teacher(config, {"checkpoint": WEIGHTS}, torch.device("cpu"))


def defended(defences: str, mode: str | None = None) -> Defended:
    teacher = digits(defences, mode)
    assert isinstance(teacher, Defended)
    return teacher


@cache
def queries() -> Tensor:
    """The 359 test images, then 10,000 of uniform noise."""
    noise = torch.rand((10_000, 1, 8, 8), generator=torch.Generator().manual_seed(0))
    return torch.cat([load_dataset("digits", "test").images, noise])


@cache
def truths() -> Tensor:
    """What the undefended teacher answers to ``queries()``."""
    return digits()(queries())
