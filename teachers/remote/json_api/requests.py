"""Requests for an API described in YAML: images encoded as it wants them, in the body it wants."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dfme.spec import ImageSpec
from teachers.arrays import Array
from teachers.remote.json_api.description import ImageForm
from teachers.remote.json_api.template import fill_images
from teachers.remote.json_bodies import HEADERS, dump, numbers
from teachers.remote.pictures import eight_bit, png

if TYPE_CHECKING:
    from torch import Tensor


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


ENCODINGS: dict[str, Callable[[Array, bool], Any]] = {
    "png": lambda x, flat: png(x),
    "png_base64": lambda x, flat: _text(png(x)),
    "data_url": lambda x, flat: f"data:image/png;base64,{_text(png(x))}",
    "raw": lambda x, flat: x.tobytes(),
    "raw_base64": lambda x, flat: _text(x.tobytes()),
    "list": lambda x, flat: numbers(x.reshape(-1) if flat else x),
}
"""From one image's numbers (and whether they are wanted in one row) to what goes into a request."""


def encode_images(images_BCHW: Tensor, form: ImageForm, spec: ImageSpec) -> list[Any]:
    """Each image as bytes, as text or as nested lists."""
    if form.eight_bit:
        x_BHWC = eight_bit(images_BCHW, spec.bounds)
        x = x_BHWC.transpose(0, 3, 1, 2) if form.layout == "nchw" and not form.picture else x_BHWC
    else:
        x_BCHW = _scaled(images_BCHW, form.scale, spec)
        x = x_BCHW if form.layout == "nchw" else x_BCHW.transpose(0, 2, 3, 1)
    encode = ENCODINGS[form.encoding]
    return [encode(image, form.flat) for image in x]


def _scaled(images_BCHW: Tensor, scale: tuple[float, float] | None, spec: ImageSpec) -> Array:
    """The pixels as little-endian float32, moved from the teacher's bounds to ``scale``."""
    x_BCHW = images_BCHW.detach().cpu().numpy()
    if scale is None or scale == spec.bounds:
        return x_BCHW.astype("<f4")
    (low, high), (start, end) = spec.bounds, scale
    share = (x_BCHW.astype(np.float64) - low) / (high - low)
    if spec.levels is not None:  # so that 255 * (i / 255) is the whole number i
        share = np.rint(share * (spec.levels - 1)) / (spec.levels - 1)
    return (start + share * (end - start)).astype("<f4")


def json_body(template: object, images: Sequence[Any]) -> tuple[bytes, dict[str, str]]:
    """The template with the images in it, and its headers."""
    return dump(fill_images(template, images)), dict(HEADERS)


def bytes_body(content_type: str, images: Sequence[Any]) -> tuple[bytes, dict[str, str]]:
    """The one image itself, and its headers."""
    return images[0], {"Content-Type": content_type, "Accept": "application/json"}


def multipart_body(
    name: str, filename: str, picture: bool, fields: Mapping[str, str], images: Sequence[Any]
) -> tuple[bytes, dict[str, str]]:
    """A form (RFC 7578) with the fields, and each image as a file of the field ``name``; and its headers."""
    kind = "image/png" if picture else "application/octet-stream"
    parts = [(f'name="{key}"', "", value.encode()) for key, value in fields.items()]
    parts += [(f'name="{name}"; filename="{filename}"', f"Content-Type: {kind}\r\n", image) for image in images]
    boundary = hashlib.sha256(b"".join(content for *_, content in parts)).hexdigest()  # no content holds its own digest
    pieces = [
        f"--{boundary}\r\nContent-Disposition: form-data; {head}\r\n{more}\r\n".encode() + content + b"\r\n"
        for head, more, content in parts
    ]
    body = b"".join(pieces) + f"--{boundary}--\r\n".encode()
    return body, {"Content-Type": f"multipart/form-data; boundary={boundary}", "Accept": "application/json"}
