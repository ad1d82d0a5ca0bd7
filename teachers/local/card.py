"""What a file of weights says about itself. No torch here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError

from dfme.errors import UserError

LARGEST = 1e30  # more than any pixel value, mean or deviation of a network in single precision

CardCount = Annotated[int, Field(gt=0, lt=2**31)]
Number = Annotated[float, Field(gt=-LARGEST, lt=LARGEST)]
Numbers = Annotated[tuple[Number, ...], "numbers"]


@dataclass(frozen=True)
class Card:
    """What a weights file says about itself, in the safetensors metadata; None where it says nothing.

    Texts are stored as they are, everything else as JSON. ``shape`` is C, H, W; ``bounds`` the pixel range
    the API takes; ``mean`` and ``std`` are per channel, within those bounds; ``accuracy`` a share of 1.
    Anybody can have written it, so each type is checked; the words after it say what was expected.
    """

    arch: Annotated[str, "text"] | None = None
    shape: Annotated[tuple[CardCount, CardCount, CardCount], "three whole numbers"] | None = None
    num_classes: Annotated[CardCount, "a whole number"] | None = None
    mean: Numbers | None = None
    std: Numbers | None = None
    bounds: Annotated[tuple[Number, Number], "two numbers"] | None = None
    class_names: Annotated[tuple[str, ...], "texts"] | None = None
    dataset: Annotated[str, "text"] | None = None
    accuracy: Annotated[Number, "a number"] | None = None
    test_images: Annotated[CardCount, "a whole number"] | None = None
    recipe: Annotated[dict[str, Any], "a mapping"] | None = None

    def to_metadata(self) -> dict[str, str]:
        """The fields that are known, as the strings safetensors stores."""
        known = {name: value for name, value in vars(self).items() if value is not None}
        return {name: value if isinstance(value, str) else json.dumps(value) for name, value in known.items()}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str], path: Path) -> Card:
        """Read the known keys and leave the others; UserError if one cannot be read."""
        values: dict[str, Any] = {}
        for name, hint in get_type_hints(cls, include_extras=True).items():
            kind = get_args(hint)[0]
            if (text := metadata.get(name)) is not None:
                try:
                    is_text = get_args(kind)[0] is str
                    values[name] = text if is_text else TypeAdapter(kind).validate_json(text, strict=True)
                except ValidationError:
                    expected = kind.__metadata__[-1]
                    raise UserError(f"{path}: its metadata {name} should be {expected}, but is {text[:80]!r}") from None
        return cls(**values)
