"""The classes of a service that answers with names: which of them is the student's class 0, 1, 2."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from dfme.config.messages import did_you_mean
from dfme.errors import Unusable, UserError
from dfme.teachers.remote.json_bodies import shown

_MAX_BYTES = 4_000_000
_MAX_CLASSES = 10_000_000
_MAX_COMPARED = 50_000  # letters, so that looking for a close name takes no noticeable time


@dataclass(frozen=True)
class ClassNames:
    """Names in the order of the student's classes; each stands there once. ``option``: where they are given."""

    names: tuple[str, ...]
    option: str = "classes"

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def _index(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    @property
    def longest(self) -> int:
        """Bytes that a name may take in JSON, where a character may be written in six, and a rare one in twelve."""
        return max(12 * len(name) for name in self.names)

    def index(self, name: object) -> int:
        """The number of a class. Unusable for a name that is none of them; a whole number stands for its text."""
        text = f"{name:d}" if type(name) is int and abs(name) < _MAX_CLASSES else name
        number = self._index.get(text) if isinstance(text, str) else None
        if number is None:
            close = isinstance(text, str) and len(text) * len(self) < _MAX_COMPARED
            hint = did_you_mean(str(text), self.names) if close else ""
            text = f"{self.option}: expected one of the {len(self)} given, got {shown(name)}{hint}"
            raise Unusable(text, "unknown class")
        return number

    def row(self, pairs: Iterable[tuple[object, object]]) -> list[float]:
        """The scores of one image by class, NaN where there is none; Unusable for odd names and scores."""
        scores: dict[int, float] = {}
        for name, score in pairs:
            number = self.index(name)
            if number in scores:
                raise Unusable(f"expected each class once, got {shown(name)} twice", "a class twice")
            if not isinstance(score, int | float) or isinstance(score, bool):
                raise Unusable(f"expected a number as the score of {shown(name)}, got {shown(score)}", "no numbers")
            try:
                scores[number] = float(score)
            except OverflowError:
                text = "expected numbers as scores, got one too large for any float"
                raise Unusable(text, "no numbers") from None
        return [scores.get(number, np.nan) for number in range(len(self))]


def read_class_names(given: Sequence[str] | str, option: str, folder: Path | None = None) -> ClassNames:
    """Class names from a list, a text with commas, or a text file with one name a line; UserError names ``option``.

    ``folder``: where a file has to lie, at any depth; None: anywhere.
    """
    names = _from_text(given, option, folder) if isinstance(given, str) else [str(name).strip() for name in given]
    if len(names) < 2:
        raise UserError(f"{option}: expected at least two classes, got {len(names)}")
    if "" in names:
        raise UserError(f"{option}: expected a name for each class, got an empty one as number {names.index('') + 1}")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise UserError(f"{option}: expected each class once, got {twice[0]!r} twice")
    return ClassNames(tuple(names), option)


def _from_text(given: str, option: str, folder: Path | None) -> list[str]:
    path = Path(given) if folder is None else folder / given
    if not _is_file(path):
        if "," in given:
            return [name.strip() for name in given.split(",")]
        raise UserError(f"{option}: expected names separated by commas, or a text file with one a line; no file {path}")
    if folder is not None and not path.resolve().is_relative_to(folder.resolve()):
        raise UserError(f"{option}: expected a file in {folder}, got {given}")
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        text = content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(f"{option}: cannot read {path}: {reason}") from None
    if len(content) > _MAX_BYTES:
        raise UserError(f"{option}: expected at most {_MAX_BYTES} bytes of class names, {path} has more")
    return [line.strip() for line in text.rstrip().split("\n")]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a long list of names is too long for a path
        return False
