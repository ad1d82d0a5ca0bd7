"""The order in which services take the axes of an image. No torch here."""

from __future__ import annotations

from typing import Literal

Order = Literal["nchw", "nhwc"]
Image = tuple[int, int, int]
"""An image's C, H, W."""


def in_order(shape: Image, order: Order) -> Image:
    """The sizes (C, H, W) in the order in which they are sent."""
    channels, height, width = shape
    return shape if order == "nchw" else (height, width, channels)


def image_of(sizes: Image, order: Order) -> Image:
    """(C, H, W) of sizes in the given order."""
    one, two, three = sizes
    return (one, two, three) if order == "nchw" else (three, one, two)
