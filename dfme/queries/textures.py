"""Programs whose images have textures: noise, textured leaves, text on any ground, untrained
generators.
"""

import math
from functools import cache

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor, nn
from torch.nn.functional import grid_sample

from dfme.nets.generators import Generator
from dfme.queries import drawing
from dfme.queries.drawing import (
    Range,
    Things,
    absent,
    grounds,
    heap,
    in_chunks,
    log_uniform,
    pixel_grid,
    shuffled,
    uniform,
)
from dfme.spec import ImageSpec

NOISE_EXPONENTS = (0.0, 2.0)  # of the amplitude: 0 is white noise; photographs have about 1
NOISE_CONTRASTS = (
    0.05,
    0.5,
)  # standard deviation of the field, where 1 is the whole range of a pixel


@in_chunks
def draw_noise(count: int, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    """1/f noise: random fields whose amplitude falls with a power of the frequency, as of photos.

    Baradad et al. 2021, "Learning to see by looking at noise" (arXiv 2106.05963), their statistical
    image models. Here the exponent is that of an isotropic spectrum, and colours are mixtures of
    fields: the ranges are heuristic.
    ``count`` images (B, C, H, W), float32 within the bounds, on the device of ``rng``.
    """
    # Fields of mean 0 are mixed to colours of any correlation, then scaled and moved to a random
    # mean.
    channels = spec.shape[0]
    mixing_BCC = torch.randn(count, channels, channels, generator=rng, device=rng.device)
    mixing_BCC /= mixing_BCC.norm(dim=2, keepdim=True)
    mixing_BCC *= uniform((count, 1, 1), *NOISE_CONTRASTS, rng)
    mean_BC1 = uniform((count, channels, 1), 0, 1, rng)
    exponent_B = uniform((count,), *NOISE_EXPONENTS, rng)
    fields_BCN = power_law_fields(exponent_B, spec.shape, rng).flatten(2)
    return torch.baddbmm(mean_BC1, mixing_BCC, fields_BCN).view(count, *spec.shape)


def power_law_fields(
    exponent_B: Tensor, shape: tuple[int, int, int], rng: torch.Generator
) -> Tensor:
    """Gaussian fields (B, C, H, W) of mean 0 whose amplitude spectrum is frequency ** -exponent.

    They are periodic: what leaves at one edge comes in at the opposite one. The expected variance
    is 1 (Parseval: that of white noise times the filter's mean square), unless H * W is 1.
    """
    _, height, width = shape
    device = exponent_B.device
    fy_H1 = torch.fft.fftfreq(height, device=device).unsqueeze(1)
    fx_F = torch.fft.rfftfreq(width, device=device)
    log_frequency_HF = fy_H1.hypot(fx_F).log()
    gain_BHF = torch.exp(-exponent_B.view(-1, 1, 1) * log_frequency_HF)
    gain_BHF[:, 0, 0] = 0  # frequency 0 is the mean
    # Every column stands for a negative frequency too, but for the first and, where W is even, the
    # last.
    twice_F = torch.where((fx_F == 0) | (fx_F == 0.5), 1.0, 2.0)
    mean_square_B = (gain_BHF.square() * twice_F).sum((1, 2)) / (height * width)
    gain_BHF /= mean_square_B.sqrt().clamp_min(1e-12).view(-1, 1, 1)
    white_BCHW = torch.randn(len(exponent_B), *shape, generator=rng, device=device)
    spectrum_BCHF = torch.fft.rfft2(white_BCHW).mul_(gain_BHF.unsqueeze(1))
    fields_BCHW: Tensor = torch.fft.irfft2(spectrum_BCHF, s=(height, width))
    return fields_BCHW


TEXTURE_EXPONENTS = (0.5, 2.0)  # of the amplitude, a leaf's own
TEXTURE_CONTRASTS = (
    0.01,
    0.2,
)  # standard deviation of a texture, where 1 is the whole range of a pixel
TINT = 0.5  # how far the channels' contrasts are from one another


def draw_textured(count: int, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    """Dead leaves, each filled with 1/f noise of its own, on a ground that is textured as well.

    After Baradad et al. 2021 (arXiv 2106.05963), who draw leaves with textures as training data;
    theirs are of another kind. The ranges are heuristic. What it is worth is in
    docs/results/real_size_programs.md.
    """
    return heap(Things(drawing.LEAVES, _cover_textured, paints), count, spec, rng)


def _cover_textured(count: int, numbers: Range, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    """As leaves cover; the first is the ground."""
    cover_BMHW = drawing.cover_leaves(count, numbers, spec, rng)
    cover_BMHW[:, 0] = 1
    return cover_BMHW


def paints(count: int, most: int, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    """A colour with a texture for each leaf, (B, M, C, H, W)."""
    channels, height, width = spec.shape
    exponent_N = uniform((count * most,), *TEXTURE_EXPONENTS, rng)
    field_N1HW = power_law_fields(exponent_N, (1, height, width), rng)
    contrast = log_uniform((count * most, 1, 1, 1), *TEXTURE_CONTRASTS, rng)
    contrast = contrast * uniform((count * most, channels, 1, 1), 1 - TINT, 1 + TINT, rng)
    colour_NC11 = uniform((count * most, channels, 1, 1), 0, 1, rng)
    return torch.addcmul(colour_NC11, contrast, field_N1HW).view(count, most, *spec.shape)


DIGITS = "0123456789"
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
CHARACTERS = DIGITS + LETTERS
DIGIT_SHARE = 0.5  # of the characters
SIDE = 48  # pixels of the square cell that a character is drawn in
CAPITAL = 0.56  # a capital's height, in cells
WEIGHTS = (0, 1, 3)  # pixels of a cell by which lines are thicker
HEIGHTS = (0.34, 0.84)  # of a capital, in shorter sides
STRETCHES = (0.7, 1.2)  # of widths
PITCHES = (0.45, 0.6)  # from one character to the next, in cells
TURN = 0.3  # radians, at most; of the slant its tangent
SHIFT = 0.25  # of the line's middle, in halves of the shorter side, at most
SINGLE = 0.5  # share of images with one character
UPSIDE = 0.5  # share of images with the line upside down, where they are wider than high


@in_chunks
def draw_text(count: int, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    """A line of printed characters in one ink, a little turned, slanted, stretched, on any ground.

    Heuristic: what is known of printed text without having seen any that the teacher reads. The
    characters are those of Pillow's own font (Aileron) in three weights. Half of the grounds are
    plain, half textured leaves. An image wider than high is filled by its line, the more so the
    wider it is, and half of the lines are upside down. What it is worth is in
    docs/results/real_size_programs.md.
    """
    unit = ImageSpec(spec.shape)
    half = -(-count // 2)
    both_NCHW = torch.cat([grounds(half, unit, rng), draw_textured(half, unit, rng)])
    ground_BCHW = shuffled(both_NCHW, count, rng)
    inks_2BC11 = uniform((2, count, spec.shape[0], 1, 1), 0, 1, rng)
    # Of two inks the one that can be read better.
    apart_2B111 = (
        (inks_2BC11 - ground_BCHW.mean((2, 3), keepdim=True)).square().mean(2, keepdim=True)
    )
    ink_BC11 = torch.where(apart_2B111[0] > apart_2B111[1], inks_2BC11[0], inks_2BC11[1])
    return torch.lerp(ground_BCHW, ink_BC11, _cover_letters(count, spec, rng))


def _cover_letters(count: int, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    """Share of each pixel that a line of characters covers, (B, 1, H, W)."""
    _, height, width = spec.shape
    most = 1 + 2 * math.ceil(width / height)
    one = (count, 1, 1)
    play = min(1.0, height / width)  # a line that fills a wide image has little
    shift = play * SHIFT
    x_1W, y_H1 = pixel_grid(spec, rng.device)
    x_BHW = x_1W - uniform(one, -shift, shift, rng)
    y_BHW = y_H1 - uniform(one, -shift, shift, rng)
    turn_B11 = uniform(one, -play * TURN, play * TURN, rng)
    if width > height:
        turn_B11 = turn_B11 + math.pi * (uniform(one, 0, 1, rng) < UPSIDE)
    lowest, highest = HEIGHTS
    cell_B11 = uniform(one, lowest + (1 - play) * (highest - lowest), highest, rng) / CAPITAL
    down_BHW = (y_BHW * turn_B11.cos() - x_BHW * turn_B11.sin()) / cell_B11
    along_BHW = (x_BHW * turn_B11.cos() + y_BHW * turn_B11.sin()) / (
        cell_B11 * uniform(one, *STRETCHES, rng)
    )
    along_BHW = along_BHW + uniform(one, -TURN, TURN, rng) * down_BHW
    gone_BM11 = absent(count, (1, most), rng)
    gone_BM11[:, 1:] |= uniform((count, 1, 1, 1), 0, 1, rng) < play * SINGLE
    number_B11 = most - gone_BM11.sum(1)
    # In an image that cannot hold all of the line, any of its characters is in the middle.
    middle_B11 = (uniform(one, 0, 1, rng) * number_B11).floor()
    pitch_B11 = 2 * uniform(one, *PITCHES, rng)
    weight_B = torch.randint(len(WEIGHTS), (count,), generator=rng, device=rng.device)
    # kept there: a GPU waits for what is sent to it
    cells_NHW = _cells(max(1, SIDE // min(height, width)), rng.device)
    cover_BHW = torch.zeros_like(along_BHW)
    for place in range(most):
        digit_B = torch.randint(len(DIGITS), (count,), generator=rng, device=rng.device)
        letter_B = torch.randint(
            len(DIGITS), len(CHARACTERS), (count,), generator=rng, device=rng.device
        )
        which_B = torch.where(uniform((count,), 0, 1, rng) < DIGIT_SHARE, digit_B, letter_B)
        cell_B1HW = cells_NHW[weight_B * len(CHARACTERS) + which_B].unsqueeze(1)
        at_BHW2 = torch.stack([along_BHW - (place - middle_B11) * pitch_B11, down_BHW], -1)
        ink_BHW = grid_sample(cell_B1HW, at_BHW2, align_corners=False).squeeze(1)
        cover_BHW = torch.maximum(cover_BHW, ink_BHW.masked_fill(gone_BM11[:, place], 0))
    return cover_BHW.unsqueeze(1)


@cache
def _cells(coarser: int, device: torch.device) -> Tensor:
    """Ink of every character in every weight (N, H, W), within 0 and 1, so many times coarser."""
    font = ImageFont.load_default(0.8 * SIDE)
    drawn = []
    for weight in WEIGHTS:
        for character in CHARACTERS:
            image = Image.new("L", (SIDE, SIDE))
            place = (SIDE / 2, SIDE / 2)
            ImageDraw.Draw(image).text(place, character, 255, font, "mm", stroke_width=weight)
            drawn.append(np.asarray(image.reduce(coarser), dtype=np.float32) / 255)
    return torch.tensor(np.stack(drawn), device=device)


LATENT_SIZE = 256
MAX_IMAGES = 256  # images of one net: then another shows something else
MIN_IMAGES = 16  # of one net: in train mode an image is normalised by the others of its batch
GENERATOR_CHUNK = 1 << 17  # pixels at once, each of 128 activations: what a net needs in memory


def draw_generators(count: int, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    """Images of generators fresh from initialisation, none of them ever trained: a net per 256.

    Baradad et al. 2021 (arXiv 2106.05963) draw from untrained StyleGANs; here it is the generator
    of DFME. ``count`` images (B, C, H, W), float32 within the bounds, on the device of ``rng``.
    """
    chunk = max(MIN_IMAGES, min(MAX_IMAGES, GENERATOR_CHUNK // math.prod(spec.shape[1:])))
    parts = [_drawn(min(chunk, count - start), spec, rng) for start in range(0, count, chunk)]
    return torch.cat(parts)


@torch.no_grad()
def _drawn(count: int, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    generator = fresh_generator(spec, rng)
    u_BCHW = generator(generator.draw(max(count, MIN_IMAGES), rng))
    return generator.squash(u_BCHW)[:count]


@torch.no_grad()
def fresh_generator(spec: ImageSpec, rng: torch.Generator) -> Generator:
    """A generator in train mode on the device of ``rng``, its weights decided by ``rng`` alone.

    They are drawn where they are used, so a GPU waits for nothing from the host.
    """
    with torch.device("meta"):
        generator = Generator(LATENT_SIZE, spec)
    for layer in generator.to_empty(device=rng.device).modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            # torch's own: weights and biases even within 1 / sqrt(inputs)
            bound = layer.weight[0].numel() ** -0.5
            for parameter in layer.parameters(recurse=False):
                parameter.uniform_(-bound, bound, generator=rng)
        elif isinstance(layer, nn.BatchNorm2d):
            layer.reset_parameters()
    return generator
