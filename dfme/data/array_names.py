"""What the arrays of an .npz file are called, ours and those of other libraries. No torch."""

import zipfile
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

ARRAYS: dict[str, tuple[tuple[str, str], ...]] = {
    "train": (
        ("train_images", "train_labels"),
        ("x_train", "y_train"),
        ("X_train", "y_train"),
    ),
    "test": (
        ("test_images", "test_labels"),
        ("x_test", "y_test"),
        ("X_test", "y_test"),
        ("val_images", "val_labels"),
        ("x_val", "y_val"),
        ("X_val", "y_val"),
        ("valid_images", "valid_labels"),
        ("images", "labels"),
        ("X", "y"),
        ("x", "y"),
    ),
}
"""The names of a part's images and labels, the first that are there."""

IMAGES = frozenset(images for pairs in ARRAYS.values() for images, _ in pairs)


def has_train_arrays(names: Collection[str]) -> bool:
    """True if there are labelled images to train with among arrays of these names."""
    return any({*pair} <= {*names} for pair in ARRAYS["train"])


def names_of(names: Collection[str], split: str) -> tuple[str, str]:
    """The names of a part's images and labels; empty ones if it has none."""
    return next((pair for pair in ARRAYS[split] if pair[0] in names), ("", ""))


def image_arrays(names: Collection[str]) -> list[str]:
    """The names that are those of images, sorted."""
    return sorted(name for name in names if name in IMAGES or name.endswith("images"))


POOL = (*(images for images, _ in ARRAYS["train"]), "images", "X", "x")
"""The names of images to ask a teacher about, the first that is there."""


def pool_size(path: Path) -> int | None:
    """Number of images that a pool has in an .npz file, by the head of their array; None where the
    file says nothing of it. Nothing of the array is read.
    """
    from numpy.lib import format as npy

    with suppress(OSError, ValueError, zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
        names = {name.removesuffix(".npy"): name for name in archive.namelist()}
        named = next((names[name] for name in POOL if name in names), None)
        if named is not None:
            with archive.open(named) as file:
                old = npy.read_magic(file) == (1, 0)
                read = npy.read_array_header_1_0 if old else npy.read_array_header_2_0
                shape, _, _ = read(file)
            return int(shape[0]) if shape else None
    return None
