"""What a file of weights says about itself. No torch here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dfme.errors import UserError

LARGEST = 1e30
"""More than any pixel value, mean or deviation of a network in single precision."""


@dataclass(frozen=True)
class Card:
    """What a weights file says about itself, in the safetensors metadata; None where it says nothing.

    Texts are stored as they are, everything else as JSON. ``shape`` is C, H, W; ``bounds`` the pixel range
    the API takes; ``mean`` and ``std`` are per channel, within those bounds; ``accuracy`` a share of 1.
    """

    arch: str | None = None
    shape: tuple[int, int, int] | None = None
    num_classes: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    bounds: tuple[float, float] | None = None
    class_names: tuple[str, ...] | None = None
    dataset: str | None = None
    accuracy: float | None = None
    test_images: int | None = None
    recipe: dict[str, Any] | None = None

    def to_metadata(self) -> dict[str, str]:
        """The fields that are known, as the strings safetensors stores."""
        known = {name: value for name, value in vars(self).items() if value is not None}
        return {name: value if isinstance(value, str) else json.dumps(value) for name, value in known.items()}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str], path: Path) -> Card:
        """Read the known keys and leave the others; UserError if one cannot be read."""
        values: dict[str, Any] = {}
        for name, (is_one, words) in FORMS.items():
            if (text := metadata.get(name)) is None:
                continue
            try:
                value = text if is_one is _is_text else json.loads(text)
            except (ValueError, RecursionError):
                raise UserError(f"{path}: its metadata {name} should be JSON, but is {text[:80]!r}") from None
            if not is_one(value):
                raise UserError(f"{path}: its metadata {name} should be {words}, but is {text[:80]!r}")
            values[name] = tuple(value) if isinstance(value, list) else value
        return cls(**values)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 < value < 2**31


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and -LARGEST < value < LARGEST  # type: ignore[operator]


def _is_list(of: Callable[[object], bool], length: int | None = None) -> Callable[[object], bool]:
    def holds(value: object) -> bool:
        return isinstance(value, list) and len(value) in (length or len(value),) and all(map(of, value))

    return holds


FORMS: dict[str, tuple[Callable[[object], bool], str]] = {
    "arch": (_is_text, "text"),
    "shape": (_is_list(_is_count, 3), "three whole numbers"),
    "num_classes": (_is_count, "a whole number"),
    "mean": (_is_list(_is_number), "numbers"),
    "std": (_is_list(_is_number), "numbers"),
    "bounds": (_is_list(_is_number, 2), "two numbers"),
    "class_names": (_is_list(_is_text), "texts"),
    "dataset": (_is_text, "text"),
    "accuracy": (_is_number, "a number"),
    "test_images": (_is_count, "a whole number"),
    "recipe": (lambda value: isinstance(value, dict), "a mapping"),
}
"""What each key of a file's metadata must hold, and how to say so; anybody can have written it."""
