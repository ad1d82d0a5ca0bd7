"""Whether pixels are on the scale that they are read by: white is 255, 65535 or 1."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from dfme.data.pictures import DEEP, deepest_pixel, opened
from dfme.errors import UserError

DIM = 16
"""Greatest whole number that is surely on another scale: handwritten digits are often 0 to 16."""

DIVIDED_TWICE = 1.001 / 255
"""Greatest pixel of those that were divided by 255 once too often, with the rounding of half
precision."""

DEPTHS = (12, 14)  # bits of cameras and scanners, whose values are stored in 16


def scale_notes(pixels: NDArray[Any], where: str) -> list[str]:
    """A line if all pixels of an array are dark. UserError if they are surely on another scale."""
    is_integer = pixels.dtype.kind in "iu"
    most = pixels.max().item()
    white = 255 if is_integer else 1
    if 0 < most <= (DIM if is_integer else DIVIDED_TWICE):
        raise UserError(
            f"{where}: its greatest pixel is {most:.4g}, and {white} is white, so that all images "
            f"are nearly black; scale the pixels to 0..{white}"
        )
    return _dark(f"{most:.4g}", f"{white}") if 0 < 2 * most <= white else []


def picture_notes(files: Sequence[Path], where: str) -> list[str]:
    """A line if all pixels of all pictures are dark. UserError if pictures of 16 bits use fewer.

    Pictures are read until one shows that white is where it should be: mostly that is the first.
    """
    bright = 0
    deepest = 0
    for file in files:
        image, remarks = opened(file)
        bright = max(bright, *_extremes(image))
        if DEEP in remarks:
            deepest = max(deepest, deepest_pixel(file))
        if 2 * bright > 255 and not _is_shallow(deepest):
            return []
    if _is_shallow(deepest):
        bits = next(bits for bits in DEPTHS if deepest < 1 << bits)
        raise UserError(
            f"{where}: its pictures have 16 bits a pixel, and the greatest pixel of all is "
            f"{deepest}, as of {bits} bits, while 65535 is white; multiply the pixels by "
            f"{1 << 16 - bits}, or save them with 8 bits"
        )
    return _dark(str(bright), "255") if 0 < 2 * bright <= 255 else []


def _is_shallow(deepest: int) -> bool:
    return 0 < deepest < 1 << max(DEPTHS)


def _extremes(image: Any) -> list[int]:
    """The greatest value of each channel of a picture in mode L or RGB."""
    extremes = image.getextrema()
    if image.mode == "L":
        return [extremes[1]]
    return [most for _, most in extremes]


def _dark(most: str, white: str) -> list[str]:
    return [
        f"no pixel of its images is above {most}, and {white} is white: if they should not be so "
        f"dark, scale the pixels to 0..{white}"
    ]
