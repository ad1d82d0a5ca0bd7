"""A program that puts things on a ground, as a camera sees them.

Lumps and polygons, bodies with limbs, and hulls with wheels, in few colours as of photographs, with
a pattern and a light from above, stand on a plain ground, before a texture or below a horizon.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad

from dfme.queries.drawing import in_chunks, log_uniform, pixel_grid, uniform
from dfme.queries.textures import power_law_fields
from dfme.spec import ImageSpec

MOST = 3  # things of an image
SINGLE = 2 / 3  # share of images with one
SIZES = (0.3, 0.9)  # of a thing, in halves of the shorter side
PLACES = (0.4, 0.35)  # how far from the middle a thing stands, across and up, in halves of a side
SWAY = 0.2  # standard deviation of a thing's turn, radians
PARTS = 8  # of a thing, the last before the others
NOWHERE = -9.0  # depth of a part that is not there
CONTRAST = (0.0, 0.8)  # of light and shade
RIM = 0.35  # depth from which on a part is flat, in sizes of the thing
SHADOWS = (0.0, 0.6)  # how much darker the ground is below a thing

CHROMA = ((0.9, 0.1, -1.0), (0.45, -0.9, 0.45))
"""Directions of colour beside grey, yellow against blue and magenta against green: nearly the
principal axes of the colours of photographs (Ruderman, Cronin and Chiao 1998, "Statistics of cone
responses to natural images", Journal of the Optical Society of America A 15)."""
CHROMA_SPREADS = (1.0, 0.45)  # the second varies less
SATURATION = 0.45  # at most; most colours are near grey
GREYS = (0.05, 0.95)
SKY = (0.5, 0.7, 0.95)
GRASS = (0.3, 0.45, 0.18)
EARTH = (0.5, 0.42, 0.3)

BLUR = (0.2, 0.9)  # standard deviation in 32nds of the shorter side
GAMMAS = (0.6, 1.4)
VIGNETTE = 0.12  # at most, how much darker an image is at its shorter edge
GRAIN = (0.003, 0.04)  # standard deviation of the noise of the camera


@in_chunks
@torch.no_grad()
def draw_things(count: int, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    """One to three things on a ground: what most pictures are of, without having seen any.

    Heuristic, after what Baradad et al. 2021 (arXiv 2106.05963) found of drawn training images:
    what copies is likeness to photographs in spectrum and colours, and variety. What each
    ingredient is worth is in docs/results/real_size_programs.md.
    ``count`` images (B, C, H, W), float32 within the bounds, on the device of ``rng``.
    """
    image_BCHW = _grounds(count, spec, rng)
    number_B111 = torch.randint(2, MOST + 1, (count, 1, 1, 1), generator=rng, device=rng.device)
    number_B111 = number_B111.masked_fill(_chance(count, SINGLE, rng), 1)
    for place in range(MOST):
        more_BCHW = _with_a_thing(image_BCHW, spec, rng)
        image_BCHW = torch.where(number_B111 > place, more_BCHW, image_BCHW)
    return _photographed(image_BCHW, spec, rng)


def _chance(count: int, share: float, rng: torch.Generator) -> Tensor:
    """True for this share of the images, (B, 1, 1, 1)."""
    return uniform((count, 1, 1, 1), 0, 1, rng) < share


def palettes(count: int, most: int, channels: int, rng: torch.Generator) -> Tensor:
    """``most`` colours (B, M, C, 1, 1) within 0 and 1 of each image, as of photographs where there
    are three channels: any grey, and a little yellow, blue, magenta or green.
    """
    if channels != 3:
        return uniform((count, most, channels, 1, 1), 0, 1, rng)
    grey_BM1 = uniform((count, most, 1), *GREYS, rng)
    saturation_BM1 = uniform((count, most, 1), 0, 1, rng).square() * SATURATION
    hue_BM2 = torch.randn(count, most, 2, generator=rng, device=rng.device)
    hue_BM2 *= _colour(CHROMA_SPREADS, rng).flatten()
    hue_BM2 /= hue_BM2.norm(dim=2, keepdim=True).clamp_min(1e-6)
    axes_2C = torch.stack([_colour(axis, rng).flatten() for axis in CHROMA])
    colour_BMC = (grey_BM1 + saturation_BM1 * (hue_BM2 @ axes_2C)).clamp(0, 1)
    return colour_BMC.view(count, most, 3, 1, 1)


def _colour(values: tuple[float, ...], rng: torch.Generator) -> Tensor:
    """A constant (1, C, 1, 1), written on the device: a GPU waits for what is sent to it."""
    parts = [torch.full((1, 1, 1, 1), value, device=rng.device) for value in values]
    return torch.cat(parts, 1)


# Grounds


def _grounds(count: int, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    """Within 0 and 1: a third of the grounds plain or a gradient, a third textured, a third with a
    horizon.
    """
    one = (count, 1, 1, 1)
    x_1W, y_H1 = pixel_grid(spec, rng.device)
    colours_BMC11 = palettes(count, 3, spec.shape[0], rng)
    first, second, third = colours_BMC11.unbind(1)
    wide_B1HW, fine_B1HW = (
        power_law_fields(uniform((count,), *exponents, rng), (1, *spec.shape[1:]), rng)
        for exponents in ((0.8, 2.0), (0.5, 1.6))
    )
    angle = uniform(one, 0, 2 * math.pi, rng)
    slope = uniform(one, 0, 0.5, rng)
    ramp = (x_1W * angle.cos() + y_H1 * angle.sin()).mul(slope).add(0.5).clamp(0, 1)
    plain_BCHW = torch.lerp(first, second, ramp)
    patches = (wide_B1HW * uniform(one, 0.5, 3, rng)).sigmoid()
    textured_BCHW = torch.lerp(first, second, patches)
    textured_BCHW = textured_BCHW * (1 + fine_B1HW * log_uniform(one, 0.01, 0.25, rng))
    sky_BCHW = torch.lerp(
        first, second, (y_H1 + 1).mul(0.5).clamp(0, 1) * uniform(one, 0, 0.6, rng)
    )
    land_BC11 = third
    if spec.shape[0] == 3:
        sky_BCHW = _tinted(sky_BCHW, _colour(SKY, rng), rng)
        earth = torch.where(_chance(count, 0.5, rng), _colour(GRASS, rng), _colour(EARTH, rng))
        land_BC11 = _tinted(third, earth, rng)
    sky_BCHW = sky_BCHW * (1 + wide_B1HW * log_uniform(one, 0.01, 0.1, rng))
    land_BCHW = land_BC11 * (1 + fine_B1HW * log_uniform(one, 0.02, 0.3, rng))
    height = uniform(one, -0.3, 0.9, rng) + uniform(one, -0.1, 0.1, rng) * x_1W
    below = y_H1 - height + wide_B1HW * uniform(one, 0, 0.15, rng)
    horizon_BCHW = torch.lerp(sky_BCHW, land_BCHW, (below * log_uniform(one, 2, 30, rng)).sigmoid())
    kind = uniform(one, 0, 3, rng)
    flat_BCHW = torch.where(kind < 1, plain_BCHW, textured_BCHW)
    return torch.where(kind < 2, flat_BCHW, horizon_BCHW).clamp(0, 1)


def _tinted(colour: Tensor, tint: Tensor, rng: torch.Generator) -> Tensor:
    """Half of the images' colours are more or less the tint, darker or lighter."""
    one = (len(colour), 1, 1, 1)
    share = uniform(one, 0.3, 1, rng) * _chance(len(colour), 0.5, rng)
    return torch.lerp(colour, tint * uniform(one, 0.4, 1.2, rng), share)


# Shapes: how deep a place lies within each part of a thing, (B, P, H, W), in sizes of the thing;
# outside it is negative. x and y (B, H, W) are the place, y downwards.


def lumps(x_BHW: Tensor, y_BHW: Tensor, rng: torch.Generator) -> Tensor:
    """One part: an outline of six random waves, a polygon of any sharpness, or a star."""
    one = (len(x_BHW), 1, 1)
    radius_BHW = x_BHW.hypot(y_BHW)
    angle_BHW = torch.atan2(y_BHW, x_BHW)
    waves_BHW = torch.zeros_like(angle_BHW)
    for wave in range(1, 7):
        phase = uniform(one, 0, 2 * math.pi, rng)
        waves_BHW += uniform(one, -0.35, 0.35, rng) / wave * (wave * angle_BHW + phase).cos()
    corners = torch.randint(3, 9, one, generator=rng, device=rng.device).float()
    half = math.pi / corners
    side = half.cos() / (angle_BHW.remainder(2 * half) - half).cos()
    polygon_BHW = 0.9 * side ** uniform(one, 0, 1.2, rng)
    star_BHW = 0.65 + 0.35 * (corners * angle_BHW).cos()
    kind = uniform(one, 0, 1, rng)
    straight_BHW = torch.where(kind < 0.85, polygon_BHW, star_BHW)
    edge_BHW = torch.where(kind < 0.55, 0.8 * waves_BHW.exp(), straight_BHW)
    return (edge_BHW - radius_BHW).unsqueeze(1)


def bodies(x_BHW: Tensor, y_BHW: Tensor, rng: torch.Generator) -> Tensor:
    """A trunk, a neck, a head, up to four limbs and a tail: all of them thick lines."""
    one = (len(x_BHW), 1, 1)

    def between(low: float, high: float) -> Tensor:
        return uniform(one, low, high, rng)

    reach = between(0.2, 0.55)
    tilt = between(-0.25, 0.25)
    thick = between(0.14, 0.34)
    head = (reach + between(-0.1, 0.4), tilt - between(0.05, 0.6))
    skull = between(0.1, 0.25)
    parts = [
        _limb(x_BHW, y_BHW, (-reach, -tilt), (reach, tilt), (thick, thick * between(0.6, 1.2))),
        _limb(x_BHW, y_BHW, (reach, tilt), head, (thick * between(0.4, 0.8), 0.7 * skull)),
    ]
    muzzle = (head[0] + between(-0.2, 0.35), head[1] + between(-0.1, 0.2))
    parts.append(_limb(x_BHW, y_BHW, head, muzzle, (skull, skull * between(0.4, 1))))
    length = between(0.25, 0.7)
    thin = between(0.04, 0.1)
    slant = between(-0.2, 0.2)
    for place in (-1.0, -0.6, 0.6, 1.0):
        hip = (place * reach + between(-0.05, 0.05), tilt * place)
        foot = (hip[0] + slant + between(-0.12, 0.12), hip[1] + length)
        leg_BHW = _limb(x_BHW, y_BHW, hip, foot, (1.4 * thin, thin))
        parts.append(_unless(leg_BHW, 0.25, rng))
    end = (-reach - between(0.1, 0.6), between(-0.5, 0.4) - tilt)
    widths = (between(0.03, 0.12), between(0.02, 0.15))
    tail_BHW = _limb(x_BHW, y_BHW, (-reach, -tilt), end, widths)
    parts.append(_unless(tail_BHW, 0.4, rng))
    return torch.stack(parts, 1)


def hulls(x_BHW: Tensor, y_BHW: Tensor, rng: torch.Generator) -> Tensor:
    """A hull, a cabin with a window, two wheels, a mast or a wing, and a band."""
    one = (len(x_BHW), 1, 1)

    def between(low: float, high: float) -> Tensor:
        return uniform(one, low, high, rng)

    wide = between(0.5, 0.95)
    high = between(0.12, 0.4)
    nought = torch.zeros_like(wide)
    tapered_BHW = x_BHW * (1 + between(-0.5, 0.5) * y_BHW)
    round_hull = torch.minimum(between(0.02, 0.15), high)
    parts = [_box(tapered_BHW, y_BHW, (nought, nought), (wide, high), round_hull)]
    cabin = (wide * between(0.25, 0.8), between(0.12, 0.35))
    middle = (wide * between(-0.4, 0.4), -high - 0.8 * cabin[1])
    slanted_BHW = x_BHW + between(-0.6, 0.6) * (y_BHW + high)
    cabin_BHW = _box(slanted_BHW, y_BHW, middle, cabin, between(0.01, 0.1))
    pane = (cabin[0] * between(0.5, 0.85), cabin[1] * between(0.4, 0.7))
    window = (middle[0] + between(-0.1, 0.1), middle[1])
    pane_BHW = _box(slanted_BHW, y_BHW, window, pane, between(0.01, 0.05))
    parts += [_unless(cabin_BHW, 0.2, rng), _unless(pane_BHW, 0.3, rng)]
    wheel = between(0.1, 0.24)
    spread = wide * between(0.4, 0.85)
    both_B2HW = torch.stack(
        [wheel - (x_BHW - side * spread).hypot(y_BHW - high) for side in (-1, 1)], 1
    )
    parts += _unless(both_B2HW, 0.35, rng).unbind(1)
    top = (between(-0.9, 0.9), between(-0.9, 0.9))
    widths = (between(0.03, 0.1), between(0.02, 0.08))
    wing_BHW = _limb(x_BHW, y_BHW, (between(-0.5, 0.5), nought), top, widths)
    parts.append(_unless(wing_BHW, 0.5, rng))
    band = (wide * between(0.7, 1), high * between(0.1, 0.35))
    band_BHW = _box(x_BHW, y_BHW, (nought, between(-0.1, 0.1)), band, between(0, 0.03))
    parts.append(_unless(band_BHW, 0.5, rng))
    return torch.stack(parts, 1)


Pair = tuple[Tensor, Tensor]


def _unless(depth: Tensor, share: float, rng: torch.Generator) -> Tensor:
    """The part, but for this share of the images."""
    one = (len(depth), *[1] * (depth.dim() - 1))
    return depth.masked_fill(uniform(one, 0, 1, rng) < share, NOWHERE)


def _limb(x_BHW: Tensor, y_BHW: Tensor, start: Pair, end: Pair, widths: Pair) -> Tensor:
    """A line from one place to another, half as wide as said at both ends, which are round."""
    along_x = end[0] - start[0]
    along_y = end[1] - start[1]
    squared = (along_x.square() + along_y.square()).clamp_min(1e-9)
    from_x = x_BHW - start[0]
    from_y = y_BHW - start[1]
    share_BHW = ((from_x * along_x + from_y * along_y) / squared).clamp(0, 1)
    off_BHW = (from_x - share_BHW * along_x).hypot(from_y - share_BHW * along_y)
    return torch.lerp(widths[0], widths[1], share_BHW) - off_BHW


def _box(x_BHW: Tensor, y_BHW: Tensor, middle: Pair, halves: Pair, rounded: Tensor) -> Tensor:
    """A box with rounded corners: the distance to the nearest point of its edge."""
    off_x = (x_BHW - middle[0]).abs() - halves[0] + rounded
    off_y = (y_BHW - middle[1]).abs() - halves[1] + rounded
    outside = off_x.clamp_min(0).hypot(off_y.clamp_min(0))
    return rounded - outside - torch.maximum(off_x, off_y).clamp_max(0)


SHAPES: tuple[Callable[[Tensor, Tensor, torch.Generator], Tensor], ...] = (lumps, bodies, hulls)


# Things


def _with_a_thing(image_BCHW: Tensor, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    """The images with one more thing each, and its shadow on what is behind it."""
    count = len(image_BCHW)
    one = (count, 1, 1)
    x_1W, y_H1 = pixel_grid(spec, rng.device)
    size = uniform(one, *SIZES, rng)
    from_x = x_1W - uniform(one, -PLACES[0], PLACES[0], rng) * x_1W.amax()
    from_y = y_H1 - uniform(one, -PLACES[1], PLACES[1], rng) * y_H1.amax()
    turn = SWAY * torch.randn(one, generator=rng, device=rng.device)
    facing = torch.where(uniform(one, 0, 1, rng) < 0.5, 1.0, -1.0)
    aspect = log_uniform(one, 0.75, 1.33, rng)
    x_BHW = (from_x * turn.cos() + from_y * turn.sin()) * (facing * aspect / size)
    y_BHW = (from_y * turn.cos() - from_x * turn.sin()) / (aspect * size)
    depth_BPHW = _depths(x_BHW, y_BHW, rng)
    pixels = (size * (min(spec.shape[1:]) / 2)).unsqueeze(1)
    cover_BPHW = (depth_BPHW * pixels + 0.5).clamp(0, 1)
    paint_BCHW = _painted(cover_BPHW, spec, rng) * _lit(depth_BPHW, pixels, rng)
    shadow_BHW = torch.exp(-(1.5 * x_BHW).square() - (3 * (y_BHW - 0.7)).square())
    dark_BHW = shadow_BHW * uniform(one, *SHADOWS, rng)
    behind_BCHW = image_BCHW * (1 - dark_BHW.unsqueeze(1))
    return torch.lerp(behind_BCHW, paint_BCHW.clamp(0, 1), cover_BPHW.amax(1, keepdim=True))


def _depths(x_BHW: Tensor, y_BHW: Tensor, rng: torch.Generator) -> Tensor:
    """Depths of a shape of any kind, (B, P, H, W)."""
    kind_B = torch.randint(len(SHAPES), (len(x_BHW), 1, 1, 1), generator=rng, device=rng.device)
    depth_BPHW = x_BHW.new_full((len(x_BHW), PARTS, *x_BHW.shape[1:]), NOWHERE)
    for kind, shape in enumerate(SHAPES):
        some_BPHW = shape(x_BHW, y_BHW, rng)
        room = depth_BPHW[:, : some_BPHW.shape[1]]
        room.copy_(torch.where(kind_B == kind, some_BPHW, room))
    return depth_BPHW


def _painted(cover_BPHW: Tensor, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    """Paint of a thing (B, C, H, W), wherever it is: few colours among its parts, and a pattern."""
    count = len(cover_BPHW)
    colours_BMC11 = palettes(count, 3, spec.shape[0], rng)
    colour_BPC11 = _colours_of_parts(colours_BMC11, rng)
    paint_BCHW = colour_BPC11[:, 0].expand(-1, -1, *spec.shape[1:])
    for part in range(1, PARTS):
        paint_BCHW = torch.lerp(paint_BCHW, colour_BPC11[:, part], cover_BPHW[:, part, None])
    share_B1HW, relief_B1HW = _patterns(count, spec, rng)
    return torch.lerp(paint_BCHW, colours_BMC11[:, 1], 0.9 * share_B1HW) * (1 + relief_B1HW)


def _colours_of_parts(colours_BMC11: Tensor, rng: torch.Generator) -> Tensor:
    """Half of the things have parts of any of their colours; of the others one part in five has
    another, (B, P, C, 1, 1).
    """
    count, most, channels = colours_BMC11.shape[:3]
    some_BP = torch.randint(most, (count, PARTS), generator=rng, device=rng.device)
    few_BP = (uniform((count, PARTS), 0, 1, rng) < 0.2) * (most - 1)
    which_BP = torch.where(uniform((count, 1), 0, 1, rng) < 0.5, some_BP, few_BP)
    index_BPC = which_BP.unsqueeze(2).expand(-1, -1, channels)
    return colours_BMC11.flatten(2).gather(1, index_BPC)[..., None, None]


def _patterns(count: int, spec: ImageSpec, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Share of a second colour, in stripes, spots, patches or not at all, and a rough surface, (B,
    1, H, W) both.
    """
    one = (count, 1, 1, 1)
    x_1W, y_H1 = pixel_grid(spec, rng.device)
    exponent_B = uniform((count,), 0.7, 1.8, rng)
    field_B1HW = power_law_fields(exponent_B, (1, *spec.shape[1:]), rng)
    angle = uniform(one, 0, math.pi, rng)
    often = log_uniform(one, 4, 20, rng)
    bend = field_B1HW * uniform(one, 0, 1.5, rng)
    across = (often * (x_1W * angle.cos() + y_H1 * angle.sin()) + bend).sin()
    along = (often * (y_H1 * angle.cos() - x_1W * angle.sin()) + bend).sin()
    stripes = (2.5 * across).sigmoid()
    spots = (4 * (across * along - 0.2)).sigmoid()
    patches = (4 * field_B1HW).sigmoid()
    kind = uniform(one, 0, 1, rng)
    regular = torch.where(kind < 0.2, stripes, spots)
    share = torch.where(kind < 0.35, regular, patches).masked_fill(kind > 0.6, 0)
    return share, field_B1HW * log_uniform(one, 0.02, 0.3, rng)


def _lit(depth_BPHW: Tensor, pixels: Tensor, rng: torch.Generator) -> Tensor:
    """Light on round parts (B, 1, H, W), 1 where they are flat: Lambert's law, a light from above
    and from any side.
    """
    one = (len(depth_BPHW), 1, 1, 1)
    rise = 1 - depth_BPHW.clamp(0, RIM).amax(1, keepdim=True) / RIM
    height = (1 - rise.square()).sqrt()
    across = _slope(height, 3) * (RIM * pixels)
    down = _slope(height, 2) * (RIM * pixels)
    steep = (1 + across.square() + down.square()).rsqrt()
    light = (0.6 + 0.7 * (down + uniform(one, -1, 1, rng) * across)) * steep
    return 1 + 1.5 * uniform(one, *CONTRAST, rng) * (light - 0.6)


def _slope(height_B1HW: Tensor, axis: int) -> Tensor:
    """Half of the difference of a pixel's two neighbours along an axis; the edge repeats itself."""
    before = torch.cat([height_B1HW.narrow(axis, 0, 1), height_B1HW], axis)
    after = torch.cat([height_B1HW, height_B1HW.narrow(axis, -1, 1)], axis)
    size = height_B1HW.shape[axis]
    return (after.narrow(axis, 1, size) - before.narrow(axis, 0, size)) / 2


# Camera


def _photographed(image_BCHW: Tensor, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    """Out of focus, in haze, darker at the edges, of any exposure and white balance, with noise."""
    count, channels = image_BCHW.shape[:2]
    one = (count, 1, 1, 1)
    x_1W, y_H1 = pixel_grid(spec, rng.device)
    sigma_B = log_uniform((count,), *BLUR, rng) * (min(spec.shape[1:]) / 32)
    reach = math.ceil(2.5 * BLUR[1] * min(spec.shape[1:]) / 32)
    seen_BCHW = blurred(image_BCHW, sigma_B, reach)
    haze = 0.6 * uniform(one, 0, 1, rng) ** 3
    seen_BCHW = torch.lerp(seen_BCHW, uniform(one, 0.3, 0.9, rng), haze)
    corner = (x_1W.square() + y_H1.square()).clamp_max(2)
    seen_BCHW = seen_BCHW * (1 - uniform(one, 0, VIGNETTE, rng) * corner)
    seen_BCHW = seen_BCHW.clamp(1e-4, 1) ** log_uniform(one, *GAMMAS, rng)
    seen_BCHW *= uniform((count, channels, 1, 1), 0.9, 1.1, rng)
    noise_BCHW = torch.randn(seen_BCHW.shape, generator=rng, device=rng.device)
    return seen_BCHW.addcmul_(noise_BCHW, log_uniform(one, *GRAIN, rng))


def blurred(image_BCHW: Tensor, sigma_B: Tensor, reach: int) -> Tensor:
    """Each image under a Gaussian of its own deviation, in pixels, cut off after ``reach``; what
    is outside repeats the edge.
    """
    count, channels, height, width = image_BCHW.shape
    offset_R = torch.arange(-reach, reach + 1, device=image_BCHW.device)
    kernel_BR = torch.exp(-0.5 * (offset_R / sigma_B.clamp_min(0.05).unsqueeze(1)).square())
    kernel_BR /= kernel_BR.sum(1, keepdim=True)
    kernel_NR = kernel_BR.repeat_interleave(channels, 0)
    groups = count * channels
    edged = pad(image_BCHW, [reach] * 4, mode="replicate").flatten(0, 1).unsqueeze(0)
    rows = conv2d(edged, kernel_NR.view(groups, 1, 1, -1), groups=groups)
    both = conv2d(rows, kernel_NR.view(groups, 1, -1, 1), groups=groups)
    return both.view(count, channels, height, width)
