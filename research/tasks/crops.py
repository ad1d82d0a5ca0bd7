"""`crops`: a pool of public pictures: squares of any photographs, made smaller."""

from pathlib import Path

import numpy as np
from PIL import Image

from dfme.errors import UserError
from research.tasks.parts import Pixels

SUFFIXES = frozenset({".jpeg", ".jpg", ".png", ".webp"})
SMALLEST = 0.4  # side of a square, as a share of the photograph's shorter side


def crops(folder: Path, side: int, each: int, seed: int) -> Pixels:
    """So many squares of each photograph in the folder, (N, 3, side, side); the first is the
    largest one in its middle. UserError without photographs, or where one cannot be read.
    """
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    if not paths:
        raise UserError(f"{folder}: expected a folder of photographs, got none")
    random = np.random.default_rng(seed)
    squares = []
    for path in paths:
        try:
            with Image.open(path) as opened:
                photograph = opened.convert("RGB")
        except OSError as error:
            raise UserError(f"{path}: cannot be read as an image: {error}") from error
        squares += [_square(random, photograph, side, number == 0) for number in range(each)]
    return np.ascontiguousarray(np.stack(squares).transpose(0, 3, 1, 2))


def _square(
    random: np.random.Generator, photograph: Image.Image, side: int, middle: bool
) -> Pixels:
    """One square (side, side, 3) of the photograph."""
    width, height = photograph.size
    shorter = min(width, height)
    edge = shorter if middle else max(1, int(shorter * random.uniform(SMALLEST, 1)))
    left = (width - edge) // 2 if middle else int(random.integers(width - edge + 1))
    top = (height - edge) // 2 if middle else int(random.integers(height - edge + 1))
    box = (left, top, left + edge, top + edge)
    return np.asarray(photograph.crop(box).resize((side, side), Image.Resampling.LANCZOS))
