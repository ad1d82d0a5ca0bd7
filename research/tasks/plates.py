"""`plates`: printed digits in colour, in many fonts, on gradients and on patches of photographs,
32x32.
"""

from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from dfme.data.images import LUMA
from research.tasks.parts import Parts, Pixels, drawn
from research.tasks.patches import SIDE, patch

STYLES = ("", "-Bold", "-Oblique", "-BoldOblique")
FONTS = (
    *(f"DejaVuSans{style}" for style in STYLES),
    *(f"DejaVuSansMono{style}" for style in STYLES),
    *(f"DejaVuSerif{style}" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{style}" for style in ("", "Bol", "Italic", "BolIta")),
    *("cmb10", "cmr10", "cmss10", "cmti10", "cmtt10"),
)
"""Those of matplotlib's that have the ten digits, as signs of text."""

FINE = 2 * SIDE  # pixels a side that a digit is drawn with
CONTRAST = 0.25  # least difference in luma of the ink and the mean ground
TURN = 15.0  # degrees, at most


def plates(photographs: Sequence[Image.Image], train: int, test: int, seed: int) -> Parts:
    """So many images of each part, as many of each digit, drawn by the seed."""
    draw = partial(_plate, photographs)
    return drawn(train, (seed, 0), draw), drawn(test, (seed, 1), draw)


def _plate(grounds: Sequence[Image.Image], random: np.random.Generator, digit: int) -> Pixels:
    ground = _gradient(random)
    if random.random() < 0.5:
        ground = patch(random, grounds[int(random.integers(len(grounds)))]) / 255
    ink = random.random(3)
    while abs((ink - ground.mean((0, 1))) @ LUMA) < CONTRAST:
        ink = random.random(3)
    share = _glyph(random, digit)[..., None]
    pixels = Image.fromarray(np.rint(255 * (share * ink + (1 - share) * ground)).astype(np.uint8))
    pixels = pixels.filter(ImageFilter.GaussianBlur(random.uniform(0, 0.8)))
    noise = random.normal(0, random.uniform(0, 10), (SIDE, SIDE, 3))
    return np.rint(np.clip(np.asarray(pixels) + noise, 0, 255)).astype(np.uint8)


def _gradient(random: np.random.Generator) -> NDArray[np.float64]:
    """From one colour to another, in a random direction (H, W, 3)."""
    angle = random.uniform(0, 2 * np.pi)
    y, x = np.mgrid[:SIDE, :SIDE] / (SIDE - 1) - 0.5
    way: NDArray[np.float64] = (0.5 + (x * np.cos(angle) + y * np.sin(angle)) / np.sqrt(2))[
        ..., None
    ]
    return way * random.random(3) + (1 - way) * random.random(3)


def _glyph(random: np.random.Generator, digit: int) -> NDArray[np.float64]:
    """Ink (H, W) from 0 to 1: a digit of random font, size, place and slight turn."""
    font = _font(FONTS[random.integers(len(FONTS))], int(random.integers(FINE // 2, FINE + 1)))
    image = Image.new("L", (FINE, FINE))
    ImageDraw.Draw(image).text((FINE / 2, FINE / 2), str(digit), fill=255, font=font, anchor="mm")
    right, down = random.integers(-FINE // 8, FINE // 8 + 1, 2).tolist()
    turned = image.rotate(
        random.uniform(-TURN, TURN), Image.Resampling.BILINEAR, translate=(right, down)
    )
    return np.asarray(turned.resize((SIDE, SIDE), Image.Resampling.BOX)) / 255


@cache
def _font(name: str, size: int) -> ImageFont.FreeTypeFont:
    from matplotlib import get_data_path

    path = Path(get_data_path()) / "fonts" / "ttf" / f"{name}.ttf"
    return ImageFont.truetype(path, size, layout_engine=ImageFont.Layout.BASIC)
