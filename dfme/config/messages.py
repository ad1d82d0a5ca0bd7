"""The words of the command line's messages: what a type is called, and the nearest name for a typo."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple


class TypeWord(NamedTuple):
    """How a type is called in a message, alone and in a list, and values to show as an example."""

    single: str
    plural: str
    samples: tuple[str, ...]


TYPE_WORDS: dict[Any, TypeWord] = {
    int: TypeWord("a whole number", "whole numbers", ("3", "32", "32")),
    float: TypeWord("a number", "numbers", ("0.1", "0.3", "0.5")),
    str: TypeWord("text", "words", ("a", "b", "c")),
    bool: TypeWord("true or false", "true or false", ("true", "false")),
    type(None): TypeWord("none", "none", ("none",)),
    Path: TypeWord("a path", "paths", ("a", "b")),
}


def listed(values: Iterable[float]) -> str:
    """Numbers as one writes them on the command line."""
    return ",".join(f"{value:g}" for value in values)


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """The choice a person most likely meant: of the same last part, else of close spelling; else None."""
    known = list(choices)
    leaf = name.rpartition(".")[2]
    same_leaf = [choice for choice in known if choice.rpartition(".")[2] == leaf]
    if same_leaf:
        return max(same_leaf, key=lambda choice: difflib.SequenceMatcher(None, name, choice).ratio())
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return close[0]
    leaves = {choice.rpartition(".")[2]: choice for choice in known}
    close = difflib.get_close_matches(leaf, list(leaves), n=1, cutoff=0.75)
    return leaves[close[0]] if close else None


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """``; did you mean X?``, or nothing where no choice is close."""
    choice = nearest(name, choices)
    return f"; did you mean {choice}?" if choice else ""


def unknown_choice(what: str, name: str, choices: Iterable[str]) -> str:
    """What to say of a name that is none of the choices: all of them, and the nearest."""
    known = list(choices)
    return f"expected a {what} ({', '.join(known)}), got {name!r}{did_you_mean(name, known)}"
