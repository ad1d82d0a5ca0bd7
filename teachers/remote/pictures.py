"""Images as PNG files."""

import struct
import zlib

import numpy as np

from dfme.teachers.arrays import Array

COLOUR_TYPES = {
    1: 0,
    2: 4,
    3: 2,
    4: 6,
}  # PNG's number for grey, grey with alpha, RGB and RGBA, by channels
LEVEL = 1  # a generator's images are close to noise: more effort buys next to nothing


def png(x_HWC: Array) -> bytes:
    """An image of bytes (H, W, C) with 1, 2, 3 or 4 channels as a PNG file."""
    height, width, channels = x_HWC.shape
    assert x_HWC.dtype == np.uint8
    header = struct.pack(">IIBBBBB", width, height, 8, COLOUR_TYPES[channels], 0, 0, 0)
    lines = np.zeros(
        (height, 1 + width * channels), np.uint8
    )  # each line begins with its filter: 0, none
    lines[:, 1:] = x_HWC.reshape(height, -1)
    data = zlib.compress(lines.tobytes(), LEVEL)
    return (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", header)
        + _chunk(b"IDAT", data)
        + _chunk(b"IEND", b"")
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return (
        struct.pack(">I", len(data))
        + kind
        + data
        + struct.pack(">I", zlib.crc32(data, zlib.crc32(kind)))
    )
