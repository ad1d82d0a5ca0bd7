"""Options and their values: types with ranges, from text, files or Python mappings to checked
models. No torch.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import enum
import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar, cast, get_origin

import yaml
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)

from dfme.config.messages import members, nearest, problem_with
from dfme.config.yaml_files import parse_yaml
from dfme.errors import Problem, Text, UserError, joined, say
from dfme.spec import LabelMode

T = TypeVar("T")

CONFIG = ConfigDict(
    extra="forbid",
    allow_inf_nan=False,
    coerce_numbers_to_str=True,
    arbitrary_types_allowed=True,
    defer_build=True,  # most models of a process are only read for their options
)
"""Of every model. The text below a field is its help."""

BASIC = "basic"
Basic = Annotated[T, BASIC]
"""An option that ``--help`` shows; ``--help-all`` shows the others too."""


class Expected(NamedTuple):
    """Words for what was expected, where the type and its range do not say it well."""

    words: str


_UNITS = {"": 1, "k": 10**3, "m": 10**6}


def accepted_by(check: Callable[[Any], object], whole: bool = False) -> AfterValidator:
    """The value as it came, if ``check`` raises no UserError at it.

    ``whole``: the message keeps what it is about, since the option's name does not say that.
    """

    def validate(value: Any) -> Any:
        try:
            check(value)
        except UserError as error:
            raise ValueError(error.message if whole else error.text) from None
        return value

    return AfterValidator(validate)


def parse_count(value: int | str) -> int:
    """A number of images: 300000, 300_000, 300k, 2M, 1e6, 1.5M. ValueError for anything else."""
    text = str(value).strip().replace("_", "")
    unit = text[-1:].lower() if text[-1:].lower() in _UNITS else ""
    try:
        count = Decimal(text[: len(text) - len(unit)]) * _UNITS[unit]
        if count.is_finite() and abs(count) < 2**63 and count == count.to_integral_value():
            return int(count)
    except InvalidOperation:
        pass
    raise ValueError(f"expected a number of images such as 300000, 300k or 2M, got {value!r}")


Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Images = Annotated[int, BeforeValidator(parse_count), Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63), Expected("a whole number from 0 to below 2^63")]
Classes = Annotated[int, Field(ge=2), Expected("at least 2 (a binary model with one output has 2)")]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Price = Annotated[float, Field(ge=0, le=1e9)]
OwnTeacher = Literal["api", "local"]
Rate = Annotated[float, Field(ge=0.001)]
Share = Annotated[float, Field(ge=0, le=1)]
ShareBelowOne = Annotated[float, Field(ge=0, lt=1)]
ShareAboveZero = Annotated[float, Field(gt=0, le=1)]
Device = Annotated[
    str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$"), Expected("auto, cpu, cuda or cuda:N")
]
LabelModeText = Annotated[str, accepted_by(LabelMode.parse)]


GONE: dict[str, Text] = {
    "estimator.prior": "leave it out: there is no kind prior_guided any more (docs/gradients.md)",
    "graphs": "leave it out: there are no CUDA graphs any more (docs/gpu.md has their figures)",
    "student.final_share": say(
        "no longer an option: {student.rounds:1} takes all {student.steps} once the budget is spent"
    ),
}
"""Options that no longer exist, by dotted key, and what to write instead."""


def no_auto(instead: str) -> BeforeValidator:
    """The value as it came; ``auto``, which it could be once, is refused with what to write."""

    def validate(value: Any) -> Any:
        if value == "auto":
            raise ValueError(
                f"expected {instead}, no longer auto: blocks `when` of a recipe say what holds for "
                "larger images or labels (configs/README.md)"
            )
        return value

    return BeforeValidator(validate)


if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

REQUIRED: Any = dataclasses.MISSING


@dataclasses.dataclass(frozen=True)
class Option:
    """One field of a model: ``key`` is dotted, with underscores; ``default`` REQUIRED if none."""

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


def options_of(model: type[Any], prefix: str = "") -> list[Option]:
    """The fields of a model, nested models expanded, in their order."""
    hashable: Any = model
    return list(_options_of(hashable, prefix))


@functools.cache
def _options_of(model: Any, prefix: str) -> tuple[Option, ...]:
    options: list[Option] = []
    for name, info in model.__pydantic_fields__.items():
        annotation: Any = info.annotation
        if dataclasses.is_dataclass(info.annotation):
            options += _options_of(annotation, f"{prefix}{name}.")
            continue
        kind = Annotated[(annotation, *info.metadata)] if info.metadata else annotation
        default = REQUIRED if info.is_required() else info.get_default(call_default_factory=True)
        options.append(
            Option(prefix + name, kind, default, _help(model, name), BASIC in info.metadata)
        )
    return tuple(options)


def _help(model: type[Any], name: str) -> str:
    """The text below the field, in the model or in the one it is derived from."""
    texts = (_texts(base.__module__).get((base.__name__, name)) for base in model.__mro__[:-1])
    return next((text for text in texts if text), "")


@functools.cache
def _texts(module: str) -> dict[tuple[str, str], str]:
    """Texts below the fields of a module's classes; pydantic's reading is slow, and may miss one.

    None of a module without a source: a notebook, standard input, code that was executed from a
    text.
    """
    try:
        source = ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError, SyntaxError):
        return {}
    texts = dict[tuple[str, str], str]()
    for model in source.body:
        if isinstance(model, ast.ClassDef):
            for field, text in _documented(model):
                texts[model.name, ast.unparse(field.target)] = " ".join(text.split())
    return texts


def _documented(model: ast.ClassDef) -> Iterator[tuple[ast.AnnAssign, str]]:
    """The annotated fields of a class with the texts below them."""
    for field, below in pairwise(model.body):
        text = below.value if isinstance(below, ast.Expr) else None
        if not isinstance(field, ast.AnnAssign) or not isinstance(text, ast.Constant):
            continue
        if isinstance(text.value, str):
            yield field, text.value


def build(
    model: type[T], values_by_key: Mapping[str, Any], prefix: str = ""
) -> tuple[T, list[Problem]]:
    """Build the model from values by dotted key; other fields, and those that are wrong, keep their
    default.

    A required text that is missing or wrong is empty. What is wrong is returned beside the model.
    """
    options = {option.key: option for option in options_of(model, prefix)}
    values = {
        key: spelled(option.type, values_by_key[key])
        for key, option in options.items()
        if key in values_by_key
    }
    problems: list[Problem] = []
    while True:
        try:
            return reader(model).validate_python(_nested(values, prefix)), problems
        except ValidationError as error:
            faults: dict[str, list[ErrorDetails]] = {}
            for fault in error.errors(include_url=False):
                faults.setdefault(_key_of(fault["loc"], prefix, options), []).append(fault)
        for key, faults_of_key in faults.items():
            option = options[key]
            assert all(problem.key != key for problem in problems), (
                f"{key}: a required option must be a text"
            )
            problems.append(_problem(option, values_by_key.get(key), faults_of_key))
            values.pop(key, None)
            if option.required:
                values[key] = ""


def _problem(option: Option, value: object, faults: Sequence[ErrorDetails]) -> Problem:
    if faults[0]["type"] == "missing" and value is None:
        return missing(option)
    return problem_with(option.key, option.type, value, faults)


def missing(option: Option) -> Problem:
    """A required option that nobody gave."""
    return Problem(option.key, f"missing; expected {option.help or 'a value'}")


def _nested(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *sections, name = key.removeprefix(prefix).split(".")
        place = tree
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    return tree


def _key_of(loc: Sequence[int | str], prefix: str, options: Mapping[str, Option]) -> str:
    """Return the key of the option in which pydantic found a fault: its place begins with that
    key.
    """
    keys = (prefix + ".".join(map(str, loc[:parts])) for parts in range(1, len(loc) + 1))
    return next(key for key in keys if key in options)


def narrowed(model: type[T], config: Any) -> T:
    """The model with the values of another one that has fields of the same names."""
    names = [
        field.name for field in dataclasses.fields(cast(Any, model)) if hasattr(config, field.name)
    ]
    return model(**{name: getattr(config, name) for name in names})


def leaves(config: Any) -> dict[str, Any]:
    """The values of a configuration by dotted key: the inverse of ``build``."""
    return dict(flatten(dataclasses.asdict(config), ()))


def flatten(
    mapping: Mapping[str, Any], options: Iterable[str], prefix: str = ""
) -> list[tuple[str, Any]]:
    """Dotted keys and values of a nested mapping; the value of a key that is an option is not
    entered.
    """
    pairs: list[tuple[str, Any]] = []
    for name, value in mapping.items():
        key = prefix + str(name).replace("-", "_")
        if key not in options and isinstance(value, Mapping) and value:
            pairs += flatten(value, options, key + ".")
        else:
            pairs.append((key, value))
    return pairs


def from_mapping(model: type[T], mapping: Mapping[str, Any], prefix: str = "") -> T:
    """The model with the values of a nested mapping. UserError names all that is wrong as the keys
    of a file, after ``prefix``.
    """
    config, problems = read_mapping(model, mapping)
    if problems:
        texts = [say("{}{}: {}", prefix, problem.key, problem.text) for problem in problems]
        raise UserError(joined(texts, "; "))
    return config


def options_from(model: type[T], mapping: Mapping[str, Any], section: str = "") -> T:
    """The same of options of a user. UserError carries their problems; ``section`` begins with the
    key.
    """
    config, problems = read_mapping(model, mapping)
    if problems:
        raise UserError(*(replace(problem, key=f"{section}{problem.key}") for problem in problems))
    return config


def read_mapping(model: type[T], mapping: Mapping[str, Any]) -> tuple[T, list[Problem]]:
    """The model with the values of a nested mapping, and everything that is wrong with them."""
    options = [option.key for option in options_of(model)]
    values = dict(flatten(mapping, options))
    config, problems_of_values = build(model, values)
    problems = []
    for key in values:
        if key in GONE:
            problems.append(Problem(key, GONE[key]))
        elif key not in options:
            problems.append(Problem(key, "unknown option", near=nearest(key, options)))
    return config, [*problems, *problems_of_values]


def read_value(option: Option, value: object) -> tuple[Any, list[Problem]]:
    """Return a value in the type of an option that is in no model, or None and what is wrong with
    it.
    """
    try:
        return reader(option.type).validate_python(spelled(option.type, value)), []
    except ValidationError as error:
        return None, [_problem(option, value, error.errors(include_url=False))]


def reader(kind: Any) -> TypeAdapter[Any]:
    """Checker of values of this type; PydanticUserError or NameError if pydantic has no idea of
    it.
    """
    return TypeAdapter(kind, config=None if hasattr(kind, "__pydantic_fields__") else CONFIG)


def spelled(kind: Any, value: Any) -> Any:
    """Text as people write it, in a form that pydantic reads: ``1,2`` is a sequence, ``none`` no
    value.
    """
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
        with contextlib.suppress(yaml.YAMLError):
            return parse_yaml(value)
        return value
    if sequence is None or str in kinds:
        return value
    return [part.strip() for part in value.split(",") if part.strip()]
