"""What a message says: the nearest name for a typo, what was expected of a value, and what came."""

from __future__ import annotations

import difflib
import types
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from dfme.errors import Problem

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

MAX_LETTERS = 500  # of a message

TYPE_WORDS: dict[Any, tuple[str, str, tuple[str, ...]]] = {
    int: ("a whole number", "whole numbers", ("3", "32", "32")),
    float: ("a number", "numbers", ("0.1", "0.3", "0.5")),
    str: ("text", "words", ("a", "b", "c")),
    bool: ("true or false", "true or false", ("true", "false")),
    type(None): ("none", "none", ("none",)),
    Path: ("a path", "paths", ("a", "b")),
}
"""What a type is called, alone and in a list, and an example of a list."""


def printable(text: str, mark: str = "?") -> str:
    """Text of somebody else's without what moves a terminal's cursor."""
    return "".join(letter if letter.isprintable() else mark for letter in text)


STEERING = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode's categories of letters that steer a reader unseen: escapes, turned directions, breaks.
"""


def harmless(text: str, mark: str = "?") -> str:
    """Text of several lines without letters that steer a reader; lines and blanks of all kinds
    stay.
    """
    if text.isprintable():
        return text
    blanks = "\n\t"
    return "".join(
        letter if letter in blanks or unicodedata.category(letter) not in STEERING else mark
        for letter in text
    )


def shortened(text: str, most: int = MAX_LETTERS) -> str:
    """A message of at most so many letters: of a longer one, its beginning and its end, with the
    remedy.
    """
    if len(text) <= most:
        return text
    end = most // 4
    return f"{text[: most - end - 5]} ... {text[-end:]}"


def safe_name(name: str) -> str:
    """A name for a message, on one line, without letters that move a cursor."""
    plain = printable(name)
    return plain if len(plain) <= 80 else f"{plain[:60]}...{plain[-15:]}"


def listed(values: Iterable[float]) -> str:
    """Numbers as one writes them on the command line."""
    return ",".join(f"{value:g}" for value in values)


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """The choice a person most likely meant: of the same last part, else of close spelling; else
    None.
    """
    names = list(choices)
    leaf = name.rpartition(".")[2]
    same_leaf = [choice for choice in names if choice.rpartition(".")[2] == leaf]
    if close := difflib.get_close_matches(
        name, same_leaf or names, n=1, cutoff=0.0 if same_leaf else 0.6
    ):
        return close[0]
    leaves = {choice.rpartition(".")[2]: choice for choice in names}
    close = difflib.get_close_matches(leaf, list(leaves), n=1, cutoff=0.75)
    return leaves[close[0]] if close else None


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """``; did you mean X?``, or nothing where no choice is close."""
    choice = nearest(name, choices)
    return f"; did you mean {choice}?" if choice else ""


def unknown_choice(what: str, name: str, choices: Iterable[str]) -> str:
    """Message for a name that is none of the choices: all of them, and the nearest."""
    names = list(choices)
    return f"expected a {what} ({', '.join(names)}), got {name!r}{did_you_mean(name, names)}"


def problem_with(key: str, kind: Any, value: Any, faults: Sequence[ErrorDetails]) -> Problem:
    """What pydantic finds wrong with one value of this type, in one place or several."""
    raised = [fault["ctx"]["error"] for fault in faults if fault["type"] == "value_error"]
    if raised:
        return Problem(key, raised[0].args[0])
    got = "none" if value is None else repr(value)
    bounds = dict(_bounds(kind))
    if faults[0]["type"] == "string_pattern_mismatch":
        return Problem(key, f"expected {bounds['words']}", got)
    ranged = any(fault["type"].startswith(("greater_", "less_", "finite_")) for fault in faults)
    if ranged and bounds:
        plain = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        many = any(get_origin(member) in (tuple, list) for member in members(kind))
        return Problem(key, f"expected {_range(bounds, many)}", plain)
    literals = [get_args(member) for member in members(kind) if get_origin(member) is Literal]
    near = nearest(str(value), map(str, chain(*literals)))
    return Problem(key, f"expected {expected(kind)}", got, near)


def members(kind: Any) -> tuple[Any, ...]:
    """The alternatives of a union, or the type alone, without what is annotated to them."""
    if get_origin(kind) is Annotated:
        return members(get_args(kind)[0])
    if get_origin(kind) in (Union, types.UnionType):
        return tuple(member for part in get_args(kind) for member in members(part))
    return (kind,)


def expected(kind: Any) -> str:
    """Description of a value of this type, in words for a person."""
    kinds = members(kind)
    own_words = dict(_bounds(kind)).get("words") if kinds[0] is str else None
    # the text's words are those of the list, too
    if own_words and any(get_origin(other) is tuple for other in kinds[1:]):
        return str(own_words)
    return " or ".join(
        [own_words, *map(_one_expected, kinds[1:])] if own_words else map(_one_expected, kinds)
    )


def _one_expected(kind: Any) -> str:
    origin = get_origin(kind)
    arguments = get_args(kind)
    if origin is Literal:
        choices = ", ".join(map(str, arguments))
        return f"one of {choices}" if len(arguments) > 1 else choices
    if origin in (tuple, list) and arguments:
        open_ended = origin is list or Ellipsis in arguments
        _, plural, samples = TYPE_WORDS.get(
            members(arguments[0])[0], ("", "values", ("a", "b", "c"))
        )
        count = "" if open_ended else f"{len(arguments)} "
        return (
            f"{count}{plural} such as "
            f"{','.join(samples if open_ended else samples[: len(arguments)])}"
        )
    return (
        TYPE_WORDS[kind][0] if kind in TYPE_WORDS else getattr(kind, "__name__", None) or str(kind)
    )


def _bounds(kind: Any) -> Iterator[tuple[str, Any]]:
    """Limits of a type: bounds by their names in pydantic, and ``words`` if it says them itself."""
    for part in get_args(kind):
        yield from _bounds(part)
    for mark in getattr(kind, "__metadata__", ()):
        for limit in (mark, *getattr(mark, "metadata", ())):
            names = (name for name in ("gt", "ge", "lt", "le", "words") if hasattr(limit, name))
            yield from ((name, getattr(limit, name)) for name in names)


def _range(bounds: Mapping[str, Any], many: bool) -> str:
    if "words" in bounds:
        return str(bounds["words"])
    if "le" in bounds or "lt" in bounds:
        low = f"above {bounds['gt']:g}" if "gt" in bounds else f"from {bounds.get('ge', 0):g}"
        high = f"{bounds['le']:g}" if "le" in bounds else f"below {bounds['lt']:g}"
        return f"{'numbers' if many else 'a number'} {low} to {high}"
    if bounds.get("gt") == 0:
        return "positive numbers" if many else "a positive number"
    return (
        "0 or more" if bounds.get("ge") == 0 else f"at least {bounds.get('ge', bounds.get('gt')):g}"
    )
