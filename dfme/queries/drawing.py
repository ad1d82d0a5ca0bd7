"""Programs that draw things in one colour each: gradients, leaves, strokes, pen strokes.

What is common to all programs stands first: pixel coordinates, random numbers per image, the way to
the bounds.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import interpolate

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


ENLARGED = 256  # images at once, of 64x64 pixels; fewer larger ones


def enlarged(small_BCHW: Tensor, spec: ImageSpec) -> Tensor:
    """Images at the size of ``spec``, by bicubic interpolation, clamped to the bounds; those that
    have it are returned as they are.

    The interpolation is separable, with Keys' kernel of a = -1/2 (1981, IEEE Transactions on
    Acoustics, Speech, and Signal Processing 29), as torch takes it with ``antialias``.
    """
    height, width = spec.shape[1:]
    if small_BCHW.shape[2:] == (height, width):
        return small_BCHW
    images_BCHW = small_BCHW.new_empty(len(small_BCHW), *spec.shape)
    chunk = spec.at_once(ENLARGED)
    for start in range(0, len(small_BCHW), chunk):
        images_BCHW[start : start + chunk] = interpolate(
            small_BCHW[start : start + chunk], (height, width), mode="bicubic", antialias=True
        )
    return images_BCHW.clamp_(*spec.bounds)


LENGTHS = (0.25, 4.0)  # of the way from one colour to the other, in halves of the shorter side


@in_chunks
def draw_ramps(count: int, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    """Colour gradients: from one random colour to another along a line or from a point, once or in
    waves.

    No paper: the smooth end of what a picture can be, where leaves are all edges.
    ``count`` images (B, C, H, W), float32 within the bounds, on the device of ``rng``.
    """
    one = (count, 1, 1)
    channels = spec.shape[0]
    position_BHW = _position(count, spec, rng).div_(log_uniform(one, *LENGTHS, rng))
    phase_B11 = uniform(one, -1, 1, rng)
    ramp_BHW = (position_BHW + phase_B11).mul_(0.5).add_(0.5).clamp_(0, 1)
    wave_BHW = position_BHW.add_(phase_B11).mul_(math.pi).sin_().mul_(0.5).add_(0.5)
    share_BHW = torch.where(uniform(one, 0, 1, rng) < 0.5, ramp_BHW, wave_BHW)
    first, second = uniform((2, count, channels, 1, 1), 0, 1, rng).unbind()
    return torch.lerp(first, second, share_BHW.unsqueeze(1))


def _position(count: int, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    """Where a pixel stands: along a line of any direction, or away from any point of the image, (B,
    H, W).
    """
    one = (count, 1, 1)
    x_1W, y_H1 = pixel_grid(spec, rng.device)
    centre_x = uniform(one, -1, 1, rng) * x_1W.amax()
    centre_y = uniform(one, -1, 1, rng) * y_H1.amax()
    angle = uniform(one, 0, 2 * math.pi, rng)
    dx_B1W = x_1W - centre_x
    dy_BH1 = y_H1 - centre_y
    along_BHW = dx_B1W * angle.cos() + dy_BH1 * angle.sin()
    return torch.where(uniform(one, 0, 1, rng) < 0.5, along_BHW, dx_B1W.hypot(dy_BH1))


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
    """Things that fall on a ground one after the other, each hiding what is below it.

    ``count`` images (B, C, H, W), float32 within the bounds, on the device of ``rng``.
    """
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
        [flat_BC11.expand(-1, *spec.shape), draw_ramps(half, ImageSpec(spec.shape), rng)]
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


STROKES = ((1, 2), (3, 4), (5, 5))  # strokes of an image: a third of the images has each
STROKE_WIDTHS = (0.06, 0.24)  # half of a stroke's width, in halves of the shorter side
JOINED_STROKES = 0.6  # share of strokes that start where the one before them ended
INKED = 0.7  # share of strokes in the one ink of their image; the others have a colour of their own
SEGMENTS = 6  # straight ones, that stand for a curve


def draw_strokes(count: int, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    """A few curved lines of random course, width and colour on a ground, as of a pen or a brush.

    No paper. What leaves lack: thin things that bend and join, which letters and the outlines of
    things are made of. The ranges are heuristic. Tried on three tasks of small images, two seeds
    each: half strokes and half leaves gave 3 points of accuracy more than leaves alone on textured
    colour shapes, 2 on grey shapes, and as many on digits.
    """
    return heap(Things(STROKES, _cover_strokes, _inks), count, spec, rng)


def _inks(count: int, most: int, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    ink_B1C11 = uniform((count, 1, spec.shape[0], 1, 1), 0, 1, rng)
    own_BMC11 = uniform((count, most, spec.shape[0], 1, 1), 0, 1, rng)
    return torch.where(uniform((count, most, 1, 1, 1), 0, 1, rng) < INKED, ink_B1C11, own_BMC11)


def _cover_strokes(count: int, numbers: Range, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    """Share of each pixel that each stroke covers, (B, M, H, W) within 0 and 1."""
    points_SBM2 = curves(count, numbers[1], spec, rng, JOINED_STROKES)
    return lines(
        points_SBM2, uniform((count, numbers[1], 1, 1), *STROKE_WIDTHS, rng), numbers, spec, rng
    )


def lines(
    points_SBM2: Tensor, width_BM11: Tensor, numbers: Range, spec: ImageSpec, rng: torch.Generator
) -> Tensor:
    """Share of each pixel that lines through the points cover, (B, M, H, W): edges are a pixel
    wide.

    ``width_BM11`` is half of theirs, in halves of the shorter side.
    """
    return covered(points_SBM2, width_BM11 - FAR * absent(len(width_BM11), numbers, rng), spec)


def covered(points_SBM2: Tensor, width_BM11: Tensor, spec: ImageSpec) -> Tensor:
    """As ``lines``, of every curve; one of a negative width covers nothing."""
    pixels = min(spec.shape[1:]) / 2
    distance_BMHW = _nearest(points_SBM2, spec).sqrt_()
    return distance_BMHW.sub_(width_BM11).mul_(-pixels).add_(0.5).clamp_(0, 1)


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


CURVES = (1, 4)  # of an image
PEN_WIDTHS = (0.05, 0.17)  # half of the pen's width, in halves of the shorter side
JOINED_CURVES = 0.65  # share of curves that start where the one before them ended
BOXES = (0.6, 1.0)  # half of the box's side, in halves of the image's
LIGHT = 0.75  # share of grey images whose ink is lighter than the ground
INK_CONTRASTS = (0.7, 1.0)  # of ink and ground in grey


@in_chunks
def draw_pen(count: int, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    """A few curves by one round pen, most joined end to start, in one ink on an empty ground.

    Heuristic: what is known of handwriting without having seen any, of whatever script. Unlike
    ``draw_strokes``, an image has one pen and one ink, its ground is empty, and its curves lie
    within a box around the middle. Of grey images most are light on dark; coloured ones have any
    two colours. What it is worth is in docs/results/real_size_programs.md.
    """
    ground_BC11, ink_BC11 = ground_and_ink(count, spec, rng)
    box_B11 = uniform((count, 1, 1), *BOXES, rng)
    width_B111 = uniform((count, 1, 1, 1), *PEN_WIDTHS, rng)
    points_SBM2 = curves(count, CURVES[1], spec, rng, JOINED_CURVES) * box_B11
    cover_BMHW = lines(points_SBM2, width_B111, CURVES, spec, rng)
    return torch.lerp(ground_BC11, ink_BC11, cover_BMHW.amax(dim=1, keepdim=True))


def ground_and_ink(count: int, spec: ImageSpec, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """The two colours of each image, (B, C, 1, 1) within 0 and 1; grey ones are far apart."""
    ground_BC11, ink_BC11 = uniform((2, count, spec.shape[0], 1, 1), 0, 1, rng).unbind()
    if spec.shape[0] == 1:
        ground_BC11 = (ground_BC11 > LIGHT).float()
        contrast_BC11 = ink_BC11 * (INK_CONTRASTS[1] - INK_CONTRASTS[0]) + INK_CONTRASTS[0]
        ink_BC11 = torch.lerp(ground_BC11, 1 - ground_BC11, contrast_BC11)
    return ground_BC11, ink_BC11


LEAVES = (
    (1, 5),
    (6, 10),
    (11, 15),
    (16, 20),
)  # leaves of an image: a quarter of the images has each
RADII = (0.16, 1.2)  # in halves of the shorter side; a power law, as things in photographs have
ASPECTS = (math.exp(-1), math.exp(1))  # one radius over their geometric mean


def draw_leaves(count: int, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    """Overlapping discs, rectangles and diamonds of random size, place, turn, aspect and colour.

    Dead leaves: Lee, Mumford and Huang 2001, "Occlusion models for natural images", International
    Journal of Computer Vision 41; as training data: Baradad et al. 2021 (arXiv 2106.05963). There
    leaves fall until nothing else is seen; here few fall on a ground of one colour or of a
    gradient, since small pictures hold few things. The ranges are heuristic. Tried on three tasks
    of small images, two seeds each: gradients on half of the grounds gained 0 to 2 points of
    accuracy over plain ones, 1/f noise on a quarter cost up to 4.
    """
    return heap(Things(LEAVES, cover_leaves, _leaf_colours), count, spec, rng)


def _leaf_colours(count: int, most: int, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    return uniform((count, most, spec.shape[0], 1, 1), 0, 1, rng)


def cover_leaves(count: int, numbers: Range, spec: ImageSpec, rng: torch.Generator) -> Tensor:
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
