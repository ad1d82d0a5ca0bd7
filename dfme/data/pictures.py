"""One picture file as 8-bit pixels: every mode by its own scale, turned and cut as a browser shows
it.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dfme.config.imports import blaming
from dfme.config.messages import safe_name
from dfme.errors import UserError
from dfme.files import open_file
from dfme.spec import Shape

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
"""Formats of a picture, whatever its name: for some others Pillow starts another program."""

AT_ONCE = 64  # pictures that are decoded together
MAX_PIXELS = 1 << 26  # of a picture
GREY_MODES = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N")
ORIENTATION = 0x0112  # the tag of EXIF
PHOTOMETRIC = 262  # the tag of a TIFF that says whether its least or its greatest value is white
MIN_IS_WHITE = 0

TURNED = "pictures are turned as their EXIF data say, as browsers do"
DEEP = "16-bit pictures are scaled from 0..65535"
OPAQUE = "transparent pixels have the colours that are stored for them"
STILL = "of pictures with several frames the first is read"


class PictureReader:
    """Reads the pictures of a list in one shape. ``notes`` gathers what was done to some, once
    each.
    """

    def __init__(self, files: Sequence[Path], shape: Shape, notes: list[str]) -> None:
        if shape[0] not in (1, 3):
            raise UserError(
                f"pictures have 1 or 3 channels, but images of {shape[0]} were asked for",
                about="data set",
            )
        self._files = files
        self._shape = shape
        self._notes = notes
        self._noted = set[str]()

    def __call__(self, index: slice | Tensor) -> Tensor:
        """The pictures at an index (N, C, H, W), decoded side by side. UserError names an
        unreadable one.
        """
        places = range(len(self._files))[index] if isinstance(index, slice) else index.tolist()
        picked = [self._files[place] for place in places]
        images = np.empty((len(picked), *self._shape), dtype=np.uint8)
        with ThreadPoolExecutor() as threads:
            for start in range(0, len(picked), AT_ONCE):
                some = slice(start, start + AT_ONCE)
                read = list(threads.map(self._picture, picked[some]))
                images[some] = [pixels for pixels, _ in read]
                # in the order of the files, whichever thread was first
                for file, (_, remarks) in zip(picked[some], read, strict=True):
                    self._note(file, remarks)
        return torch.from_numpy(images)

    def _note(self, file: Path, remarks: Sequence[str]) -> None:
        for remark in remarks:
            if remark not in self._noted:
                self._noted.add(remark)
                self._notes.append(f"{remark} ({safe_name(file.name)} is the first of them)")

    def _picture(self, file: Path) -> tuple[NDArray[np.uint8], list[str]]:
        """The picture as (C, H, W), grey for one channel, and what was done to it."""
        from PIL import Image

        channels, height, width = self._shape
        image, remarks = opened(file)
        with _named(file):
            image = image.convert("L" if channels == 1 else "RGB")
        if image.size != (width, height):
            image = image.resize((width, height), Image.Resampling.BILINEAR)
        pixels = np.asarray(image, dtype=np.uint8)
        return (pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)), remarks


def shape_of(file: Path) -> Shape:
    """Channels (1 of a grey picture, else 3), height and width of a picture as it is read."""
    image, _ = opened(file)
    return 1 if image.mode == "L" else 3, image.height, image.width


def opened(file: Path) -> tuple[Any, list[str]]:
    """A picture in mode L or RGB, turned upright, and what was done to it. UserError if it cannot
    be read.
    """
    from PIL import Image, ImageOps

    remarks: list[str] = []
    image: Any
    # by a stream: Pillow 13 scrambles a turned TIFF that it opens by its name and maps into memory
    with _named(file), open_file(file) as stream:
        image = Image.open(stream, formats=FORMATS)
        if image.width * image.height > MAX_PIXELS:
            raise ValueError(
                f"expected at most {MAX_PIXELS:,} pixels, got {image.width} x {image.height}"
            )
        form = image.format
        # a phone's JPEG carries previews of itself as further frames
        if form != "MPO" and getattr(image, "is_animated", False):
            remarks.append(STILL)
        grey = image.mode in GREY_MODES
        turned = _is_turned(image)
        image.load()
        if turned:
            remarks.append(TURNED)
            # Pillow turns a TIFF itself
            image = image if form == "TIFF" else ImageOps.exif_transpose(image)
        if image.mode in ("F", "I") or image.mode.startswith("I;16"):
            image = Image.fromarray(_in_eight_bits(image, form))
            remarks.append(DEEP)
        if image.has_transparency_data:
            image = image.convert("RGBA")
            transparent = image.getchannel("A").getextrema()[0] < 255
            remarks += [OPAQUE] if transparent else []
            image = image.convert("RGB")
        return image.convert("L" if grey else "RGB"), remarks


def _is_turned(image: Any) -> bool:
    """True if the picture's EXIF data turn or mirror it; data that cannot be read do not."""
    with suppress(Exception):  # damaged data can raise anything at all
        return image.getexif().get(ORIENTATION, 1) in range(2, 9)
    return False


def deepest_pixel(file: Path) -> int:
    """The greatest of a picture's pixels as they are stored, in 16 bits."""
    from PIL import Image

    with _named(file), open_file(file) as stream:
        return int(_deep_pixels(Image.open(stream, formats=FORMATS)).max())


def _deep_pixels(image: Any) -> NDArray[Any]:
    """Grey pixels of 16 bits and more with the greatest for white.

    In a TIFF black may be the greatest. Pillow heeds that for pixels of 8 bits, not for 16.
    """
    pixels = np.asarray(image)
    tags = getattr(image, "tag_v2", {})
    if image.mode.startswith("I;16") and tags.get(PHOTOMETRIC) == MIN_IS_WHITE:
        return 65535 - pixels
    return pixels


def _in_eight_bits(image: Any, form: str | None) -> NDArray[np.uint8]:
    """Grey pixels of 16 bits scaled to 8. ValueError where nobody says which value is white."""
    deep = _deep_pixels(image)
    sixteen = form in ("PNG", "PPM")  # for which Pillow's mode may have 32
    if image.mode == "F" or (image.mode == "I" and not sixteen):
        kind = "floating-point" if image.mode == "F" else "32-bit"
        raise ValueError(
            f"its pixels are {kind}, and nothing says which value is white; save it with 8 or 16 "
            "bits"
        )
    most = int(deep.max())
    if 0 < most <= 255:
        raise ValueError(
            f"it has 16 bits a pixel and none is above {most}: nearly black, if white is 65535; "
            "save it with 8 bits"
        )
    scaled = (deep.astype(np.uint32) * 255 + 32767) // 65535
    return scaled.astype(np.uint8)


def _named(file: Path) -> AbstractContextManager[None]:
    """Names the file in all that a damaged picture raises, which can be anything."""
    return blaming(f"data set: {safe_name(str(file))} cannot be read as an image", UserError, str)
