"""What the arrays of an .npz file are called, ours and those of other libraries. No torch."""

from collections.abc import Collection

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
