"""The options in the signature of a teacher of one's own: types, defaults and help are its author's."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import PydanticUserError

from dfme.config.values import REQUIRED, Option, reader
from dfme.errors import UserError

PREFIX = "teacher."

_ARGUMENT = re.compile(
    r"^(?P<indent>[ \t]*)(?::param )?(?P<name>\w+)(?: ?\([^)\n]*\))?: +(?P<text>\S.*(?:\n(?P=indent)[ \t]+\S.*)*)", re.M
)
"""An argument in a docstring in Google's or Sphinx' style, with the lines that are indented below it."""


def own_options(target: Callable[..., Any], common: Mapping[str, Option]) -> list[Option]:
    """One option per parameter; where it has no type but the name of a common key, it has that key's type.

    An object that is neither class nor function is the teacher itself and has no options.

    Raises:
        UserError: if a parameter without a default cannot be given by a flag.
    """
    documented = (target.__doc__, getattr(getattr(target, "__init__", None), "__doc__", None))
    texts = {
        found["name"]: " ".join(found["text"].split())
        for text in reversed(documented)
        for found in _ARGUMENT.finditer(inspect.cleandoc(text or ""))
    }
    options: list[Option] = []
    for parameter, hint in _parameters(target):
        name, default = parameter.name, parameter.default
        if name == "kind" or parameter.kind is parameter.POSITIONAL_ONLY:
            if default is parameter.empty:
                what = getattr(target, "__name__", "the teacher")
                raise UserError(f"--teacher: {what}'s parameter {name!r} cannot be a flag; rename it")
            continue
        known = common.get(PREFIX + name)
        kind = _readable(hint) if hint is not None else known.type if known else Any
        kind = kind | None if default is None and kind is not Any else kind  # `token: str = None`, as people write it
        text = texts.get(name) or (known.help if known else _argument_of(target))
        options.append(Option(PREFIX + name, kind, REQUIRED if default is parameter.empty else default, text))
    return options


def _readable(hint: Any) -> Any:
    """The type, or any if pydantic has no idea of it."""
    try:
        reader(hint)
    except (PydanticUserError, NameError):
        return Any
    return hint


def _argument_of(target: Callable[..., Any]) -> str:
    """What is known of an argument that nobody described; a function is easily taken for the teacher itself."""
    name = getattr(target, "__name__", "the teacher")
    return f"an argument of {name}" + (", which makes the teacher" if inspect.isroutine(target) else "")


def _parameters(target: Callable[..., Any]) -> Iterator[tuple[inspect.Parameter, Any]]:
    """Parameters with their types, None where untyped; a class's ``**kwargs`` goes on to its base classes."""
    if inspect.isroutine(target):
        yield from _typed(target)
    if not inspect.isclass(target):
        return
    seen = {"self"}
    for owner in inspect.getmro(target):
        constructor = vars(owner).get("__init__")
        if owner is object or constructor is None:
            continue
        for parameter, hint in _typed(constructor):
            if parameter.name not in seen:
                seen.add(parameter.name)
                yield parameter, hint
        signature = inspect.signature(constructor)
        if all(each.kind is not each.VAR_KEYWORD for each in signature.parameters.values()):
            return


def _typed(function: Callable[..., Any]) -> Iterator[tuple[inspect.Parameter, Any]]:
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError):  # a type that only exists for a type checker
        raw = getattr(function, "__annotations__", {})
        hints = {name: hint for name, hint in raw.items() if not isinstance(hint, str)}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            yield parameter, hints.get(parameter.name)
