"""How ``dfme.extract`` names an option: by the keyword, or the key of a mapping, that sets it."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial, wraps
from inspect import signature
from typing import ParamSpec, TypeVar

from dfme.config.messages import shortened
from dfme.errors import DfmeError, Ref, as_yaml_key

P = ParamSpec("P")
T = TypeVar("T")

SPOKEN_AS = {"method.name": "method", "teacher.kind": "teacher"}
"""Options that one keyword sets, which is not called as their key ends."""


def speaking_python(function: Callable[P, T]) -> Callable[P, T]:
    """The function; its errors name options by its keywords."""
    keywords = signature(function).parameters

    @wraps(function)
    def speaking(*args: P.args, **named: P.kwargs) -> T:
        try:
            return function(*args, **named)
        except DfmeError as error:
            text = error.message.spelled(partial(as_keyword, keywords=keywords))
            error.args = (shortened(text), *error.args[1:])
            raise

    return speaking


def as_keyword(option: Ref, keywords: Collection[str]) -> str:
    """``student={"lr": 0.1}``; the key itself where no keyword sets the option."""
    value = _python_value(option)
    section, _, name = SPOKEN_AS.get(option.key, option.key).rpartition(".")
    if section == "teacher" and name in keywords:
        section = ""
    section = {"method": "method_options"}.get(section, section)
    if section in keywords:
        return f'{section}={{"{name}": {value}}}'
    if not section and name in keywords:
        return f"{name}={value}"
    return as_yaml_key(option)


def _python_value(option: Ref) -> str:
    """The value in Python, or dots where the message names none."""
    if option.value is None:
        return "..."
    if isinstance(option.value, bool):
        return str(option.value)
    text = option.value_text
    if text in ("none", "true", "false"):
        return text.capitalize()
    with suppress(ValueError):
        float(text)
        return text
    return json.dumps(text, ensure_ascii=False)
