"""What every generator is asked: draw a latent, make ``gen_op`` from it, squash that to an image."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from dfme.spec import ImageSpec

NEAREST = 1e-3
"""Where the squashing is undone, the least distance to a bound, as a share of half the range: tanh never gets there."""


class GeneratorNet(nn.Module, ABC):
    """``forward`` maps a latent of ``draw`` (B, ...) to u (B, C, H, W); ``squash`` maps u to an image.

    The two are apart because finite differences may be taken on either side of the squashing, a tanh scaled to
    the teacher's bounds (plain tanh for bounds of -1 and 1).
    """

    def __init__(self, spec: ImageSpec) -> None:
        super().__init__()
        self.bounds = spec.bounds

    @abstractmethod
    def draw(self, count: int, rng: torch.Generator) -> Tensor:
        """``count`` latents, on the device of ``rng``."""

    @abstractmethod
    def watched(self) -> AbstractContextManager[list[Tensor]]:
        """Collects what the last convolution reads, (B, F, H, W) detached, in every call meanwhile."""

    def squash(self, u_BCHW: Tensor) -> Tensor:
        """The image within the bounds."""
        low, high = self.bounds
        return torch.tanh(u_BCHW).mul(0.5 * (high - low)).add(0.5 * (high + low))

    def unsquash(self, x_BCHW: Tensor) -> Tensor:
        """The u whose image this is, pixels at the very bounds moved inwards by ``NEAREST``."""
        low, high = self.bounds
        scaled_BCHW = x_BCHW.sub(0.5 * (high + low)).div(0.5 * (high - low))
        return torch.atanh(scaled_BCHW.clamp(NEAREST - 1.0, 1.0 - NEAREST))
