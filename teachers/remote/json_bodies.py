"""JSON between a client and a service. Whatever a body holds, reading it raises nothing but
``Unusable``.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from dfme.config.messages import did_you_mean
from dfme.errors import Text, Unusable, say
from dfme.teachers.arrays import Array
from dfme.teachers.json_text import load_json

ROOM = 1_000_000  # bytes that an answer may take besides its numbers
NUMBER = 64  # bytes that a number may take in an answer, with what stands around it
_NUMBERS = {int, float, type(None)}
_SHOWN = 60
_NUMBER_TEXT = re.compile(r"\s*[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d{1,3})?\s*%?\s*", re.ASCII)
WRONG_NUMBER = "class number"  # the reason of a class number that is none
# of an outline: keys of an object, levels, characters of a key
_ENTRIES = 6
_DEPTH = 4
_LONGEST_KEY = 30


def numbers(array: Array) -> list[Any]:
    """An array as nested lists for ``json.dumps``; a float32 in the fewest digits that give it
    back.
    """
    return list((array.astype(str).astype(float) if array.dtype == np.float32 else array).tolist())


def dump(document: object) -> bytes:
    """A document as JSON without blanks."""
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()


def parse(body: bytes) -> object:
    """The document in a body. Unusable if it is no JSON, or nested too deep to be read."""
    try:
        return load_json(body)
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:_SHOWN]
        raise Unusable(
            f"expected an answer in JSON, got {len(body)} bytes that are none ({reason})", "no JSON"
        ) from None


def excerpt(value: object) -> str:
    """Text that a service sent, short enough for a message and with nothing unprintable in it."""
    text = repr(value)
    if isinstance(value, list | dict):
        text = f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def outline(value: object, depth: int = 0) -> str:
    """Keys, types and lengths of a document, never a value; of what is large or deep the
    beginning.
    """
    if isinstance(value, dict | list) and value and depth == _DEPTH:
        return "{...}" if isinstance(value, dict) else f"[{len(value)} x ...]"
    if isinstance(value, dict):
        entries = [
            f"{dumped(key)}: {outline(item, depth + 1)}"
            for key, item in islice(value.items(), _ENTRIES)
        ]
        more = [f"{len(value) - _ENTRIES} more"] if len(value) > _ENTRIES else []
        return "{" + ", ".join(entries + more) + "}"
    if isinstance(value, list):
        return f"[{len(value)} x {outline(value[0], depth + 1)}]" if value else "[]"
    return "null" if value is None else type(value).__name__


def dumped(text: str) -> str:
    """The start of a key in quotes, with nothing unprintable in it."""
    return json.dumps(text if len(text) <= _LONGEST_KEY else f"{text[:_LONGEST_KEY]}...")


def as_number(value: object) -> object:
    """A number that stands in a text, such as "0.93" or "93 %", as a number; all else as it is."""
    if isinstance(value, str) and len(value) <= _SHOWN and _NUMBER_TEXT.fullmatch(value):
        return float(value.strip().removesuffix("%"))
    return value


def table(rows: list[object], classes: int) -> Array:
    """Lists of ``classes`` numbers as float64 (B, K); null is NaN. Unusable for anything else."""
    numbered = []
    for row in rows:
        if not isinstance(row, list) or len(row) != classes:
            hint: Text = ""
            if type(row) in (int, float) or (isinstance(row, list) and len(row) == 1):
                hint = say(
                    "; a binary model's one score wants {teacher.num_classes:2}, a class number "
                    "form: number"
                )
            raise Unusable(
                say("{}{}", f"expected {classes} scores for each image, got {excerpt(row)}", hint),
                "wrong shape",
            )
        numbered.append(_numbers(row))
    try:
        return np.array(numbered, np.float64).reshape(len(rows), classes)
    except OverflowError:
        raise Unusable(
            "expected numbers as scores, got one too large for any float", "no numbers"
        ) from None


def _numbers(row: list[object]) -> list[object]:
    if set(map(type, row)) <= _NUMBERS:
        return row
    row = [as_number(item) for item in row]
    odd = [item for item in row if type(item) not in _NUMBERS]
    if odd:
        raise Unusable(f"expected numbers as scores, got {excerpt(odd[0])}", "no numbers")
    return row


def lone_scores(rows: list[object], classes: int) -> Array | None:
    """A binary model's one number an image, (B,) float64; None where that is not what came."""
    if classes != 2:
        return None
    lone = [row[0] if isinstance(row, list) and len(row) == 1 else row for row in rows]
    if any(isinstance(row, list | dict) for row in lone):
        return None
    column: list[object] = [[as_number(row)] for row in lone]
    return table(column, 1)[:, 0]


def two_columns(lone_B: Array, logits: bool, scale: float = 1.0) -> Array:
    """A binary model's lone scores, of class 1, as those of two classes; ``as_classes``
    for arrays.

    Unusable for what is no probability, where it should be one.
    """
    from dfme.answers.reading import NEGATIVE

    if logits:
        return np.stack([np.zeros_like(lone_B), lone_B], axis=1)
    odd = ~((lone_B >= -NEGATIVE) & (lone_B <= scale * (1 + NEGATIVE)))  # true of NaN, too
    if odd.any():
        raise Unusable(
            say(
                "expected one probability of class 1 for each image, from 0 to {:g}, got {:g}; if "
                "these are logits, start a new run with {teacher.label_mode:logits}",
                scale,
                lone_B[odd][0],
            ),
            "no probability",
        )
    return np.stack([scale - lone_B, lone_B], axis=1)


def read_label(value: object, classes: int) -> int:
    """A class number. Unusable for what is no whole number from 0 to ``classes - 1``."""
    if type(value) is int and 0 <= value < classes:
        return value
    cure = ""
    if type(value) is int and value == classes:
        cure = (
            f": a service that counts from 1 wants form: name, with classes: ['1', ... '{classes}']"
        )
    elif isinstance(value, str):
        cure = ": what is a text wants form: name, with the texts as classes"
    what = f"expected a class number from 0 to {classes - 1}, got {excerpt(value)}{cure}"
    if cure:
        what += "; then start a new run, since this one read the numbers before as counted from 0"
    raise Unusable(what, WRONG_NUMBER)


# The classes of a service that answers with names: which of them is the student's class 0, 1, 2

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
                raise Unusable(
                    "expected numbers as scores, got one too large for any float", "no numbers"
                ) from None
        return [scores.get(number, np.nan) for number in range(len(self))]
