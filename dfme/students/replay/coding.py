"""How an image is kept: as 8-bit integers where that is exact, else as float32."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dfme.spec import ImageSpec


@dataclass(frozen=True)
class Coding:
    """The form in which images of ``spec`` are kept: numbers of levels up to 256 levels, else as they are."""

    spec: ImageSpec

    @property
    def dtype(self) -> torch.dtype:
        """Of a kept image."""
        return torch.uint8 if self.spec.levels is not None and self.spec.levels <= 256 else torch.float32

    @property
    def image_bytes(self) -> int:
        """Bytes of one kept image."""
        return self.spec.numel * self.dtype.itemsize

    def encode(self, images_BCHW: Tensor) -> Tensor:
        """Images within the bounds, float32, as they are kept."""
        return self.spec.encode(images_BCHW) if self.dtype == torch.uint8 else images_BCHW

    def decode(self, coded_BCHW: Tensor) -> Tensor:
        """Kept images as the float32 that they were."""
        return self.spec.decode(coded_BCHW) if coded_BCHW.dtype == torch.uint8 else coded_BCHW
