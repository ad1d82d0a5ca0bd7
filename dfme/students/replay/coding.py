"""How an image is kept: as 8-bit integers where that is exact, else as floats of 32 or 16 bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dfme.spec import ImageSpec

ReplayPrecision = Literal["float32", "float16"]


@dataclass(frozen=True)
class Coding:
    """The form in which images of ``spec`` are kept.

    Up to 256 levels: the numbers of the levels, uint8, exact. Otherwise float32 as they are, or float16 of the
    image scaled to -1..1: within (high - low) / 8192 of it, a 32nd of an 8-bit level, whatever the bounds.
    """

    spec: ImageSpec
    precision: ReplayPrecision = "float32"

    @property
    def dtype(self) -> torch.dtype:
        """Of a kept image."""
        if self.spec.levels is not None and self.spec.levels <= 256:
            return torch.uint8
        return torch.float16 if self.precision == "float16" else torch.float32

    @property
    def image_bytes(self) -> int:
        """Bytes of one kept image."""
        return self.spec.numel * self.dtype.itemsize

    def encode(self, images_BCHW: Tensor) -> Tensor:
        """Images within the bounds, float32, as they are kept."""
        if self.dtype == torch.uint8:
            return self.spec.encode(images_BCHW)
        if self.dtype == torch.float16:
            return images_BCHW.sub(self._middle).div_(self._half).half()
        return images_BCHW

    def decode(self, coded_BCHW: Tensor) -> Tensor:
        """Kept images as float32 that the wire can carry: within the bounds, on the lattice if there is one."""
        if coded_BCHW.dtype == torch.uint8:
            return self.spec.decode(coded_BCHW)
        if coded_BCHW.dtype == torch.float16:
            return self.spec.quantise(coded_BCHW.float().mul_(self._half).add_(self._middle))
        return coded_BCHW

    @property
    def _middle(self) -> float:
        return (self.spec.bounds[0] + self.spec.bounds[1]) / 2

    @property
    def _half(self) -> float:
        return (self.spec.bounds[1] - self.spec.bounds[0]) / 2
