"""Where something stands in a JSON document: ``predictions[*].scores``, ``result.0.probs``, ``["odd name"][2]``.

Steps are names and numbers; ``[*]`` stands for every item of a list, one for each image. Nothing is evaluated.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dfme.errors import Unusable
from teachers.remote.json_bodies import shown

_STEP = re.compile(
    r'\.?(?P<name>[^\W\d][\w-]*)|\.?(?P<number>\d{1,6})(?!\w)|\[(?P<index>\d{1,6}|\*)\]|\["(?P<quoted>[^"]*)"\]'
)
_MOST_STEPS = 32

EACH = "*"


@dataclass(frozen=True)
class _Step:
    """A name in an object, a number in a list (or the same digits as a name), or every item."""

    name: str | None = None
    index: int | None = None

    @property
    def each(self) -> bool:
        return self.name is None and self.index is None


@dataclass(frozen=True)
class JsonPath:
    """A path, read; an empty text is the document itself."""

    text: str
    steps: tuple[_Step, ...]

    @classmethod
    def read(cls, text: str) -> JsonPath:
        """ValueError, with what was expected and what came, for a text that is no path."""
        steps: list[_Step] = []
        position = 0
        while position < len(text) and len(steps) <= _MOST_STEPS:
            found = _STEP.match(text, position)
            if found is None or (text[position] == "." and position == 0):
                raise ValueError(
                    'expected names with dots and numbers, such as predictions[*].scores or ["odd name"].0, '
                    f"got {text!r}, which cannot be read from {text[position : position + 20]!r}"
                )
            steps.append(_step(found))
            position = found.end()
        if len(steps) > _MOST_STEPS:
            raise ValueError(f"expected at most {_MOST_STEPS} steps, got {text[:80]!r}")
        if sum(step.each for step in steps) > 1:
            raise ValueError(f"expected [*] once, for the images, got {text!r}")
        return cls(text, tuple(steps))

    @property
    def each(self) -> bool:
        """Whether the path leads to one value for each image."""
        return any(step.each for step in self.steps)

    def values(self, document: object) -> list[object]:
        """What stands there: one value, or with ``[*]`` one for each item. Unusable if nothing does."""
        found = [document]
        for step in self.steps:
            if not step.each:
                found = [self._take(value, step) for value in found]
            elif isinstance(found[0], list):
                found = found[0]
            else:
                raise Unusable(f"expected a list at [*] of {self.text}, got {shown(found[0])}", "no answer")
        return found

    def first(self, document: object) -> object | None:
        """The value there, or the first of several; None if nothing stands there."""
        try:
            return next(iter(self.values(document)), None)
        except Unusable:
            return None

    def _take(self, value: object, step: _Step) -> object:
        if isinstance(value, list) and step.index is not None and step.index < len(value):
            item: object = value[step.index]
            return item
        name = step.name if step.index is None else str(step.index)
        if isinstance(value, dict) and name in value:
            return value[name]
        raise Unusable(f"expected {name} of {self.text} in the answer, got {shown(value)}", "no answer")


def _step(found: re.Match[str]) -> _Step:
    number = found["number"] or found["index"]
    if number == EACH:
        return _Step()
    if number is not None:
        return _Step(index=int(number))
    return _Step(name=found["name"] if found["name"] is not None else found["quoted"])
