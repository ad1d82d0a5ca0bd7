"""The generator of the DFME paper."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from dfme.generators.base import GeneratorNet
from dfme.spec import ImageSpec


@contextmanager
def read_by(layer: nn.Module) -> Iterator[list[Tensor]]:
    """What a layer reads, detached, in every call meanwhile."""
    read: list[Tensor] = []
    hook = layer.register_forward_hook(lambda _, inputs, __: read.append(inputs[0].detach()))
    try:
        yield read
    finally:
        hook.remove()


class Generator(GeneratorNet):
    """The DFME generator: a linear layer to a quarter of the image's size, then two upsampling blocks.

    ``forward`` maps z (B, Z) to u (B, C, H, W), which its last normalisation keeps near N(0, 1) per channel.

    Source: Truong et al. 2021, appendix; layer sizes as listed there (128, 128, 64 channels). Heights and
    widths that 4 does not divide are reached by resizing to their exact halves (rounded up).
    """

    def __init__(self, latent_size: int, spec: ImageSpec) -> None:
        super().__init__(spec)
        channels, height, width = spec.shape
        half = (math.ceil(height / 2), math.ceil(width / 2))
        quarter = (math.ceil(height / 4), math.ceil(width / 4))
        self.latent_size = latent_size
        self.stem = nn.Sequential(
            nn.Linear(latent_size, 128 * math.prod(quarter)),
            nn.Unflatten(1, (128, *quarter)),
            nn.BatchNorm2d(128),
        )
        self.blocks = nn.Sequential(
            nn.Upsample(size=half),
            nn.Conv2d(128, 128, 3, padding=1),
            nn.BatchNorm2d(128),
            nn.LeakyReLU(0.2),
            nn.Upsample(size=(height, width)),
            nn.Conv2d(128, 64, 3, padding=1),
            nn.BatchNorm2d(64),
            nn.LeakyReLU(0.2),
            nn.Conv2d(64, channels, 3, padding=1),
            nn.BatchNorm2d(channels, affine=False),
        )

    def forward(self, z_BZ: Tensor) -> Tensor:
        """``gen_op``: the output before the squashing."""
        u_BCHW: Tensor = self.blocks(self.stem(z_BZ))
        return u_BCHW

    @contextmanager
    def watched(self) -> Iterator[list[Tensor]]:
        last = next(layer for layer in reversed(self.blocks) if isinstance(layer, nn.Conv2d))
        with read_by(last) as read:
            yield read

    def draw(self, count: int, rng: torch.Generator) -> Tensor:
        """``count`` latents from N(0, I), drawn on the generator's device."""
        return torch.randn(count, self.latent_size, generator=rng, device=rng.device)
