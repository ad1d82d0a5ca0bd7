"""What a file of weights says about itself. No torch here."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dfme.errors import UserError


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
        texts = {"arch", "dataset"}
        known = {name: metadata[name] for name in (f.name for f in dataclasses.fields(cls)) if name in metadata}
        values: dict[str, Any] = {}
        for name, text in known.items():
            try:
                value = text if name in texts else json.loads(text)
            except ValueError:
                raise UserError(f"{path}: its metadata {name} should be JSON, but is {text[:80]!r}") from None
            values[name] = tuple(value) if isinstance(value, list) else value
        return cls(**values)
