"""The axes of the images that a v2 model takes: their order, and the one for the batch."""

import math
from dataclasses import dataclass
from typing import Literal

from dfme.errors import OptionError, UserError

AxisOrder = Literal["nchw", "nhwc"]
Image = tuple[int, int, int]
"""An image's C, H, W."""

ORDERS: tuple[AxisOrder, ...] = ("nchw", "nhwc")
CHANNELS = (1, 3, 4)  # sizes of an axis that is taken for the channels where the order is open


@dataclass(frozen=True)
class ImageLayout:
    """Images ``shape`` (C, H, W) travel with their axes in ``order``, each in the shape ``sent``.

    ``batch``: most images in one request if the metadata fix it, else None. ``batch_axis``: whether
    requests have an axis for it; ``open`` where the metadata leave it out, as servers do that add
    one and such that take one image.
    """

    shape: Image
    order: AxisOrder
    sent: tuple[int, ...]
    batch: int | None
    batch_axis: Literal["yes", "no", "open"] = "yes"


def find_layout(
    metadata: tuple[int, ...] | None,
    flagged: Image | None,
    order: AxisOrder | None,
    literal: bool = False,
) -> ImageLayout:
    """Layout that fits the metadata's shape (-1: any size), the user's (C, H, W) and an order.

    Four axes are a batch of images, three that begin with -1 grey images without channels, two
    flattened images; other three are one image, its batch left out. ``literal``: the server adds no
    axis to them, as Triton with max_batch_size 0. UserError that names the flag where nothing or
    more than one fits.
    """
    if metadata is None:
        metadata = (-1, -1, -1, -1)
    is_one_image = len(metadata) == 3 and metadata[0] > 0
    if literal and len(metadata) < 3 and min(metadata, default=-1) > 0 and metadata[0] > 1:
        return ImageLayout(_flat_shape(metadata, flagged), order or "nchw", metadata, 1, "no")
    batch = -1
    sizes = metadata
    if metadata and not is_one_image:
        batch = metadata[0]
        sizes = metadata[1:]
    if len(sizes) not in (1, 2, 3):
        raise UserError(
            f"the model's input: expected a batch of images, got the shape {list(metadata)}"
        )
    limit = batch if batch > 0 else None
    if len(sizes) < 3:
        shape = _flat_shape(sizes, flagged)
        sent = shape[1:] if len(sizes) == 2 else (math.prod(shape),)
        return ImageLayout(shape, order or "nchw", sent, limit)
    shape, axes = _ordered(sizes, flagged, order)
    if not is_one_image:
        return ImageLayout(shape, axes, in_order(shape, axes), limit)
    if literal:
        return ImageLayout(shape, axes, in_order(shape, axes), 1, "no")
    return ImageLayout(shape, axes, in_order(shape, axes), limit, "open")


def in_order(shape: Image, order: AxisOrder) -> Image:
    """The sizes (C, H, W) in the order in which they are sent."""
    channels, height, width = shape
    return shape if order == "nchw" else (height, width, channels)


def _ordered(
    sizes: tuple[int, ...], flagged: Image | None, wanted: AxisOrder | None
) -> tuple[Image, AxisOrder]:
    """Shape and order of images with three axes."""
    orders = (wanted,) if wanted else ORDERS
    if flagged is not None:
        fitting = [(flagged, order) for order in orders if _fits(sizes, in_order(flagged, order))]
    elif min(sizes) < 1:
        raise OptionError(
            "teacher.shape", f"give C,H,W, since the model's input leaves sizes open: {list(sizes)}"
        )
    else:
        first, two, three = sizes
        images: dict[AxisOrder, Image] = {"nchw": (first, two, three), "nhwc": (three, first, two)}
        fitting = [
            (images[order], order) for order in orders if wanted or images[order][0] in CHANNELS
        ]
    if len(fitting) == 1:
        return fitting[0]
    if flagged is not None and not fitting:
        raise OptionError(
            "teacher.shape",
            f"expected C,H,W that fit the model's input {list(sizes)}",
            got=str(flagged),
        )
    raise OptionError(
        "teacher.layout", f"give nchw or nhwc, since the model's input {list(sizes)} does not tell"
    )


def _fits(sizes: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return all(size in (-1, actual) for size, actual in zip(sizes, shape, strict=True))


def _flat_shape(sizes: tuple[int, ...], flagged: Image | None) -> Image:
    """(C, H, W) of images that are sent with fewer axes."""
    if flagged is None and len(sizes) == 2 and min(sizes) > 0:
        return (1, *sizes)
    if flagged is None:
        raise OptionError(
            "teacher.shape",
            f"give C,H,W, since the model's input is one of {list(sizes)} per image",
        )
    wanted = flagged[1:] if len(sizes) == 2 else (math.prod(flagged),)
    if not _fits(sizes, wanted) or (len(sizes) == 2 and flagged[0] != 1):
        raise OptionError(
            "teacher.shape",
            f"expected C,H,W that fit the model's input {list(sizes)}",
            got=str(flagged),
        )
    return flagged
