"""Arithmetic that loses precision, put back on purpose where estimators have switched it off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from dfme.benchmarks.gradients.conditions import FloatArithmetic
from dfme.compute import autocast, ieee_fp32, tf32


@contextmanager
def arithmetic(kind: FloatArithmetic, device: torch.device) -> Iterator[None]:
    """Run what is inside in IEEE fp32, TF32 or under bf16 autocast, whatever holds outside; all is put back."""
    with tf32() if kind == "tf32" else ieee_fp32(), autocast(device, "bf16" if kind == "bf16" else "fp32"):
        yield


class Within(nn.Module):
    """A net that runs in an arithmetic of its own and answers float32."""

    def __init__(self, net: nn.Module, kind: FloatArithmetic, device: torch.device) -> None:
        super().__init__()
        self.net = net
        self._kind = kind
        self._device = device

    def forward(self, x_NCHW: Tensor) -> Tensor:
        with arithmetic(self._kind, self._device):
            scores_NK: Tensor = self.net(x_NCHW).float()
        return scores_NK
