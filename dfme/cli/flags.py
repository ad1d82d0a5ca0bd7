"""The words after the command, split into flags, before it is known which flags there are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from dfme.errors import UserError

ALIASES = {"teacher": "teacher.kind", "method": "method.name", "price_per_1000": "teacher.price_per_1000"}
"""A flag by a short name, and the option it stands for: of a group without a leaf, its first."""

HELP = ("-h", "--help", "--help-all")

_VALUE = re.compile(r"(?!-)|-$|-[.\d]")
"""What a word begins with that can be a flag's value; ``--flag=--value`` can have any."""


class Flag(NamedTuple):
    """One flag as typed: ``--budget 2M`` is ("budget", "2M"), ``--resume`` alone is ("resume", None)."""

    name: str
    text: str | None

    @property
    def key(self) -> str:
        """The option it sets: dashes and underscores are the same."""
        key = self.name.replace("-", "_")
        return ALIASES.get(key, key)

    @property
    def word(self) -> str:
        """The one word that gives this flag."""
        return f"--{self.name}" if self.text is None else f"--{self.name}={self.text}"


def split_flags(words: Sequence[str]) -> list[Flag]:
    """Flags in the order given, those that ask for help left out; UserError for a word that is none nor a value."""
    flags: list[Flag] = []
    left = [word for word in words if word not in HELP]
    while left:
        word = left.pop(0)
        if not word.startswith("--") or len(word) == 2:
            raise UserError(f"expected a flag such as --budget 300k, got {word!r}")
        name, equals, text = word[2:].partition("=")
        valued = not equals and bool(left) and _VALUE.match(left[0])
        flags.append(Flag(name, text if equals else left.pop(0) if valued else None))
    return flags


def last_text(flags: Sequence[Flag], key: str) -> str | None:
    """The text of the last flag that sets this key, or None."""
    return next((flag.text for flag in reversed(flags) if flag.key == key), None)
