"""A local network with its gradients, for comparing estimates with the truth on the owner's side of the API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dfme.config.settings import TeacherConfig
from dfme.precision import arithmetic
from dfme.spec import ImageSpec, LabelMode, Teacher
from dfme.teachers.label_modes import restrict
from dfme.teachers.local.pytorch import LOGITS, TorchTeacher, load_torch
from dfme.teachers.options import TorchOptions

Arithmetic = Callable[[], AbstractContextManager[None]]
"""Makes the context in which the network computes."""


class TorchWhiteBox:
    """The network of a ``TorchTeacher``, and the same network behind any API."""

    def __init__(self, teacher: TorchTeacher) -> None:
        self.spec = replace(teacher.spec, levels=None)
        self.num_classes = teacher.num_classes
        self.device, self.precision, self.class_names = teacher.device, teacher.precision, teacher.class_names
        self._teacher = teacher

    def logits(self, x_NCHW: Tensor) -> Tensor:
        return self._teacher.logits(x_NCHW.to(self.device))

    def as_seen(self, levels: int | None, mode: LabelMode, arithmetic: Arithmetic = nullcontext) -> Teacher:
        """In ``arithmetic``, unless the owner says in which. UserError for a mode that the classes do not allow."""
        return restrict(_BehindApi(self, replace(self.spec, levels=levels), arithmetic), mode)


class _BehindApi:
    """The network behind an API: no gradient passes, and it computes as asked."""

    label_mode = LOGITS

    def __init__(self, box: TorchWhiteBox, spec: ImageSpec, arithmetic: Arithmetic) -> None:
        self.spec = spec
        self.num_classes = box.num_classes
        self.device = box.device
        self._box = box
        self._arithmetic = arithmetic

    def __call__(self, images: Tensor, /) -> Tensor:
        own = self._box.precision
        with torch.no_grad(), self._arithmetic() if own == "auto" else arithmetic(own, self.device):
            return self._box.logits(images).float()


def open_white_box(config: TeacherConfig, options: Mapping[str, Any], device: torch.device) -> TorchWhiteBox:
    """The white box of a teacher of kind torch, the only one whose gradients are at hand."""
    assert config.kind == "torch", "the command line refuses the others"
    return TorchWhiteBox(load_torch(TorchOptions(**options), config, device))
