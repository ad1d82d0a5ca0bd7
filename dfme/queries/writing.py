"""Programs that draw what is written: one character by a pen, of a usual size, in the middle."""

import math

import torch
from torch import Tensor

from dfme.queries.drawing import (
    FAR,
    PEN_WIDTHS,
    absent,
    covered,
    ground_and_ink,
    in_chunks,
    uniform,
)
from dfme.spec import SMALL_SIDE, ImageSpec

STROKES = (1, 3)  # of a character
SEGMENTS = 18  # straight ones, that stand for a stroke
CURVATURE = 3.3  # standard deviation at a knot, in radians over a stroke's length
CORNERED = 0.5  # share of strokes with a corner
CORNERS = (1.2, 2.8)  # radians by which the pen turns there, to either side
LENGTHS = (0.4, 1.0)  # of strokes, one against another
FROM_END = 0.5  # share of strokes that start where the one before ended; others anywhere on it
LIFTED = 0.3  # share of strokes before which the pen leaves the paper
LIFT = 0.25  # in lengths of the longest stroke, along x and y, at most
NARROW = (0.55, 1.1)  # widths are multiplied by it, if it is below 1
BOXES = (0.6, 1.0)  # side of a character's box, in sides of the image
TIGHT_BOXES = (0.85, 1.05)  # in small images, which have no frame
MIN_HALF = 0.02  # of a character, in lengths of the longest stroke: a dot is not enlarged further


@in_chunks
def draw_character(count: int, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    """A few strokes of one round pen, in one ink on an empty ground, that fill a box around the
    middle.

    Heuristic: what is known of handwriting without having seen any. Unlike those of ``draw_pen``,
    strokes bend steadily, so they close loops, and have corners. Who reads handwriting brings each
    character to one size and place first, as MNIST and the postal digits were (LeCun et al. 1998,
    Proceedings of the IEEE 86), so a network that reads it has seen no other: MNIST's fill 20 of
    28 pixels, the postal and the UCI digits all of 16 and of 8. What it is worth is in
    docs/results/real_size_programs.md.
    ``count`` images (B, C, H, W), float32 within the bounds, on the device of ``rng``.
    """
    ground_BC11, ink_BC11 = ground_and_ink(count, spec, rng)
    points_SBM2 = written(count, STROKES[1], rng)
    points_SBM2[..., 0] *= uniform((count, 1), *NARROW, rng).clamp_max_(1)
    gone_BM11 = absent(count, STROKES, rng)
    width_B111 = uniform((count, 1, 1, 1), *PEN_WIDTHS, rng)
    _, height, width = spec.shape
    unit = min(height, width)
    box_B1 = uniform((count, 1), *(TIGHT_BOXES if unit <= SMALL_SIDE else BOXES), rng)
    sides_B2 = torch.cat([box_B1 * (width / unit), box_B1 * (height / unit)], 1)
    fitted_SBM2 = fitted(points_SBM2, gone_BM11, sides_B2 - width_B111.view(-1, 1))
    cover_BMHW = covered(fitted_SBM2, width_B111 - FAR * gone_BM11, spec)
    return torch.lerp(ground_BC11, ink_BC11, cover_BMHW.amax(dim=1, keepdim=True))


def written(count: int, most: int, rng: torch.Generator) -> Tensor:
    """Points (S + 1, B, M, 2) on strokes, each of which starts on the one before or near it."""
    path_SBM2 = _paths(count, most, rng)
    strokes_SB2 = [path_SBM2[:, :, 0]]
    every_B = torch.arange(count, device=rng.device)
    for stroke in range(1, most):
        anywhere_B = torch.randint(SEGMENTS + 1, (count,), generator=rng, device=rng.device)
        from_end_B = uniform((count,), 0, 1, rng) < FROM_END
        start_B2 = strokes_SB2[-1][anywhere_B.masked_fill(from_end_B, SEGMENTS), every_B]
        lifted_B1 = uniform((count, 1), 0, 1, rng) < LIFTED
        start_B2 = start_B2 + uniform((count, 2), -LIFT, LIFT, rng) * lifted_B1
        strokes_SB2.append(path_SBM2[:, :, stroke] + start_B2)
    return torch.stack(strokes_SB2, 2)


def _paths(count: int, most: int, rng: torch.Generator) -> Tensor:
    """Points (S + 1, B, M, 2) on strokes from the origin, of lengths up to 1.

    A stroke's curvature runs straight from one of three knots to the next: two pieces of a
    clothoid, in half of the strokes with a corner.
    """
    one = (count, most)
    first, second, third = CURVATURE * torch.randn(3, *one, generator=rng, device=rng.device)
    along_S11 = torch.linspace(0, 1, SEGMENTS, device=rng.device).view(-1, 1, 1)
    before_SBM = torch.lerp(first, second, 2 * along_S11)
    after_SBM = torch.lerp(second, third, 2 * along_S11 - 1)
    curvature_SBM = torch.where(along_S11 < 0.5, before_SBM, after_SBM)
    corner_BM = uniform(one, *CORNERS, rng) * (uniform(one, 0, 1, rng) < CORNERED)
    corner_BM = torch.where(uniform(one, 0, 1, rng) < 0.5, corner_BM, -corner_BM)
    cornered_SBM = corner_BM * (along_S11 > uniform(one, 0.2, 0.8, rng))
    heading_SBM = uniform(one, 0, 2 * math.pi, rng) + curvature_SBM.cumsum(0) / SEGMENTS
    heading_SBM = heading_SBM + cornered_SBM
    step_BM = uniform(one, *LENGTHS, rng) / SEGMENTS
    steps_SBM2 = torch.stack([heading_SBM.cos() * step_BM, heading_SBM.sin() * step_BM], 3)
    return torch.cat([torch.zeros_like(steps_SBM2[:1]), steps_SBM2.cumsum(0)])


def fitted(points_SBM2: Tensor, gone_BM11: Tensor, room_B2: Tensor) -> Tensor:
    """The points, moved and scaled so that those of strokes that are not gone fill the room around
    the middle on one axis and lie within it on the other; x and y are scaled alike.

    ``room_B2`` is half of it, along x and y.
    """
    gone_BM1 = gone_BM11.squeeze(3)
    least_B2 = points_SBM2.masked_fill(gone_BM1, FAR).amin((0, 2))
    most_B2 = points_SBM2.masked_fill(gone_BM1, -FAR).amax((0, 2))
    half_B2 = ((most_B2 - least_B2) / 2).clamp_min(MIN_HALF)
    scale_B1 = (room_B2 / half_B2).amin(1, keepdim=True)
    middle_B2 = (least_B2 + most_B2) / 2
    return (points_SBM2 - middle_B2.unsqueeze(1)) * scale_B1.unsqueeze(1)
