"""Pen strokes: a few curves by one round pen, most joined end to start, in one ink on an empty
ground.

Heuristic: what is known of handwriting without having seen any, of whatever script. Unlike
``strokes``, an image has one pen and one ink, its ground is empty, and its curves lie within a box
around the middle. Of grey images most are light on dark; coloured ones have any two colours. What
it is worth is in docs/results/real_size.md.
"""

import torch
from torch import Tensor

from dfme.queries.programs.canvas import in_chunks, uniform
from dfme.queries.programs.strokes import curves, lines
from dfme.spec import ImageSpec

CURVES = (1, 4)  # of an image
WIDTHS = (0.05, 0.17)  # half of the pen's width, in halves of the shorter side
JOINED = 0.65  # share of curves that start where the one before them ended
BOXES = (0.6, 1.0)  # half of the box's side, in halves of the image's
LIGHT = 0.75  # share of grey images whose ink is lighter than the ground
CONTRASTS = (0.7, 1.0)  # of ink and ground in grey


@in_chunks
def draw(count: int, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    """``count`` images (B, C, H, W), float32 within the bounds, on the device of ``rng``."""
    ground_BC11, ink_BC11 = uniform((2, count, spec.shape[0], 1, 1), 0, 1, rng).unbind()
    if spec.shape[0] == 1:
        ground_BC11 = (ground_BC11 > LIGHT).float()
        contrast_BC11 = ink_BC11 * (CONTRASTS[1] - CONTRASTS[0]) + CONTRASTS[0]
        ink_BC11 = torch.lerp(ground_BC11, 1 - ground_BC11, contrast_BC11)
    box_B11 = uniform((count, 1, 1), *BOXES, rng)
    width_B111 = uniform((count, 1, 1, 1), *WIDTHS, rng)
    points_SBM2 = curves(count, CURVES[1], spec, rng, JOINED) * box_B11
    cover_BMHW = lines(points_SBM2, width_B111, CURVES, spec, rng)
    return torch.lerp(ground_BC11, ink_BC11, cover_BMHW.amax(dim=1, keepdim=True))
