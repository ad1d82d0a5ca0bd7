"""A generator that starts from images drawn by a program, and learns what to change about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from dfme.generators.base import GeneratorNet
from dfme.generators.published import read_by
from dfme.spec import ImageSpec

Draw = Callable[[int, torch.Generator], Tensor]
"""Images (count, C, H, W) within the bounds from a source."""

WIDTH = 64
"""Channels of the transformation's hidden layers."""


class Transforming(GeneratorNet):
    """gen_op = base + G(z, base): a base image before the squashing, and a residual that begins at zero.

    So the first queries are the program's, and training moves away from them only where it pays. A latent is one
    row: the noise z (Z) and behind it the base (C*H*W), so that it is drawn, kept and fed like any other. Our own
    (methods.md: a trained generator is worth its queries where it improves on a procedural source).
    """

    def __init__(self, latent_size: int, spec: ImageSpec, draw_base: Draw) -> None:
        super().__init__(spec)
        channels = spec.shape[0]
        self.latent_size = latent_size
        self._shape = spec.shape
        self._draw_base = draw_base
        self.noise = nn.Linear(latent_size, WIDTH)
        self.reads = nn.Conv2d(channels, WIDTH, 3, padding=1)
        self.blocks = nn.Sequential(
            nn.BatchNorm2d(WIDTH),
            nn.LeakyReLU(0.2),
            nn.Conv2d(WIDTH, WIDTH, 3, padding=1),
            nn.BatchNorm2d(WIDTH),
            nn.LeakyReLU(0.2),
        )
        self.last = nn.Conv2d(WIDTH, channels, 3, padding=1)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)  # type: ignore[arg-type]

    def forward(self, latent_BL: Tensor) -> Tensor:
        z_BZ, base_BD = latent_BL.split([self.latent_size, latent_BL.shape[1] - self.latent_size], dim=1)
        base_BCHW = base_BD.unflatten(1, self._shape)
        mixed_BFHW = self.reads(base_BCHW) + self.noise(z_BZ)[:, :, None, None]
        u_BCHW: Tensor = base_BCHW + self.last(self.blocks(mixed_BFHW))
        return u_BCHW

    @contextmanager
    def watched(self) -> Iterator[list[Tensor]]:
        with read_by(self.last) as read:
            yield read

    def draw(self, count: int, rng: torch.Generator) -> Tensor:
        """``count`` latents: noise from N(0, I), and base images as u."""
        z_BZ = torch.randn(count, self.latent_size, generator=rng, device=rng.device)
        base_BCHW = self.unsquash(self._draw_base(count, rng))
        return torch.cat([z_BZ, base_BCHW.flatten(1)], dim=1)
