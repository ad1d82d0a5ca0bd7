"""Glyphs: joined strokes and loops of one pen in one colour on a flat or graded ground, as on a sign.

Heuristic: what is known of house numbers, plates and signs without having seen any: a sign is smaller than a
page of ``pen``, its ground is not even, and more of it is closed. What it is worth is in
docs/results/real_size.md, with the textured grounds that were tried.
"""

import torch
from torch import Tensor

from dfme.queries.programs.canvas import in_chunks, uniform
from dfme.queries.programs.heaps import grounds
from dfme.queries.programs.pen import written
from dfme.spec import ImageSpec

SIZES = (0.4, 0.8)  # half of a glyph's side, in halves of the image's
LOOPS = 0.4  # share of images with a loop
NOISE = (0.0, 0.06)  # standard deviation of an image's ground


def draw(count: int, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    """``count`` images (B, C, H, W), float32 within the bounds, on the device of ``rng``."""
    return in_chunks(_signs, count, spec, rng)


def _signs(count: int, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    ground_BCHW = grounds(count, spec, rng)
    noise_BCHW = torch.randn(ground_BCHW.shape, generator=rng, device=rng.device)
    ground_BCHW = torch.addcmul(ground_BCHW, noise_BCHW, uniform((count, 1, 1, 1), *NOISE, rng))
    ink_BC11 = uniform((count, spec.shape[0], 1, 1), 0, 1, rng)
    return torch.lerp(ground_BCHW, ink_BC11, written(count, SIZES, LOOPS, spec, rng))
