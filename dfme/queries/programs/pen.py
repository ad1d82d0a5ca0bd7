"""Pen strokes: a few curves by one round pen, most joined end to start, in one ink on an empty ground.

Heuristic: what is known of handwriting without having seen any, of whatever script. Unlike ``strokes``, an
image has one pen and one ink, its ground is empty, and its curves lie within a box around the middle. Grey
images are light on dark or dark on light, half each; coloured ones have any two colours. What it is worth is
in docs/results/real_size.md.
"""

import torch
from torch import Tensor

from dfme.queries.programs.canvas import in_chunks, uniform
from dfme.queries.programs.strokes import cover
from dfme.spec import ImageSpec

CURVES = (1, 4)  # of an image
WIDTHS = (0.05, 0.19)  # half of the pen's width, in halves of the shorter side
JOINED = 0.8  # share of curves that start where the one before them ended
BOXES = (0.5, 0.9)  # half of the box's side, in halves of the image's
FULL = (0.7, 1.0)  # contrast of ink and ground in grey


def draw(count: int, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    """``count`` images (B, C, H, W), float32 within the bounds, on the device of ``rng``."""
    return in_chunks(_pages, count, spec, rng)


def _pages(count: int, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    ground_BC11, ink_BC11 = two_colours(count, spec.shape[0], rng)
    return torch.lerp(ground_BC11, ink_BC11, ink(count, spec, rng))


def ink(count: int, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    """Share of each pixel that one pen's curves cover, (B, 1, H, W) within 0 and 1."""
    box_B11 = uniform((count, 1, 1), *BOXES, rng)
    cover_BMHW = cover(count, CURVES, spec, rng, WIDTHS, JOINED, reach=box_B11, one_width=True)
    return cover_BMHW.amax(dim=1, keepdim=True)


def two_colours(count: int, channels: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Of a ground and of what is on it, (B, C, 1, 1) each: as far apart in grey as ``FULL`` says."""
    one = (count, channels, 1, 1)
    if channels > 1:
        return uniform(one, 0, 1, rng), uniform(one, 0, 1, rng)
    dark = (uniform(one, 0, 1, rng) < 0.5).float()
    return 1 - dark, torch.lerp(1 - dark, dark, uniform(one, *FULL, rng))
