"""A network of which the gradients are known, as an API would show it."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from dfme.compute.device import arithmetic
from dfme.spec import LabelMode, Teacher, TeacherInfo
from dfme.teachers.label_modes import LOGITS, restrict
from dfme.teachers.local.pytorch import TorchTeacher

Arithmetic = Callable[[], AbstractContextManager[None]]
"""Makes the context in which the network computes."""


class _BehindApi:
    """The network behind an API: no gradient passes, and it computes as asked."""

    label_mode = LOGITS

    def __init__(self, box: TorchTeacher, levels: int | None, arithmetic: Arithmetic) -> None:
        self.spec = replace(box.spec, levels=levels)
        self.num_classes = box.num_classes
        self.info = TeacherInfo(str(box.device))
        self._box = box
        self._arithmetic = arithmetic

    def __call__(self, images: Tensor, /) -> Tensor:
        own = self._box.precision
        with (
            torch.no_grad(),
            self._arithmetic() if own == "auto" else arithmetic(own, self._box.device),
        ):
            return self._box.logits(images).float()


def as_seen(
    box: TorchTeacher, levels: int | None, mode: LabelMode, arithmetic: Arithmetic = nullcontext
) -> Teacher:
    """In ``arithmetic``, unless the owner set it. UserError for an impossible label mode."""
    return restrict(_BehindApi(box, levels, arithmetic), mode)
