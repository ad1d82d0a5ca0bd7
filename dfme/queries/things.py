"""A program that puts things on a ground, as a camera sees them.

Lumps and polygons, bodies with limbs, hulls with wheels and faces, in few colours as of
photographs, with a pattern and a light from above, stand on a plain ground, before a texture or
below a horizon.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad

from dfme.queries.drawing import in_chunks, log_uniform, pixel_grid, uniform
from dfme.queries.silhouettes import MAX_PARTS, NOWHERE, SHAPES
from dfme.queries.textures import power_law_fields
from dfme.spec import ImageSpec

CUT_OUTS = 0.2  # share of images that no camera saw: things on white, as in catalogues
MAX_THINGS = 3  # things of an image
SINGLE = 2 / 3  # share of images with one
SIZES = (0.6, 1.4)  # of a thing, in halves of the shorter side
PLACES = (0.4, 0.35)  # how far from the middle a thing stands, across and up, in halves of a side
SWAY = 0.2  # standard deviation of a thing's turn, radians
CONTRAST = (0.0, 0.8)  # of light and shade
RIM = 0.35  # depth from which on a part is flat, in sizes of the thing
DARK = 0.3  # of the last colour of a thing
SHADOWS = (0.0, 0.6)  # how much darker the ground is below a thing

CHROMA = ((0.9, 0.1, -1.0), (0.45, -0.9, 0.45))
"""Directions of colour beside grey, yellow against blue and magenta against green: nearly the
principal axes of the colours of photographs (Ruderman, Cronin and Chiao 1998, "Statistics of cone
responses to natural images", Journal of the Optical Society of America A 15)."""
CHROMA_SPREADS = (1.0, 0.45)  # the second varies less
SATURATION = 0.6  # at most; most colours are near grey
GREYS = (0.05, 0.95)
SKY = (0.5, 0.7, 0.95)
GRASS = (0.3, 0.45, 0.18)
EARTH = (0.5, 0.42, 0.3)

BLUR = (0.2, 0.9)  # standard deviation in 32nds of the shorter side
SPREADS = (0.15, 0.38)  # of an image's greys, standard deviation
GAINS = (0.7, 4.0)
MEANS = (0.25, 0.7)
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
    white_B111 = _chance(count, CUT_OUTS, rng)
    image_BCHW = _grounds(count, spec, rng).masked_fill_(white_B111, 1)
    number_B111 = torch.randint(
        2, MAX_THINGS + 1, (count, 1, 1, 1), generator=rng, device=rng.device
    )
    number_B111 = number_B111.masked_fill(_chance(count, SINGLE, rng), 1)
    for place in range(MAX_THINGS):
        more_BCHW = _with_a_thing(image_BCHW, spec, rng)
        image_BCHW = torch.where(number_B111 > place, more_BCHW, image_BCHW)
    return torch.where(white_B111, image_BCHW, _photographed(image_BCHW, spec, rng))


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
    depth_BPHW = x_BHW.new_full((len(x_BHW), MAX_PARTS, *x_BHW.shape[1:]), NOWHERE)
    for kind, shape in enumerate(SHAPES):
        some_BPHW = shape(x_BHW, y_BHW, rng)
        room = depth_BPHW[:, : some_BPHW.shape[1]]
        room.copy_(torch.where(kind_B == kind, some_BPHW, room))
    return depth_BPHW


def _painted(cover_BPHW: Tensor, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    """Paint of a thing (B, C, H, W), wherever it is: few colours among its parts, and a pattern."""
    count = len(cover_BPHW)
    colours_BMC11 = palettes(count, 4, spec.shape[0], rng)
    colours_BMC11[:, -1] *= DARK
    colour_BPC11 = _colours_of_parts(colours_BMC11, rng)
    paint_BCHW = colour_BPC11[:, 0].expand(-1, -1, *spec.shape[1:])
    for part in range(1, MAX_PARTS):
        paint_BCHW = torch.lerp(paint_BCHW, colour_BPC11[:, part], cover_BPHW[:, part, None])
    share_B1HW, relief_B1HW = _patterns(count, spec, rng)
    return torch.lerp(paint_BCHW, colours_BMC11[:, 1], 0.9 * share_B1HW) * (1 + relief_B1HW)


def _colours_of_parts(colours_BMC11: Tensor, rng: torch.Generator) -> Tensor:
    """Half of the things have parts of any of their colours; of the others one part in three
    has the dark one, (B, P, C, 1, 1).
    """
    count, most, channels = colours_BMC11.shape[:3]
    some_BP = torch.randint(most, (count, MAX_PARTS), generator=rng, device=rng.device)
    few_BP = (uniform((count, MAX_PARTS), 0, 1, rng) < 0.35) * (most - 1)
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
    seen_BCHW = exposed(seen_BCHW, rng)
    seen_BCHW = seen_BCHW.clamp(1e-4, 1) ** log_uniform(one, *GAMMAS, rng)
    seen_BCHW *= uniform((count, channels, 1, 1), 0.9, 1.1, rng)
    noise_BCHW = torch.randn(seen_BCHW.shape, generator=rng, device=rng.device)
    return seen_BCHW.addcmul_(noise_BCHW, log_uniform(one, *GRAIN, rng))


def exposed(image_BCHW: Tensor, rng: torch.Generator) -> Tensor:
    """Images with the brightness and the contrast of photographs: greys are spread, and colours
    beside grey hardly.
    """
    grey_B1HW = image_BCHW.mean(1, keepdim=True)
    mean_B111 = grey_B1HW.mean((2, 3), keepdim=True)
    off_B1HW = grey_B1HW - mean_B111
    spread_B111 = off_B1HW.square().mean((2, 3), keepdim=True).sqrt().clamp_min(0.01)
    one = mean_B111.shape
    gain_B111 = (uniform(one, *SPREADS, rng) / spread_B111).clamp(*GAINS)
    bright_B1HW = uniform(one, *MEANS, rng) + gain_B111 * off_B1HW
    return bright_B1HW + (image_BCHW - grey_B1HW) * gain_B111.clamp_max(1.2)


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
