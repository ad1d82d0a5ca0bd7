"""From the shape of an input in a model's metadata to the images it takes, and the order of their axes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dfme.errors import UserError
from dfme.teachers.remote.pictures import AxisOrder, Image, image_of, in_order

ORDERS: tuple[AxisOrder, ...] = ("nchw", "nhwc")
CHANNELS = (1, 3, 4)  # sizes of an axis that is taken for the channels where the order is open


@dataclass(frozen=True)
class ImageLayout:
    """Images ``shape`` (C, H, W) travel with their axes in ``order``, each in the shape ``sent``.

    ``batch``: most images in one request if the metadata fix it, else None.
    """

    shape: Image
    order: AxisOrder
    sent: tuple[int, ...]
    batch: int | None


def find_layout(metadata: tuple[int, ...] | None, given: Image | None, order: object) -> ImageLayout:
    """The layout that fits the shape in the metadata (-1: any size), the user's (C, H, W), and an order if known.

    Four axes are a batch of images, three that begin with -1 grey images without channels, two flattened images;
    other three are one image, its batch left out. UserError that names the flag where nothing or more than one fits.
    """
    known: AxisOrder | None = next((word for word in ORDERS if word == order), None)
    if metadata is None:
        metadata = (-1, -1, -1, -1)
    whole = len(metadata) == 3 and metadata[0] > 0
    batch, sizes = (-1, metadata) if whole else (metadata[0] if metadata else -1, metadata[1:])
    if len(sizes) not in (1, 2, 3):
        raise UserError(f"the model's input: expected a batch of images, got the shape {list(metadata)}")
    limit = batch if batch > 0 else None
    if len(sizes) < 3:
        shape = _flat_shape(sizes, given)
        sent = shape[1:] if len(sizes) == 2 else (math.prod(shape),)
        return ImageLayout(shape, known or "nchw", sent, limit)
    shape, found = _ordered(sizes, given, known)
    return ImageLayout(shape, found, in_order(shape, found), limit)


def _ordered(sizes: tuple[int, ...], given: Image | None, known: AxisOrder | None) -> tuple[Image, AxisOrder]:
    """Shape and order of images with three axes."""
    orders = (known,) if known else ORDERS
    if given is not None:
        fitting = [(given, order) for order in orders if _fits(sizes, in_order(given, order))]
    elif min(sizes) < 1:
        raise UserError(f"--teacher.shape: give C,H,W, since the model's input leaves sizes open: {list(sizes)}")
    else:
        one, two, three = sizes
        fitting = [(image_of((one, two, three), order), order) for order in orders]
        fitting = [(shape, order) for shape, order in fitting if known or shape[0] in CHANNELS]
    if len(fitting) == 1:
        return fitting[0]
    if given is not None and not fitting:
        raise UserError(f"--teacher.shape: expected C,H,W that fit the model's input {list(sizes)}, got {given}")
    raise UserError(f"--teacher.layout: give nchw or nhwc, since the model's input {list(sizes)} does not tell")


def _fits(sizes: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return all(size in (-1, actual) for size, actual in zip(sizes, shape, strict=True))


def _flat_shape(sizes: tuple[int, ...], given: Image | None) -> Image:
    """(C, H, W) of images that are sent with fewer axes."""
    if given is None and len(sizes) == 2 and min(sizes) > 0:
        return (1, *sizes)
    if given is None:
        raise UserError(f"--teacher.shape: give C,H,W, since the model's input is one of {list(sizes)} per image")
    wanted = given[1:] if len(sizes) == 2 else (math.prod(given),)
    if not _fits(sizes, wanted) or (len(sizes) == 2 and given[0] != 1):
        raise UserError(f"--teacher.shape: expected C,H,W that fit the model's input {list(sizes)}, got {given}")
    return given
