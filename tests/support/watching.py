"""The digits teacher under a watch, and what it is asked."""

from __future__ import annotations

from functools import cache

import torch
from defended import WEIGHTS
from torch import Tensor

from dfme.config.settings import TeacherConfig
from dfme.config.values import from_mapping
from dfme.teachers.build import make_teacher
from dfme.teachers.defences.wrapper import Defended

ALL = "prada,duplicates,pairs,labels,scores,mahalanobis,sequential,sprt"


def watched(names: str = "pairs,sequential", mode: str | None = None, **options: object) -> Defended:
    given = {"watch": names, "benign": "digits", "label_mode": mode, **options}
    teacher = make_teacher(from_mapping(TeacherConfig, given), {"checkpoint": WEIGHTS}, torch.device("cpu"))
    assert isinstance(teacher, Defended)
    return teacher


@cache
def pairs() -> Tensor:
    """600 images: of 300 strange ones each with another, a small step of a finite difference away."""
    rng = torch.Generator().manual_seed(0)
    x = torch.rand((300, 1, 8, 8), generator=rng) * 0.9
    return torch.stack([x, x + 0.01 * torch.randn(x.shape, generator=rng).abs()], 1).flatten(0, 1).clamp(0, 1)
