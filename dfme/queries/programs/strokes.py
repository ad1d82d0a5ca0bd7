"""Strokes: a few curved lines of random course, width and colour on a ground, as of a pen or a
brush.

No paper. What leaves lack: thin things that bend and join, which letters and the outlines of things
are made of. The ranges are heuristic. Tried on three tasks of small images, two seeds each: half
strokes and half leaves gave 3 points of accuracy more than leaves alone on textured colour shapes,
2 on grey shapes, and as many on digits.
"""

from itertools import pairwise

import torch
from torch import Tensor

from dfme.queries.programs.canvas import pixel_grid, uniform
from dfme.queries.programs.heaps import FAR, Range, Things, absent, heap
from dfme.spec import ImageSpec

NUMBERS = ((1, 2), (3, 4), (5, 5))  # strokes of an image: a third of the images has each
WIDTHS = (0.06, 0.24)  # half of a stroke's width, in halves of the shorter side
JOINED = 0.6  # share of strokes that start where the one before them ended
INKED = 0.7  # share of strokes in the one ink of their image; the others have a colour of their own
SEGMENTS = 6  # straight ones, that stand for a curve


def draw(count: int, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    """``count`` images (B, C, H, W), float32 within the bounds, on the device of ``rng``."""
    return heap(Things(NUMBERS, _cover, _colours), count, spec, rng)


def _colours(count: int, most: int, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    ink_B1C11 = uniform((count, 1, spec.shape[0], 1, 1), 0, 1, rng)
    own_BMC11 = uniform((count, most, spec.shape[0], 1, 1), 0, 1, rng)
    return torch.where(uniform((count, most, 1, 1, 1), 0, 1, rng) < INKED, ink_B1C11, own_BMC11)


def _cover(count: int, numbers: Range, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    """Share of each pixel that each stroke covers, (B, M, H, W) within 0 and 1."""
    points_SBM2 = curves(count, numbers[1], spec, rng, JOINED)
    return lines(points_SBM2, uniform((count, numbers[1], 1, 1), *WIDTHS, rng), numbers, spec, rng)


def lines(
    points_SBM2: Tensor, width_BM11: Tensor, numbers: Range, spec: ImageSpec, rng: torch.Generator
) -> Tensor:
    """Share of each pixel that lines through the points cover, (B, M, H, W): edges are a pixel
    wide.

    ``width_BM11`` is half of theirs, in halves of the shorter side.
    """
    squared_BMHW = _nearest(points_SBM2, spec)
    width_BM11 = width_BM11 - FAR * absent(len(squared_BMHW), numbers, rng)
    pixels = min(spec.shape[1:]) / 2
    return squared_BMHW.sqrt_().sub_(width_BM11).mul_(-pixels).add_(0.5).clamp_(0, 1)


def curves(count: int, most: int, spec: ImageSpec, rng: torch.Generator, share: float) -> Tensor:
    """Points (S + 1, B, M, 2) on quadratic Bezier curves, whose three points lie anywhere in the
    image.

    This ``share`` of curves start where the one before them ended.
    """
    _, height, width = spec.shape
    points_3BM2 = uniform((3, count, most, 2), -1, 1, rng)
    points_3BM2[..., int(height > width)] *= max(height, width) / min(height, width)
    start, middle, end = points_3BM2.unbind()
    joined = uniform((count, most, 1), 0, 1, rng) < share
    joined[:, 0] = False
    start = torch.where(joined, end.roll(1, dims=1), start)
    share_S111 = torch.linspace(0, 1, SEGMENTS + 1, device=rng.device).view(-1, 1, 1, 1)
    return torch.lerp(
        torch.lerp(start, middle, share_S111), torch.lerp(middle, end, share_S111), share_S111
    )


def _nearest(points_SBM2: Tensor, spec: ImageSpec) -> Tensor:
    """The square of every pixel's distance to the nearest segment between successive points, (B, M,
    H, W).
    """
    x_1W, y_H1 = pixel_grid(spec, points_SBM2.device)
    nearest_BMHW: Tensor | None = None
    for first_BM2, last_BM2 in pairwise(points_SBM2.unbind()):
        (px, py), (dx, dy) = (
            pair[..., None, None].unbind(2) for pair in (first_BM2, last_BM2 - first_BM2)
        )
        length = (dx.square() + dy.square()).clamp_min(1e-12)
        along_x = x_1W - px
        along_y = y_H1 - py
        # How far along the segment the foot of the perpendicular lies, but not beyond its ends.
        foot_BMHW = (along_x * (dx / length)).add(along_y * (dy / length)).clamp_(0, 1)
        off_x = torch.addcmul(along_x, foot_BMHW, dx, value=-1)
        off_y = torch.addcmul(along_y, foot_BMHW, dy, value=-1)
        squared_BMHW = off_x.square_().addcmul_(off_y, off_y)
        nearest_BMHW = (
            squared_BMHW if nearest_BMHW is None else torch.minimum(nearest_BMHW, squared_BMHW)
        )
    assert nearest_BMHW is not None
    return nearest_BMHW
