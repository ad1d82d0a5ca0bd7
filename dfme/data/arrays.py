"""The user's images as arrays: an .npz file, or tensors that are handed over in Python."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dfme.config.messages import safe_name
from dfme.data.array_names import POOL, image_arrays, names_of
from dfme.data.class_names import listed
from dfme.data.images import HANDED_OVER, DatasetRequest, ImageSet
from dfme.data.whites import scale_notes
from dfme.errors import UserError, say
from dfme.files import read_npz
from dfme.spec import Shape

MAX_BYTES = 1 << 36
"""Bytes of all arrays in an .npz file together."""

MAX_INFLATION = 100  # bytes of the arrays for each byte of an .npz file
MAX_CLASSES = 100_000

COUNTS = (1, 3)  # channels by which pixels are known to have them last


def load(path: Path, request: DatasetRequest) -> ImageSet:
    """One part of an .npz file; without ``test_images`` the test part is val's, or all images."""
    arrays = _arrays(path)
    images_name, labels_name = names_of(arrays, request.split)
    images = arrays.get(images_name)
    labels = arrays.get(labels_name)
    if images is None or (request.split == "train" and labels is None):
        raise UserError(
            f"data set {path}: expected arrays images and labels (or, to train on a part, "
            "train_images, train_labels, test_images and test_labels, or x_train and so on), got "
            f"{', '.join(map(safe_name, arrays)) or 'none'}"
        )
    data = image_set(path.stem, images, labels, f"data set {path}", request.shape)
    notes = _notes(arrays, images_name, labels_name)
    return replace(data, notes=[*notes, *data.notes])


def _notes(arrays: Mapping[str, NDArray[Any]], images: str, labels: str) -> list[str]:
    """Lines for people: which part was read, and which arrays might be labels by another name."""
    parts = image_arrays(arrays)
    lines = []
    if len(parts) > 1:
        lines.append(f"of the arrays {listed(parts)}, {images} is read")
    if labels not in arrays:
        count = len(arrays[images])
        others = [
            name for name in arrays if name not in parts and arrays[name].shape[:1] == (count,)
        ]
        if others:
            lines.append(
                f"its images have no labels: these are not read from {listed(others)}, but {labels}"
            )
    return lines


def pool_of(path: Path, shape: Shape) -> ImageSet:
    """The images of an .npz file to ask a teacher about, without labels: of several parts the train
    part.
    """
    arrays = _arrays(path)
    name = next((name for name in POOL if name in arrays), None)
    if name is None:
        names = ", ".join(map(safe_name, arrays)) or "none"
        raise UserError(f"data set {path}: expected an array train_images or images, got {names}")
    parts = image_arrays(arrays)
    notes = [f"of the arrays {listed(parts)}, {name} is read"] if len(parts) > 1 else []
    images, dark = _image_tensor(arrays[name], f"data set {path}", shape)
    return ImageSet(path.stem, images, notes=[*notes, *dark])


def handed_over(images: Any, labels: Any = None) -> ImageSet:
    """Images from Python, with or without labels: tensors or arrays as in an .npz file.

    Its name has a digest of both. UserError for anything else.
    """
    try:
        plain = (
            part.detach().cpu() if isinstance(part, Tensor) else part for part in (images, labels)
        )
        pixels, numbers = (None if part is None else np.asarray(part) for part in plain)
    except (
        TypeError,
        ValueError,
        RuntimeError,
    ) as error:  # the last of a tensor on the meta device
        raise UserError(
            f"evaluation: expected tensors or arrays of images and labels: {error}"
        ) from error
    if pixels is None:
        raise UserError("evaluation: expected images, got none")
    data = image_set("tensors", pixels, numbers, "evaluation")
    digest = hashlib.sha256(
        repr((data.images.dtype, data.images.shape, data.labels is None)).encode()
    )
    for part in (data.images, data.labels):
        digest.update(b"" if part is None else part.numpy().tobytes())
    return replace(data, name=f"{HANDED_OVER}{digest.hexdigest()[:16]}")


def image_set(
    name: str,
    pixels: NDArray[Any],
    labels: NDArray[Any] | None,
    where: str,
    shape: Shape | None = None,
) -> ImageSet:
    """Images and, if present, labels, as plain numbers; ``where`` is their origin for messages."""
    images, notes = _image_tensor(pixels, where, shape)
    if labels is None:
        return ImageSet(name, images, notes=notes)
    numbers = torch.from_numpy(_numbers(labels, len(images), where))
    return ImageSet(name, images, numbers, notes=notes)


def _numbers(labels: NDArray[Any], images: int, where: str) -> NDArray[np.int64]:
    """A class for each image: whole numbers of any type, in a column of their own, or as one-hot
    rows.
    """
    original = labels
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim == 2 and labels.dtype.kind in "iufb" and _is_one_hot(labels):
        labels = labels.argmax(1)
    if labels.dtype.kind == "f" and np.isfinite(labels).all() and (labels == labels.round()).all():
        labels = labels.clip(-1, MAX_CLASSES).astype(np.int64)
    fit = labels.shape == (images,) and labels.dtype.kind in "iub" and len(labels)
    if not fit or labels.min() < 0 or labels.max() >= MAX_CLASSES:
        wanted = f"{images} labels, whole numbers from 0 to below {MAX_CLASSES:,}"
        raise UserError(f"{where}: expected {wanted}, got {original.dtype} {original.shape}")
    return labels.astype(np.int64)


def _is_one_hot(labels: NDArray[Any]) -> bool:
    return bool(((labels == 0) | (labels == 1)).all() and (labels.sum(1) == 1).all())


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    try:
        return read_npz(path, MAX_BYTES, MAX_INFLATION)
    except (OSError, ValueError) as error:
        raise UserError(f"data set {path}: cannot be read as .npz: {error}") from error


def _image_tensor(
    pixels: NDArray[Any], where: str, shape: Shape | None = None
) -> tuple[Tensor, list[str]]:
    """Pixels (N, H, W), (N, H, W, C) with C of 1 or 3, or (N, C, H, W), as (N, C, H, W), and lines
    about their scale.

    ``shape``: what is wanted, by which pixels that can be read in two ways are read.
    """
    pixels = _with_channels(_in_bytes(pixels), where, shape)
    floating = pixels.dtype.kind == "f"
    if pixels.ndim != 4 or not pixels.size or not (floating or pixels.dtype == np.uint8):
        raise UserError(
            f"{where}: expected images (N, H, W), (N, H, W, C) with 1 or 3 channels, or (N, C, H, "
            f"W), whole numbers from 0 to 255 or floating-point, got {pixels.dtype} {pixels.shape}"
        )
    if floating and not (pixels.min() >= 0 and pixels.max() <= 1):
        raise UserError(f"{where}: expected floating-point pixels within 0 and 1, or uint8")
    if not floating and pixels.max() == 1:
        raise UserError(
            f"{where}: its pixels are uint8, so 255 is white, and none is above 1; multiply them "
            "by 255, or "
            "save them as floating-point numbers within 0 and 1"
        )
    values = pixels.astype(np.float32) if floating else pixels
    return torch.from_numpy(np.ascontiguousarray(values)), scale_notes(pixels, where)


def _in_bytes(pixels: NDArray[Any]) -> NDArray[Any]:
    """Pixels of the types that whole numbers have by default as uint8, if they are surely such."""
    is_wide = pixels.dtype.kind in "iu" and pixels.dtype.itemsize >= 4
    if is_wide and pixels.size and pixels.min() >= 0 and 1 < pixels.max() <= 255:
        return pixels.astype(np.uint8)
    return pixels


def _with_channels(pixels: NDArray[Any], where: str, shape: Shape | None) -> NDArray[Any]:
    """The pixels (N, C, H, W); UserError where the channels may be first or last, and ``shape``
    fits both.
    """
    if pixels.ndim == 3:
        if (
            pixels.shape[2] in COUNTS
            and pixels.shape[1] > 3
            and (shape is None or shape[1:] != pixels.shape[1:])
        ):
            raise UserError(
                f"{where}: {pixels.shape} may be one image with its channels last, or images "
                f"{pixels.shape[2]} pixels wide; save images as (N, H, W, C) or (N, C, H, W)"
            )
        return pixels[:, None]
    if pixels.ndim != 4:
        return pixels
    first, last = pixels.shape[1:], (pixels.shape[3], *pixels.shape[1:3])
    may_be_last = last[0] in COUNTS
    if may_be_last and first[0] in COUNTS and first != last:
        if tuple(shape or ()) == first:
            return pixels
        if tuple(shape or ()) != last:
            raise UserError(
                say(
                    "{}: the channels of {} may be first or last; give {teacher.shape}, or save "
                    "images of another size",
                    where,
                    pixels.shape,
                )
            )
    if may_be_last and first == last and first[0] == first[1] == first[2] and first[0] == 3:
        raise UserError(
            f"{where}: the channels of {pixels.shape} may be first or last; save images of another "
            "size"
        )
    if last[0] in (2, 4) and first[0] > 4:
        raise UserError(
            f"{where}: {pixels.shape} seems to have {last[0]} channels last; save it as (N, C, H, "
            "W), or "
            "with 1 or 3 channels"
        )
    return pixels.transpose(0, 3, 1, 2) if may_be_last else pixels
