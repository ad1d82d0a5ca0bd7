"""Images as services take them: the order of their axes, 8-bit pixels, PNG. No torch here."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Literal

import numpy as np

from dfme.spec import ImageSpec
from dfme.teachers.arrays import Array

if TYPE_CHECKING:
    from torch import Tensor

AxisOrder = Literal["nchw", "nhwc"]
Image = tuple[int, int, int]
"""An image's C, H, W."""


def in_order(shape: Image, order: AxisOrder) -> Image:
    """The sizes (C, H, W) in the order in which they are sent."""
    channels, height, width = shape
    return shape if order == "nchw" else (height, width, channels)


def image_of(sizes: Image, order: AxisOrder) -> Image:
    """(C, H, W) of sizes in the given order."""
    one, two, three = sizes
    return (one, two, three) if order == "nchw" else (three, one, two)


COLOUR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}  # PNG's number for grey, grey with alpha, RGB and RGBA, by channels
SIGNATURE = b"\x89PNG\r\n\x1a\n"
LEVEL = 1  # a generator's images are close to noise: more effort buys next to nothing


def eight_bit(x_BCHW: Tensor, bounds: tuple[float, float]) -> Array:
    """Images as bytes (B, H, W, C): i stands for ``low + i * (high - low) / 255``, nearest."""
    _, channels, height, width = x_BCHW.shape
    codes_BCHW = ImageSpec((channels, height, width), bounds, 256).encode(x_BCHW.detach().cpu())
    return np.ascontiguousarray(codes_BCHW.numpy().transpose(0, 2, 3, 1))


def png(x_HWC: Array) -> bytes:
    """An image of bytes (H, W, C) with 1, 2, 3 or 4 channels as a PNG file."""
    height, width, channels = x_HWC.shape
    assert x_HWC.dtype == np.uint8
    header = struct.pack(">IIBBBBB", width, height, 8, COLOUR_TYPES[channels], 0, 0, 0)
    lines = np.zeros((height, 1 + width * channels), np.uint8)  # each line begins with its filter: 0, none
    lines[:, 1:] = x_HWC.reshape(height, -1)
    data = zlib.compress(lines.tobytes(), LEVEL)
    return SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(data, zlib.crc32(kind)))
