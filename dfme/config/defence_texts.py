"""Defences as they are typed: ``a:x=1+b`` on a command line, a list of mappings in a file. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator

from dfme.config.defences import DEFENCES, DefenceOptions
from dfme.config.fields import Expected
from dfme.config.messages import unknown_choice
from dfme.config.values import from_mapping
from dfme.errors import UserError


def parse_defences(given: object) -> tuple[DefenceOptions, ...]:
    """The defences that a text (``a:x=1+b``) or a list of mappings ({name: a, x: 1}) or texts names, in their order.

    UserError for unknown names and options and values out of range.
    """
    if isinstance(given, str):
        if "," in given:
            raise UserError(f"expected defences joined by +, such as modelguard_w:epsilon=1+lattice, got {given!r}")
        given = [] if given.strip().lower() in ("", "none") else given.split("+")
    if isinstance(given, Mapping):
        given = [given]
    if not isinstance(given, list | tuple):
        raise UserError(f"expected a list of defences, got {given!r}")
    return tuple(each for one in given for each in _one_or_several(one))


def _one_or_several(given: object) -> tuple[DefenceOptions, ...]:
    if isinstance(given, str) and "+" in given:
        return parse_defences(given)
    if isinstance(given, str):
        name, *pairs = (part.strip() for part in given.split(":"))
        options: dict[str, Any] = {}
        for pair in pairs:
            key, equals, text = pair.partition("=")
            if not equals:
                raise UserError(f"expected NAME:OPTION=VALUE, got {given!r}")
            options[key.strip().replace("-", "_")] = text.strip()
    elif isinstance(given, Mapping):
        options = {str(key).replace("-", "_"): value for key, value in given.items()}
        name = str(options.pop("name", None))
    else:
        raise UserError(f"expected a mapping such as {{name: lattice, n: 10}}, got {given!r}")
    if name not in DEFENCES:
        raise UserError(unknown_choice("defence", name, [*DEFENCES]))
    return (from_mapping(DEFENCES[name], options, prefix=f"{name}:"),)


def _canonical(given: object) -> tuple[str, ...]:
    try:
        return tuple(str(each) for each in parse_defences(given))
    except UserError as error:
        raise ValueError(str(error)) from None


DefencesText = Annotated[str | tuple[str, ...], Expected("defences joined by +"), BeforeValidator(_canonical)]
"""A stack of defences as an option: a text or a list, kept as texts with every option written out."""
