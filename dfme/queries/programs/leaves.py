"""Dead leaves: overlapping discs, rectangles and diamonds of random size, place, turn, aspect and
colour.

Lee, Mumford and Huang 2001, "Occlusion models for natural images", International Journal of
Computer Vision 41; as training data: Baradad et al. 2021 (arXiv 2106.05963). There leaves fall
until nothing else is seen; here few fall on a ground of one colour or of a gradient, since small
pictures hold few things. The ranges are heuristic. Tried on three tasks of small images, two seeds
each: gradients on half of the grounds gained 0 to 2 points of accuracy over plain ones, 1/f noise
on a quarter cost up to 4.
"""

import math

import torch
from torch import Tensor

from dfme.queries.programs.canvas import log_uniform, pixel_grid, uniform
from dfme.queries.programs.heaps import FAR, Range, Things, absent, heap
from dfme.spec import ImageSpec

NUMBERS = (
    (1, 5),
    (6, 10),
    (11, 15),
    (16, 20),
)  # leaves of an image: a quarter of the images has each
RADII = (0.16, 1.2)  # in halves of the shorter side; a power law, as things in photographs have
ASPECTS = (math.exp(-1), math.exp(1))  # one radius over their geometric mean


def draw(count: int, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    """``count`` images (B, C, H, W), float32 within the bounds, on the device of ``rng``."""
    return heap(Things(NUMBERS, cover, _colours), count, spec, rng)


def _colours(count: int, most: int, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    return uniform((count, most, spec.shape[0], 1, 1), 0, 1, rng)


def cover(count: int, numbers: Range, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    """Share of each pixel that each leaf covers, (B, M, H, W) within 0 and 1: edges are a pixel
    wide.

    With a and b the coordinates in the leaf's own axes and radii, not negative, a pixel lies inside
    where max(a, b) < 1 (rectangle), a**2 + b**2 < 1 (disc) or a + b < 1 (diamond). With h = max(a,
    b) and l = min(a, b), all three squares are h**2 + l * (s * l + d * h) for (s, d) of (0, 0), (1,
    0) and (1, 2).
    """
    one = (count, numbers[1], 1, 1)
    x_1W, y_H1 = pixel_grid(spec, rng.device)
    across, up = _axes(one, rng)
    centre_x, centre_y = _centres(one, numbers, spec, rng)
    angle = uniform(one, 0, math.pi, rng)
    dx_BM1W = x_1W - centre_x
    dy_BMH1 = y_H1 - centre_y
    a = (dx_BM1W * (angle.cos() / across)).add(dy_BMH1 * (angle.sin() / across)).abs_()
    b = (dy_BMH1 * (angle.cos() / up)).sub(dx_BM1W * (angle.sin() / up)).abs_()
    high = torch.maximum(a, b)
    low = torch.minimum(a, b, out=a)
    kind = uniform(one, 0, 3, rng)
    square = (kind < 2).float()
    double = 2 * (kind < 1).float()
    squared = torch.mul(low, square, out=b).addcmul_(high, double).mul_(low).addcmul_(high, high)
    # The distance to the edge, in pixels, along the shorter radius.
    pixels = torch.minimum(across, up) * (min(spec.shape[1:]) / 2)
    return squared.sqrt_().mul_(-pixels).add_(pixels + 0.5).clamp_(0, 1)


def _axes(one: tuple[int, ...], rng: torch.Generator) -> tuple[Tensor, Tensor]:
    radius = log_uniform(one, *RADII, rng)
    aspect = log_uniform(one, *ASPECTS, rng)
    return radius * aspect, radius / aspect


def _centres(
    one: tuple[int, ...], numbers: Range, spec: ImageSpec, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Anywhere in the image; leaves beyond an image's own number lie far outside."""
    _, height, width = spec.shape
    unit = min(height, width)
    x = uniform(one, -width / unit, width / unit, rng)
    return x + FAR * absent(one[0], numbers, rng), uniform(one, -height / unit, height / unit, rng)
