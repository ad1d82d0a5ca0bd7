"""Options: the typed leaves of a configuration, whose values come from flags, files or Python mappings.

A configuration dataclass is flattened into options (``student.lr``), values are converted one option at a
time by jsonargparse, and the dataclass is built again from the values. Converting leaf by leaf lets every
mistake be named with its flag, and all mistakes be reported together.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from docstring_parser import parse as parse_docstring
from jsonargparse import ArgumentError, ArgumentParser

from dfme.config.messages import TYPE_WORDS, did_you_mean
from dfme.errors import UserError

REQUIRED: Any = dataclasses.MISSING
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Option:
    """One leaf: ``key`` is dotted, with underscores; ``default`` is REQUIRED where a value must be given."""

    key: str
    type: Any
    default: Any
    help: str

    @property
    def name(self) -> str:
        return self.key.rpartition(".")[2]

    @property
    def required(self) -> bool:
        return self.default is REQUIRED


def argument_help(*documented: Any) -> dict[str, str]:
    """The help of each argument, from docstrings of classes or functions; the first that names one wins."""
    texts: dict[str, str] = {}
    for item in documented:
        for argument in parse_docstring(item.__doc__ or "").params:
            texts.setdefault(argument.arg_name, " ".join((argument.description or "").split()))
    return texts


def dataclass_options(cls: type[Any], prefix: str = "") -> list[Option]:
    """The leaves of a configuration dataclass, nested dataclasses expanded, in the order of their fields."""
    hints, texts = get_type_hints(cls), argument_help(*cls.__mro__[:-1])
    options: list[Option] = []
    for field in dataclasses.fields(cls):
        key, kind = prefix + field.name, hints[field.name]
        if dataclasses.is_dataclass(kind):
            options += dataclass_options(cast("type[Any]", kind), key + ".")
        else:
            options.append(Option(key, kind, _default(field), texts.get(field.name, "")))
    return options


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def build(cls: type[T], values: Mapping[str, Any], prefix: str = "") -> T:
    """The dataclass whose leaves are in ``values`` by dotted key; other leaves keep their default."""
    hints = get_type_hints(cls)
    arguments: dict[str, Any] = {}
    for field in dataclasses.fields(cast(Any, cls)):
        key, kind = prefix + field.name, hints[field.name]
        if dataclasses.is_dataclass(kind):
            arguments[field.name] = build(cast("type[Any]", kind), values, key + ".")
        elif key in values:
            arguments[field.name] = values[key]
    return cls(**arguments)


def leaves(config: Any, prefix: str = "") -> dict[str, Any]:
    """The values of a configuration by dotted key: the inverse of ``build``."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            values |= leaves(value, f"{prefix}{field.name}.")
        else:
            values[prefix + field.name] = value
    return values


def from_mapping(cls: type[T], mapping: Mapping[str, Any], prefix: str = "") -> T:
    """The dataclass with the values of a Python mapping, which may be nested.

    Raises:
        UserError: naming, with ``prefix``, every unknown name (with the nearest) and every wrong value.
    """
    options = {option.key: option for option in dataclass_options(cls)}
    values: dict[str, Any] = {}
    problems: list[str] = []
    for key, value in flatten(mapping, options):
        if key not in options:
            problems.append(f"{prefix}{key}: unknown option{did_you_mean(key, options)}")
            continue
        try:
            values[key] = convert(options[key], value)
        except ValueError as error:
            problems.append(f"{prefix}{key}: {error}")
    if problems:
        raise UserError("; ".join(problems))
    return build(cls, values)


def flatten(mapping: Mapping[str, Any], known: Iterable[str], prefix: str = "") -> list[tuple[str, Any]]:
    """Dotted keys and values of a nested mapping; the value of a key that is an option is not entered."""
    pairs: list[tuple[str, Any]] = []
    for name, value in mapping.items():
        key = prefix + str(name).replace("-", "_")
        if key not in known and isinstance(value, Mapping) and value:
            pairs += flatten(value, known, key + ".")
        else:
            pairs.append((key, value))
    return pairs


def convert(option: Option, value: Any) -> Any:
    """The value in the option's type: text as a flag gives it, or an object as a file or Python gives it.

    Raises:
        ValueError: with what was expected and what came; the caller adds which option it was.
    """
    if value is None and option.default is not None and not {type(None), Any} & set(_members(option.type)):
        raise ValueError(f"expected {expected(option.type)}, got none")
    attempts = [_spelled(option.type, value)]
    if isinstance(value, int | float) and not isinstance(value, bool):
        attempts.append(str(value))  # a file's `name: 2024` where text is wanted
    for attempt in attempts:
        try:
            return _typed(option.type, attempt)
        except (ArgumentError, TypeError, ValueError, OverflowError):
            continue
    choices = [str(choice) for member in _members(option.type) for choice in _choices(member)]
    raise ValueError(f"expected {expected(option.type)}, got {value!r}{did_you_mean(str(value), choices)}")


def _typed(kind: Any, value: Any) -> Any:
    parser = ArgumentParser(exit_on_error=False, add_help=False)
    parser.add_argument("--value", type=kind)
    if isinstance(value, str):
        parsed = parser.parse_args([f"--value={value}"])
    else:
        parsed = parser.parse_object({"value": value})
    return parser.instantiate(parsed).value


def _spelled(kind: Any, value: Any) -> Any:
    """What jsonargparse reads: ``1,2`` for a sequence, ``none`` for no value, ``yes`` for true."""
    if not isinstance(value, str):
        return list(value) if isinstance(value, tuple) else value
    members = _members(kind)
    if type(None) in members and value.strip().lower() in ("none", "null"):
        return None
    sequence = next((member for member in members if get_origin(member) in (tuple, list)), None)
    if sequence is None or str in members or value.lstrip().startswith(("[", "(")):
        return value.replace("(", "[").replace(")", "]") if sequence is not None else value
    if str in get_args(sequence):
        return [part.strip() for part in value.split(",") if part.strip()]
    return f"[{value}]"


def _members(kind: Any) -> tuple[Any, ...]:
    """The alternatives of a union, or the type alone."""
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _choices(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) is Literal else ()


def is_switch(option: Option) -> bool:
    """Whether the flag alone means true."""
    return bool in _members(option.type)


def expected(kind: Any) -> str:
    """What a value of this type looks like, in words for a person."""
    return " or ".join(_one_expected(member) for member in _members(kind))


def _one_expected(kind: Any) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return f"one of {', '.join(str(choice) for choice in arguments)}"
    if origin in (tuple, list) and arguments:
        count = "" if origin is list or Ellipsis in arguments else f"{len(arguments)} "
        word = TYPE_WORDS[arguments[0]].plural if arguments[0] in TYPE_WORDS else "values"
        return f"{count}{word} such as {_example(arguments)}"
    if kind in TYPE_WORDS:
        return TYPE_WORDS[kind].single
    return getattr(kind, "__name__", None) or str(kind)


def _example(arguments: Sequence[Any]) -> str:
    count = 3 if Ellipsis in arguments or len(arguments) < 2 else len(arguments)
    samples = TYPE_WORDS[arguments[0]].samples if arguments[0] in TYPE_WORDS else ("a", "b", "c")
    return ",".join((samples * count)[:count])
