"""A local network with its gradients: for the laboratory, which measures on the owner's side of the API."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dfme.benchmarks.gradients.arithmetic import arithmetic
from dfme.benchmarks.gradients.conditions import Arithmetic
from dfme.benchmarks.gradients.options import require_local
from dfme.config.settings import TeacherConfig
from dfme.spec import ImageSpec, LabelMode, Teacher
from teachers.label_modes import restrict
from teachers.local.pytorch import LOGITS, TorchTeacher, load_torch
from teachers.options import TorchOptions


class TorchWhiteBox:
    """The network of a ``TorchTeacher`` (``dfme.benchmarks.gradients.white_box.WhiteBox``)."""

    def __init__(self, teacher: TorchTeacher) -> None:
        self.spec = dataclasses.replace(teacher.spec, levels=None)
        self.num_classes = teacher.num_classes
        self.device = teacher.device
        self._teacher = teacher

    def logits(self, x_NCHW: Tensor) -> Tensor:
        return self._teacher.logits(x_NCHW.to(self.device))

    def as_seen(self, levels: int | None, mode: LabelMode, arithmetic: Arithmetic = "ieee") -> Teacher:
        """UserError for a mode that the network's classes do not allow."""
        return restrict(_Seen(self, dataclasses.replace(self.spec, levels=levels), arithmetic), mode)


class _Seen:
    """The network behind an API: no gradient passes, and its arithmetic is as asked."""

    label_mode = LOGITS

    def __init__(self, box: TorchWhiteBox, spec: ImageSpec, kind: Arithmetic) -> None:
        self.spec = spec
        self.num_classes = box.num_classes
        self.device = box.device
        self._box = box
        self._kind: Arithmetic = kind

    def __call__(self, images: Tensor, /) -> Tensor:
        with torch.no_grad(), arithmetic(self._kind, self.device):
            return self._box.logits(images).float()


def open_white_box(config: TeacherConfig, options: Mapping[str, Any], device: torch.device) -> TorchWhiteBox:
    """The white box of a teacher of kind torch. UserError for any other: nobody has its gradients here."""
    require_local(config.kind)
    return TorchWhiteBox(load_torch(TorchOptions(**options), config, device))
