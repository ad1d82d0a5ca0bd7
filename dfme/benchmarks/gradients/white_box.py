"""What the laboratory may know of a teacher that no auditor knows: its gradients."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor

from dfme.spec import ImageSpec, LabelMode, Teacher


class WhiteBox(Protocol):
    """A teacher whose network is at hand, beside the same network behind any API."""

    @property
    def spec(self) -> ImageSpec:
        """The images, before any rounding: ``levels`` is None."""
        ...

    @property
    def num_classes(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    def logits(self, x_NCHW: Tensor) -> Tensor:
        """Logits (N, K) of images within the bounds, normalisation included; autograd goes through."""
        ...

    def as_seen(
        self, levels: int | None, mode: LabelMode, arithmetic: Callable[[], AbstractContextManager[None]]
    ) -> Teacher:
        """The network behind an API: pixels of so many levels (None: floats), answers in ``mode``.

        It computes in the context that ``arithmetic`` makes.
        """
        ...
