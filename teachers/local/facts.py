"""Facts about a teacher that may be given, found in its files, or both: they must agree."""

from __future__ import annotations

from typing import TypeVar

from dfme.errors import UserError

Told = TypeVar("Told")


def agreed(what: str, flag: str, given: Told | None, found: Told | None, says: str, origin: str) -> Told:
    """The one value of a fact. UserError where both are known and differ, naming both, or where neither is.

    ``says`` stands before the value found (``the weights are for``); ``origin`` is what it was looked for in.
    """
    if given is not None and found is not None and given != found:
        raise UserError(f"{flag}: got {as_text(given)}, but {says} {as_text(found)}")
    value = found if given is None else given
    if value is None:
        raise UserError(f"{flag}: the {what} cannot be told from {origin}; give it")
    return value


def as_text(value: object) -> str:
    """A shape as it is written on the command line, sizes that may be any as ?; anything else as it is."""
    if isinstance(value, tuple):
        return ",".join("?" if size is None else str(size) for size in value)
    return str(value)


def first_line(error: BaseException, longest: int = 300) -> str:
    """An error's first line that says anything, cut to ``longest``, or its name where it has no message."""
    lines = (" ".join(line.split()) for line in str(error).splitlines())
    return next((line for line in lines if line), type(error).__name__)[:longest]
