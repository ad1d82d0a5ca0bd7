"""Values: from text, files or Python mappings to checked models, by pydantic. No torch here.

Models are read as one flat list of options (``student.lr``), since flags, files and messages name them so.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Annotated, Any, TypeVar, cast, get_origin

import yaml
from pydantic import TypeAdapter, ValidationError

from dfme.config.fields import BASIC, CONFIG
from dfme.config.messages import Problem, did_you_mean, fault_text, members
from dfme.config.yaml_files import parse_yaml
from dfme.errors import UserError

REQUIRED: Any = dataclasses.MISSING
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Option:
    """One field of a model: ``key`` is dotted, with underscores; ``default`` is REQUIRED where there is none."""

    key: str
    type: Any
    default: Any
    help: str
    basic: bool = True

    @property
    def name(self) -> str:
        return self.key.rpartition(".")[2]

    @property
    def required(self) -> bool:
        return self.default is REQUIRED

    @property
    def is_switch(self) -> bool:
        """Whether the flag alone means true."""
        return bool in members(self.type)


def options_of(model: type[Any], prefix: str = "") -> list[Option]:
    """The fields of a model, nested models expanded, in their order."""
    options: list[Option] = []
    for name, info in model.__pydantic_fields__.items():
        if dataclasses.is_dataclass(info.annotation):
            options += options_of(cast("type[Any]", info.annotation), f"{prefix}{name}.")
            continue
        kind = Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation
        default = REQUIRED if info.is_required() else info.get_default(call_default_factory=True)
        options.append(Option(prefix + name, kind, default, _help(model, name), BASIC in info.metadata))
    return options


def _help(model: type[Any], name: str) -> str:
    """The text below the field, in the model or in the one it is derived from."""
    found = (_texts(base.__module__).get((base.__name__, name)) for base in model.__mro__[:-1])
    return next((text for text in found if text), "")


@functools.cache
def _texts(module: str) -> dict[tuple[str, str], str]:
    """The texts below the fields of a module's classes; pydantic's own reading of them costs 3 ms a class on import.

    Before Python 3.13 it also misses one now and then.
    """
    return {
        (model.name, field.target.id): " ".join(text.value.value.split())
        for model in ast.parse(inspect.getsource(sys.modules[module])).body
        if isinstance(model, ast.ClassDef)
        for field, text in pairwise(model.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }


def build(model: type[T], values: Mapping[str, Any], prefix: str = "") -> T:
    """The model whose values are given by dotted key; other fields keep their default."""
    arguments: dict[str, Any] = {}
    for name, info in cast(Any, model).__pydantic_fields__.items():
        if dataclasses.is_dataclass(info.annotation):
            arguments[name] = build(cast("type[Any]", info.annotation), values, f"{prefix}{name}.")
        elif prefix + name in values:
            arguments[name] = values[prefix + name]
    return model(**arguments)


def leaves(config: Any) -> dict[str, Any]:
    """The values of a configuration by dotted key: the inverse of ``build``."""
    return dict(flatten(dataclasses.asdict(config), ()))


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


def from_mapping(model: type[T], mapping: Mapping[str, Any], prefix: str = "") -> T:
    """The model with the values of a Python mapping, which may be nested.

    Raises:
        UserError: naming, with ``prefix``, every unknown name (with the nearest) and every wrong value.
    """
    options = {option.key: option for option in options_of(model)}
    values, problems = validate(options, dict(flatten(mapping, options)))
    if problems:
        raise UserError("; ".join(f"{prefix}{key}: {text}" for key, text in problems))
    return build(model, values)


def validate(
    options: Mapping[str, Option], given: Mapping[str, Any], unknown: Callable[[str], str] | None = None
) -> tuple[dict[str, Any], list[Problem]]:
    """The given values in the types of their options, and what is wrong with all that are left out.

    ``unknown`` words what is said of a key that is no option.
    """
    name_of = unknown or (lambda key: f"unknown option{did_you_mean(key, options)}")
    values: dict[str, Any] = {}
    problems = [Problem(key, name_of(key)) for key in given if key not in options]
    for key, kind in [(key, options[key].type) for key in given if key in options]:
        try:
            values[key] = reader(kind).validate_python(spelled(kind, given[key]))
        except ValidationError as error:
            problems.append(Problem(key, fault_text(kind, given[key], error.errors(include_url=False))))
    missing = [option for key, option in options.items() if option.required and key not in given]
    return values, problems + [Problem(each.key, f"missing; expected {each.help or 'a value'}") for each in missing]


def reader(kind: Any) -> TypeAdapter[Any]:
    """What checks a value of this type; PydanticUserError or NameError if pydantic has no idea of it."""
    return TypeAdapter(kind, config=None if hasattr(kind, "__pydantic_fields__") else CONFIG)


def spelled(kind: Any, value: Any) -> Any:
    """Text as people write it, in a form that pydantic reads: ``1,2`` is a sequence, ``none`` no value."""
    kinds = members(kind)
    if isinstance(value, bool) and not {bool, Any, object} & set(kinds):
        return str(value)  # true is no number
    if not isinstance(value, str):
        return value
    if type(None) in kinds and value.strip().lower() in ("none", "null"):
        return None
    for member in kinds:
        if isinstance(member, enum.EnumMeta) and value in member.__members__:
            return member[value]
    sequence = next((member for member in kinds if get_origin(member) in (tuple, list)), None)
    if sequence is not None and value.lstrip().startswith("("):
        value = value.replace("(", "[").replace(")", "]")
    if Any in kinds or (value.lstrip().startswith(("[", "{")) and kinds != (str,)):
        return _as_yaml(value)
    if sequence is None or str in kinds:
        return value
    return [part.strip() for part in value.split(",") if part.strip()]


def _as_yaml(text: str) -> Any:
    try:
        return parse_yaml(text)
    except yaml.YAMLError:
        return text
