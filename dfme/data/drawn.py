"""Common to the drawn tasks: one figure an image, randomly turned, scaled, placed, coloured."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dfme.data.images import SMALLEST, DatasetRequest, ImageSet
from dfme.errors import UserError

SUBPIXELS = 4  # per side: an edge takes 17 values of coverage
CHUNK = 1 << 22  # points worked on at once

Inside = Callable[[Tensor, Tensor, Tensor, torch.Generator], Tensor]
"""From labels (N,) and points u, v (N, H, W), in radii from the centre, to whether each lies inside
the figure."""


@dataclass(frozen=True)
class DrawnConfig:
    """Number and size (C, H, W) of the images, C of 1 or 3, and how hard they are to tell apart.

    ``rotation``: largest turn to either side in degrees. ``contrast``: least difference, in the
    channel where it is largest, between figure and ground, above 0 and at most 1. ``texture``:
    amplitude of a random wave added to the ground. ``noise``: standard deviation of the noise added
    to every pixel.
    """

    name: str
    shape: tuple[int, int, int]
    count: int
    rotation: float = 180.0
    contrast: float = 0.3
    texture: float = 0.0
    noise: float = 0.02
    seed: int = 0

    def __post_init__(self) -> None:
        channels, height, width = self.shape
        if channels not in (1, 3) or min(height, width) < SMALLEST:
            raise UserError(
                f"{self.name}: expected 1 or 3 channels and sides of 8 pixels or more, got "
                f"{self.shape}"
            )


def drawn_config(
    request: DatasetRequest, usual: tuple[int, int, int], rotation: float = 180.0
) -> DrawnConfig:
    """Default difficulty at the given size: 20,000 images to train with, 2,000 others held out."""
    count, seed = (20_000, 0) if request.split == "train" else (2_000, 1)
    return DrawnConfig(request.name, request.shape or usual, count, rotation, seed=seed)


def draw(config: DrawnConfig, classes: Sequence[str], inside: Inside) -> ImageSet:
    """``config.count`` images (N, C, H, W) as uint8, each class as often as the others, in random
    order.
    """
    rng = torch.Generator().manual_seed(config.seed)
    labels = torch.arange(config.count).remainder(len(classes))[
        torch.randperm(config.count, generator=rng)
    ]
    chunk = max(1, CHUNK // (math.prod(config.shape[1:]) * SUBPIXELS**2))
    parts = [
        _paint(_coverage(part, inside, config, rng), config, rng) for part in labels.split(chunk)
    ]
    return ImageSet(config.name, torch.cat(parts), labels, tuple(classes))


def _coverage(labels: Tensor, inside: Inside, config: DrawnConfig, rng: torch.Generator) -> Tensor:
    """Share of each pixel the figure covers, (N, 1, H, W) within [0, 1]."""
    count = len(labels)
    (_, height, width) = config.shape
    half_side = min(height, width) / 2
    radius = half_side * (0.65 + 0.3 * torch.rand(count, 1, 1, generator=rng))
    middle_v = height / 2 + (torch.rand(count, 1, 1, generator=rng) * 2 - 1) * (height / 2 - radius)
    middle_u = width / 2 + (torch.rand(count, 1, 1, generator=rng) * 2 - 1) * (width / 2 - radius)
    angle = (torch.rand(count, 1, 1, generator=rng) * 2 - 1) * math.radians(config.rotation)
    rows = (torch.arange(height * SUBPIXELS).add(0.5) / SUBPIXELS).view(1, -1, 1)
    columns = (torch.arange(width * SUBPIXELS).add(0.5) / SUBPIXELS).view(1, 1, -1)
    x = (columns - middle_u) / radius
    y = (rows - middle_v) / radius
    u = x * angle.cos() + y * angle.sin()
    v = y * angle.cos() - x * angle.sin()
    return torch.nn.functional.avg_pool2d(inside(labels, u, v, rng).float().unsqueeze(1), SUBPIXELS)


def _paint(coverage_N1HW: Tensor, config: DrawnConfig, rng: torch.Generator) -> Tensor:
    """Colours: the difference of figure and ground is drawn first, then a ground that leaves room
    for it.
    """
    count = len(coverage_N1HW)
    (channels, height, width) = config.shape
    direction = torch.rand(count, channels, 1, 1, generator=rng) * 2 - 1
    direction = direction / direction.abs().amax(1, keepdim=True).clamp_min(1e-6)
    contrast = config.contrast + (1 - config.contrast) * torch.rand(count, 1, 1, 1, generator=rng)
    difference = direction * contrast
    ground = torch.rand(count, channels, 1, 1, generator=rng) * (1 - difference.abs())
    ground -= difference.clamp_max(0)
    wave = config.texture * _waves(count, height, width, rng) * (1 - coverage_N1HW)
    noise = config.noise * torch.randn(count, channels, height, width, generator=rng)
    image = ground + difference * coverage_N1HW + wave + noise
    return image.clamp_(0, 1).mul_(255).round_().to(torch.uint8)


def _waves(count: int, height: int, width: int, rng: torch.Generator) -> Tensor:
    """Sinusoids of random direction and phase, 2 to 4 periods over the shorter side: (N, 1, H,
    W).
    """
    angle, phase = (2 * math.pi * torch.rand(2, count, 1, 1, 1, generator=rng)).unbind()
    periods = (2 + 2 * torch.rand(count, 1, 1, 1, generator=rng)) / min(height, width)
    rows = torch.arange(height).view(1, 1, -1, 1)
    columns = torch.arange(width).view(1, 1, 1, -1)
    return torch.sin(2 * math.pi * periods * (rows * angle.sin() + columns * angle.cos()) + phase)
