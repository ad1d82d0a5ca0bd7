"""Common to the programs: pixel coordinates, random numbers per image, the way to the bounds."""

import math
from collections.abc import Callable
from functools import wraps

import torch
from torch import Tensor

from dfme.spec import ImageSpec

DrawProgram = Callable[[int, ImageSpec, torch.Generator], Tensor]
CHUNK = 1 << 18  # numbers worked on at once: as many as a processor's cache holds


def in_chunks(drawn: DrawProgram) -> DrawProgram:
    """``drawn``, asked for as many images at a time as memory allows, and brought within the
    bounds.
    """

    @wraps(drawn)
    def draw(count: int, spec: ImageSpec, rng: torch.Generator) -> Tensor:
        chunk = max(1, CHUNK // spec.numel)
        parts = [drawn(min(chunk, count - start), spec, rng) for start in range(0, count, chunk)]
        return within_bounds(torch.cat(parts), spec)

    return draw


def pixel_grid(spec: ImageSpec, device: torch.device) -> tuple[Tensor, Tensor]:
    """Centres of the pixels, x (1, W) and y (H, 1), from the middle in halves of the shorter
    side.
    """
    _, height, width = spec.shape
    unit = min(height, width) / 2
    x_1W = (torch.arange(width, device=device) + (1 - width) / 2).div_(unit).unsqueeze(0)
    y_H1 = (torch.arange(height, device=device) + (1 - height) / 2).div_(unit).unsqueeze(1)
    return x_1W, y_H1


def uniform(shape: tuple[int, ...], low: float, high: float, rng: torch.Generator) -> Tensor:
    """Numbers spread evenly from low to high, on the device of ``rng``."""
    return torch.rand(shape, generator=rng, device=rng.device).mul_(high - low).add_(low)


def log_uniform(shape: tuple[int, ...], low: float, high: float, rng: torch.Generator) -> Tensor:
    """Numbers whose logarithms are spread evenly: a power law with an exponent of -1."""
    return (
        torch.rand(shape, generator=rng, device=rng.device)
        .mul_(math.log(high / low))
        .exp_()
        .mul_(low)
    )


def shuffled(images_NCHW: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """``count`` of the images, each as likely as any other, in random order.

    Kinds of image are drawn in equal shares, rounded up: so no host has to draw the shares and
    wait.
    """
    return images_NCHW[torch.randperm(len(images_NCHW), generator=rng, device=rng.device)[:count]]


def within_bounds(unit_BCHW: Tensor, spec: ImageSpec) -> Tensor:
    """Map images from 0 to 1 (clamped in place) to the bounds of the teacher."""
    low, high = spec.bounds
    return unit_BCHW.clamp_(0, 1).mul_(high - low).add_(low).clamp_(low, high)
