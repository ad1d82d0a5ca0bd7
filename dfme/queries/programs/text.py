"""Text: a line of printed characters in one ink, a little turned, slanted and stretched, on any
ground.

Heuristic: what is known of printed text without having seen any that the teacher reads. The
characters are those of Pillow's own font (Aileron) in three weights. Half of the grounds are plain,
half textured leaves. An image wider than high is filled by its line, the more so the wider it is,
and half of the lines are upside down. What it is worth is in docs/results/real_size.md.
"""

import math
from functools import cache

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn.functional import grid_sample

from dfme.queries.programs import textured
from dfme.queries.programs.canvas import in_chunks, pixel_grid, shuffled, uniform
from dfme.queries.programs.heaps import absent, grounds
from dfme.spec import ImageSpec

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
def draw(count: int, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    """``count`` images (B, C, H, W), float32 within the bounds, on the device of ``rng``."""
    unit = ImageSpec(spec.shape)
    half = -(-count // 2)
    both_NCHW = torch.cat([grounds(half, unit, rng), textured.draw(half, unit, rng)])
    ground_BCHW = shuffled(both_NCHW, count, rng)
    inks_2BC11 = uniform((2, count, spec.shape[0], 1, 1), 0, 1, rng)
    # Of two inks the one that can be read better.
    apart_2B111 = (
        (inks_2BC11 - ground_BCHW.mean((2, 3), keepdim=True)).square().mean(2, keepdim=True)
    )
    ink_BC11 = torch.where(apart_2B111[0] > apart_2B111[1], inks_2BC11[0], inks_2BC11[1])
    return torch.lerp(ground_BCHW, ink_BC11, _cover(count, spec, rng))


def _cover(count: int, spec: ImageSpec, rng: torch.Generator) -> Tensor:
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
