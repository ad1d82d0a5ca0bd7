"""Arrays of numbers, as they travel between a teacher and those who ask it. No torch here."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def as_float32(array: Array) -> Array:
    """A copy in float32; what is too large for it is infinite."""
    with np.errstate(over="ignore"):
        return array.astype(np.float32)
