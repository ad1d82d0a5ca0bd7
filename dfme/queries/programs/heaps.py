"""Heaps: things that fall on a ground one after the other, each hiding what is below it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dfme.queries.programs import ramps
from dfme.queries.programs.canvas import CHUNK, shuffled, uniform, within_bounds
from dfme.spec import ImageSpec

Range = tuple[int, int]  # the fewest and the most things of an image; M is the most

NOISE = 0.02  # standard deviation of what is added to every pixel at last
FAR = 1e4  # where a thing is not seen


@dataclass(frozen=True)
class Things:
    """Objects that fall.

    ``numbers``: ranges, each of which an equal share of the images has. ``cover(count, numbers,
    spec, rng)``: how much of each pixel each thing covers (B, M, H, W), within 0 and 1;
    ``colours(count, most, spec, rng)``: (B, M, C, 1, 1), or (B, M, C, H, W) where things have
    textures.
    """

    numbers: tuple[Range, ...]
    cover: Callable[[int, Range, ImageSpec, torch.Generator], Tensor]
    colours: Callable[[int, int, ImageSpec, torch.Generator], Tensor]


def heap(things: Things, count: int, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    """``count`` images (B, C, H, W), float32 within the bounds, on the device of ``rng``."""
    share = -(-count // len(things.numbers))
    heaps_NCHW = grounds(share * len(things.numbers), spec, rng)
    for numbers, part_BCHW in zip(things.numbers, heaps_NCHW.split(share), strict=True):
        chunk = max(1, CHUNK // (numbers[1] * spec.shape[1] * spec.shape[2]))
        for piece_BCHW in part_BCHW.split(chunk):
            cover_BMHW = things.cover(len(piece_BCHW), numbers, spec, rng)
            drop(piece_BCHW, cover_BMHW, things.colours(len(piece_BCHW), numbers[1], spec, rng))
    image_BCHW = shuffled(heaps_NCHW, count, rng)
    image_BCHW += NOISE * torch.randn(image_BCHW.shape, generator=rng, device=rng.device)
    return within_bounds(image_BCHW, spec)


def grounds(count: int, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    """Grounds within 0 and 1: one colour for half of the images, a gradient for the other half."""
    half = -(-count // 2)
    flat_BC11 = uniform((half, spec.shape[0], 1, 1), 0, 1, rng)
    both_NCHW = torch.cat(
        [flat_BC11.expand(-1, *spec.shape), ramps.draw(half, ImageSpec(spec.shape), rng)]
    )
    return shuffled(both_NCHW, count, rng)


def drop(image_BCHW: Tensor, cover_BMHW: Tensor, colours_BMCHW: Tensor) -> None:
    """Lets M things fall on images, in place, each over those before it."""
    for thing in range(colours_BMCHW.shape[1]):
        image_BCHW.lerp_(colours_BMCHW[:, thing], cover_BMHW[:, thing : thing + 1])


def absent(count: int, numbers: Range, rng: torch.Generator) -> Tensor:
    """Mask of the things beyond an image's number of M, drawn evenly from the range, (B, M, 1,
    1).
    """
    fewest, most = numbers
    number_B111 = torch.randint(
        fewest, most + 1, (count, 1, 1, 1), generator=rng, device=rng.device
    )
    return torch.arange(most, device=rng.device).view(1, -1, 1, 1) >= number_B111
