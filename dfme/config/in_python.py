"""Messages name options as flags, as one types them; in Python they name the arguments of the function called."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Literal, get_args, get_origin

from dfme.config.messages import members
from dfme.config.values import Option

FLAG = re.compile(r"(?<![\w-])--(?P<key>[a-z]\w*(?:[-.][a-z]\w*)*)(?: (?P<word>[^\s,;)]*[^\s,;:).])(?=[\s,;:).]|$))?")
"""A flag in a sentence, and the word behind it, which may be its value."""

CONSTANTS = {"true": "True", "false": "False", "none": "None"}


def in_python(text: str, options: Mapping[str, Option], arguments: Collection[str]) -> str:
    """The message with ``student={"lr": 0.1}`` for ``--student.lr 0.1``, where the function has such an argument."""

    def spelled(found: re.Match[str]) -> str:
        key, word = found["key"].replace("-", "_"), found["word"] or ""
        value = _value(word, options.get(key))
        if word and (key == "method.name" or (found.start() == 0 and text[found.end() :].startswith(":"))):
            value = value or f'"{word}"'  # what the message is about
        rest = f" {word}" if word and not value else ""
        section, _, name = {"method.name": "method"}.get(key, key).rpartition(".")
        section = {"method": "method_options", "teacher": "" if name in arguments else section}.get(section, section)
        if section in arguments:
            return f'{section}={{"{name}": {value or "..."}}}{rest}'
        return f"{name}={value or '...'}{rest}" if not section and name in arguments else " ".join([key, word]).strip()

    return FLAG.sub(spelled, text)


def _value(word: str, option: Option | None) -> str | None:
    """The word in Python, if it is a value of the option rather than the sentence's next word."""
    kinds = members(option.type) if option is not None else ()
    choices = [choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
    number = re.fullmatch(r"-?\d[\d.]*(e[+-]?\d+)?", word)
    return CONSTANTS.get(word) or (word if number else f'"{word}"' if word in choices else None)
