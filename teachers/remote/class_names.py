"""The classes of a service that answers with names: which of them is the student's class 0, 1,
2.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dfme.config.messages import did_you_mean
from dfme.errors import Unusable
from dfme.teachers.remote.json_bodies import as_number, excerpt

_MAX_CLASSES = 10_000_000
_MAX_COMPARED = 50_000  # letters, so that looking for a close name takes no noticeable time


@dataclass(frozen=True)
class ClassNames:
    """Names in the order of the student's classes, each once. ``option``: their source."""

    names: tuple[str, ...]
    option: str = "classes"

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def _index(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str | int) and str(name) in self._index

    def index(self, name: object) -> int:
        """Number of a class. Unusable for an unknown name; a whole number stands for its text."""
        text = f"{name:d}" if type(name) is int and abs(name) < _MAX_CLASSES else name
        if isinstance(text, str) and text in self._index:
            return self._index[text]
        close = isinstance(text, str) and len(text) * len(self) < _MAX_COMPARED
        hint = did_you_mean(str(text), self.names) if close else ""
        raise Unusable(
            f"{self.option}: expected one of the {len(self)} given, got {excerpt(name)}{hint}",
            "unknown class",
        )

    def row(self, pairs: Iterable[tuple[object, object]]) -> list[float]:
        """The scores of one image by class, NaN where there is none; Unusable for odd names and
        scores.
        """
        scores: dict[int, float] = {}
        for name, value in pairs:
            score = as_number(value)
            number = self.index(name)
            if number in scores:
                raise Unusable(
                    f"expected each class once, got {excerpt(name)} twice", "a class twice"
                )
            if not isinstance(score, int | float) or isinstance(score, bool):
                raise Unusable(
                    f"expected a number as the score of {excerpt(name)}, got {excerpt(score)}",
                    "no numbers",
                )
            try:
                scores[number] = float(score)
            except OverflowError:
                text = "expected numbers as scores, got one too large for any float"
                raise Unusable(text, "no numbers") from None
        return [scores.get(number, np.nan) for number in range(len(self))]
