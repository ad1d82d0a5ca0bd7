"""Images of one's own, labelled or not: a folder of pictures, an .npz file of arrays, or tensors."""

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dfme.data.images import HANDED_OVER, DatasetRequest, ImageSet
from dfme.errors import UserError
from dfme.files import read_npz
from dfme.spec import Shape

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp"})

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
"""What a picture may be inside, whatever its name: Pillow knows formats that other programs are started to
read."""

AT_ONCE = 64  # pictures that are decoded together

MAX_BYTES = 1 << 36
"""Bytes of all arrays in an .npz file together."""

MAX_INFLATION = 100  # bytes of the arrays for each byte of an .npz file
MAX_PIXELS = 1 << 26  # of a picture
MAX_CLASSES = 100_000


def load(request: DatasetRequest) -> ImageSet:
    """One part of a folder or an .npz file, its test part with labels or without.

    A folder of two folders or more has one per class, numbered in the order of their names; pictures that lie
    in it, or below a lone folder, have no labels. Where a folder holds ``train`` and ``test``, or a file
    ``train_images`` and so on, each part is its own; otherwise all images are the test part, and there is
    nothing to train with. A folder's images are resized (bilinear) to the shape asked for, or to the size of
    the first; those of a file are taken as they are, channels first or last. Links are followed. UserError
    for a layout, a picture or an array that is none of these, named.
    """
    path = Path(request.name).expanduser()
    return _from_arrays(path, request) if path.suffix == ".npz" else _from_folder(path, request)


def read_images(path: Path, shape: Shape) -> Tensor:
    """Images (N, C, H, W) without labels: every picture under a folder, or the array of an .npz file.

    Of two parts, ``train`` and ``test``, it is the former. A folder's pictures are resized to ``shape``; an
    array is taken as it is. UserError for a folder without pictures, or what is no picture or array of them.
    """
    if path.suffix == ".npz":
        arrays = _arrays(path)
        found = [arrays[key] for key in ("train_images", "images") if key in arrays]
        if not found:
            names = ", ".join(arrays) or "none"
            raise UserError(f"data set {path}: expected an array train_images or images, got {names}")
        return _image_tensor(found[0], f"data set {path}")
    both = all((path / part).is_dir() for part in ("train", "test"))
    folder = path / "train" if both else path
    files = _pictures(folder)
    if not files:
        raise UserError(
            f"data set {folder}: expected images ({', '.join(sorted(SUFFIXES))}) in it, found none"
        )
    return _stacked(files, shape, slice(None))


def _from_folder(path: Path, request: DatasetRequest) -> ImageSet:
    folder = path
    parts = [path / "train", path / "test"]
    if all(part.is_dir() for part in parts):
        folder = path / request.split
    elif request.split == "train":
        raise UserError(
            f"data set {path}: expected the folders train and test in it, each with a folder per class"
        )
    else:
        parts = [path]
    # Both parts name the classes: one that is absent from a part must not shift the numbers of the others.
    inside = [entry for part in parts for entry in part.iterdir()]
    classes = sorted({entry.name for entry in inside if entry.is_dir() and not entry.name.startswith(".")})
    files = [(file, label) for label, name in enumerate(classes) for file in _pictures(folder / name)]
    if request.split == "test" and (len(classes) < 2 or not files):
        hidden = {file for entry in folder.glob(".*/") for file in _pictures(entry)}
        classes = []
        files = [(file, -1) for file in _pictures(folder) if file not in hidden]
    if not files:
        wanted = f"expected images ({', '.join(sorted(SUFFIXES))}), labelled ones in one folder per class"
        raise UserError(f"data set {folder}: {wanted}, found none")
    first = _opened(files[0][0])
    shape = request.shape or (1 if first.mode in ("1", "L", "I;16") else 3, first.height, first.width)
    read = partial(_stacked, [file for file, _ in files], shape)
    hollow = torch.empty(len(files), *shape, dtype=torch.uint8, device="meta")
    labels = torch.tensor([label for _, label in files]) if classes else None
    whole = ImageSet(path.name, hollow, labels, tuple(classes), read)
    return whole if request.lazy else replace(whole, images=read(slice(None)), read=None)


def _stacked(files: Sequence[Path], shape: Shape, index: slice | Tensor) -> Tensor:
    """The pictures at an index (N, C, H, W), decoded side by side."""
    picked = files[index] if isinstance(index, slice) else [files[number] for number in index.tolist()]
    images = np.empty((len(picked), *shape), dtype=np.uint8)
    with ThreadPoolExecutor() as threads:
        for start in range(0, len(picked), AT_ONCE):
            some = slice(start, start + AT_ONCE)
            images[some] = list(threads.map(partial(_picture, shape=shape), picked[some]))
    return torch.from_numpy(images)


def _pictures(folder: Path) -> list[Path]:
    """Folders by name, so that a run is equal on every file system; empty without a folder."""
    return sorted(file for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())


def _picture(file: Path, shape: Shape) -> NDArray[np.uint8]:
    """The picture as (C, H, W), grey for one channel."""
    from PIL import Image

    channels, height, width = shape
    if channels not in (1, 3):
        raise UserError(f"data set: pictures have 1 or 3 channels, but images of {channels} were asked for")
    image = _opened(file).convert("L" if channels == 1 else "RGB")
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(image, dtype=np.uint8)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def _opened(file: Path) -> Any:
    from PIL import Image

    try:
        image = Image.open(file, formats=FORMATS)
        if image.width * image.height > MAX_PIXELS:
            raise ValueError(f"expected at most {MAX_PIXELS:,} pixels, got {image.width} x {image.height}")
        image.load()
    except Exception as error:  # a damaged picture can raise anything at all
        raise UserError(f"data set: {file} cannot be read as an image: {error}") from error
    return image


def _from_arrays(path: Path, request: DatasetRequest) -> ImageSet:
    arrays = _arrays(path)
    prefix = f"{request.split}_" if f"{request.split}_images" in arrays else ""
    images = arrays.get(f"{prefix}images")
    labels = arrays.get(f"{prefix}labels")
    if images is None or (request.split == "train" and (not prefix or labels is None)):
        raise UserError(
            f"data set {path}: expected arrays images and labels (or, to train on a part, train_images, "
            f"train_labels, test_images and test_labels), got {', '.join(arrays) or 'none'}"
        )
    return _image_set(path.stem, images, labels, f"data set {path}")


def handed_over(images: Any, labels: Any = None) -> ImageSet:
    """Images from Python, with or without labels: tensors or arrays as in an .npz file.

    Its name has a digest of both. UserError for anything else.
    """
    try:
        plain = (part.detach().cpu() if isinstance(part, Tensor) else part for part in (images, labels))
        pixels, numbers = (None if part is None else np.asarray(part) for part in plain)
    except (TypeError, ValueError, RuntimeError) as error:  # the last of a tensor on the meta device
        raise UserError(f"evaluation: expected tensors or arrays of images and labels: {error}") from error
    if pixels is None:
        raise UserError("evaluation: expected images, got none")
    data = _image_set("tensors", pixels, numbers, "evaluation")
    digest = hashlib.sha256(repr((data.images.dtype, data.images.shape, data.labels is None)).encode())
    for part in (data.images, data.labels):
        digest.update(b"" if part is None else part.numpy().tobytes())
    return replace(data, name=f"{HANDED_OVER}{digest.hexdigest()[:16]}")


def _image_set(name: str, pixels: NDArray[Any], labels: NDArray[Any] | None, where: str) -> ImageSet:
    """Images and, if present, labels, as plain numbers; ``where`` is their origin for messages."""
    images = _image_tensor(pixels, where)
    if labels is None:
        return ImageSet(name, images)
    fit = labels.shape == (len(images),) and labels.dtype.kind in "iu" and len(labels)
    if not fit or labels.min() < 0 or labels.max() >= MAX_CLASSES:
        wanted = f"{len(images)} labels, whole numbers from 0 to below {MAX_CLASSES:,}"
        raise UserError(f"{where}: expected {wanted}, got {labels.dtype} {labels.shape}")
    return ImageSet(name, images, torch.from_numpy(labels.astype(np.int64)))


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    try:
        return read_npz(path, MAX_BYTES, MAX_INFLATION)
    except (OSError, ValueError) as error:
        raise UserError(f"data set {path}: cannot be read as .npz: {error}") from error


def _image_tensor(pixels: NDArray[Any], where: str) -> Tensor:
    """Pixels (N, H, W), (N, H, W, C) with C of 1 or 3, or (N, C, H, W), as (N, C, H, W)."""
    if pixels.ndim == 3:
        pixels = pixels[:, None]
    elif pixels.ndim == 4 and pixels.shape[3] in (1, 3):
        pixels = pixels.transpose(0, 3, 1, 2)
    floating = pixels.dtype.kind == "f"
    if pixels.ndim != 4 or not pixels.size or not (floating or pixels.dtype == np.uint8):
        raise UserError(
            f"{where}: expected images (N, H, W), (N, H, W, C) with 1 or 3 channels, or (N, C, H, W), uint8 "
            f"or floating-point, got {pixels.dtype} {pixels.shape}"
        )
    if floating and not (pixels.min() >= 0 and pixels.max() <= 1):
        raise UserError(f"{where}: expected floating-point pixels within 0 and 1, or uint8")
    kept = pixels.astype(np.float32) if floating else pixels
    return torch.from_numpy(np.ascontiguousarray(kept))
