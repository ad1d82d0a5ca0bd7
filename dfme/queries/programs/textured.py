"""Textured leaves: dead leaves, each filled with 1/f noise of its own, on a ground that is textured
as well.

After Baradad et al. 2021 (arXiv 2106.05963), who draw leaves with textures as training data; theirs
are of another kind. The ranges are heuristic. What it is worth is in docs/results/real_size.md.
"""

import torch
from torch import Tensor

from dfme.queries.programs import leaves
from dfme.queries.programs.canvas import log_uniform, uniform
from dfme.queries.programs.heaps import Range, Things, heap
from dfme.queries.programs.noise import power_law_fields
from dfme.spec import ImageSpec

EXPONENTS = (0.5, 2.0)  # of the amplitude, a leaf's own
CONTRASTS = (0.01, 0.2)  # standard deviation of a texture, where 1 is the whole range of a pixel
TINT = 0.5  # how far the channels' contrasts are from one another


def draw(count: int, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    """``count`` images (B, C, H, W), float32 within the bounds, on the device of ``rng``."""
    return heap(Things(leaves.NUMBERS, _cover, paints), count, spec, rng)


def _cover(count: int, numbers: Range, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    """As leaves cover; the first is the ground."""
    cover_BMHW = leaves.cover(count, numbers, spec, rng)
    cover_BMHW[:, 0] = 1
    return cover_BMHW


def paints(count: int, most: int, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    """A colour with a texture for each leaf, (B, M, C, H, W)."""
    channels, height, width = spec.shape
    exponent_N = uniform((count * most,), *EXPONENTS, rng)
    field_N1HW = power_law_fields(exponent_N, (1, height, width), rng)
    contrast = log_uniform((count * most, 1, 1, 1), *CONTRASTS, rng)
    contrast = contrast * uniform((count * most, channels, 1, 1), 1 - TINT, 1 + TINT, rng)
    colour_NC11 = uniform((count * most, channels, 1, 1), 0, 1, rng)
    return torch.addcmul(colour_NC11, contrast, field_N1HW).view(count, most, *spec.shape)
