"""The digits teacher behind defences or under a watch, and what it is asked."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from dfme.config import defences as settings
from dfme.config.defences import parse_defences
from dfme.config.settings import TeacherConfig
from dfme.config.values import from_mapping
from dfme.data import load_dataset
from dfme.spec import LabelMode, Teacher
from dfme.teachers.build import make_teacher
from dfme.teachers.owner.defences.wrapper import Defended
from dfme.teachers.owner.watch.watch import Watch

WEIGHTS = "teachers/checkpoints/digits.safetensors"
KEY = "Kn4-never-to-be-seen-7Xq"


def digits(defences: str = "none", mode: str | None = None) -> Teacher:
    config = from_mapping(TeacherConfig, {"defences": defences, "label_mode": mode})
    return make_teacher(config, {"checkpoint": WEIGHTS}, torch.device("cpu"))


def defended(defences: str, mode: str | None = None) -> Defended:
    teacher = digits(defences, mode)
    assert isinstance(teacher, Defended)
    return teacher


ALL = ",".join(settings.DETECTORS)
DETECTORS = ("pairs", "labels", "sequential", "mmd")
logging_watch = partial(Watch, names=DETECTORS, data="digits", on_alarm="log")


class Stopped(Defended):
    """The embedded digits, which count what they answer and are stopped where ``at`` says."""

    def __init__(
        self,
        at: dict[int, Callable[[], object]] | None = None,
        defences: str = "none",
        mode: str = "probabilities",
        watching: Any = None,
    ) -> None:
        super().__init__(
            digits(mode="logits"), parse_defences(defences), LabelMode.parse(mode), watching
        )
        self.calls = self.images = 0
        self._at = at or {}
        self.info = replace(self.info, undefended=self._counted(self.undefended))

    def _counted(self, answer: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def counted(images: Tensor) -> Tensor:
            self.images += len(images)
            return answer(images)

        return counted

    def __call__(self, images: Tensor, /) -> Tensor:
        self.calls += 1
        self._at.get(self.calls, int)()
        self.images += len(images)
        return super().__call__(images)


@cache
def queries() -> Tensor:
    """The 359 test images, then 10,000 of uniform noise."""
    noise = torch.rand((10_000, 1, 8, 8), generator=torch.Generator().manual_seed(0))
    return torch.cat([load_dataset("digits", "test").images, noise])


@cache
def truths() -> Tensor:
    """What the undefended teacher answers to ``queries()``."""
    return digits()(queries())


def watched(
    names: str = "pairs,sequential", mode: str | None = None, **options: object
) -> Defended:
    given = {"watch": names, "benign": "digits", "label_mode": mode, **options}
    teacher = make_teacher(
        from_mapping(TeacherConfig, given), {"checkpoint": WEIGHTS}, torch.device("cpu")
    )
    assert isinstance(teacher, Defended)
    return teacher


@cache
def pairs() -> Tensor:
    """600 images: of 300 strange ones each with another, a small step of a finite difference
    away.
    """
    rng = torch.Generator().manual_seed(0)
    x = torch.rand((300, 1, 8, 8), generator=rng) * 0.9
    return (
        torch.stack([x, x + 0.01 * torch.randn(x.shape, generator=rng).abs()], 1)
        .flatten(0, 1)
        .clamp(0, 1)
    )
