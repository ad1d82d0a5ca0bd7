"""Shared by loaders: given and found values must agree, extras be installed, errors short."""

import importlib
from types import ModuleType
from typing import TypeVar

from dfme.errors import ShapeUnknown, UserError

Value = TypeVar("Value")


def agreed(what: str, flag: str, given: Value | None, found: Value | None, says: str, origin: str) -> Value:
    """The one value of what is given by a flag, found in a file, or both.

    UserError where both are known and differ, naming both, or where neither is. ``says`` stands before the
    value found (``the weights are for``); ``origin`` is what it was looked for in.
    """
    if given is not None and found is not None and given != found:
        raise UserError(f"{flag}: got {as_text(given)}, but {says} {as_text(found)}")
    value = found if given is None else given
    if value is None:
        if what == "image shape":
            raise ShapeUnknown(f"{flag}: the {what} cannot be told from {origin}; give --teacher.shape C,H,W")
        raise UserError(f"{flag}: the {what} cannot be told from {origin}; give it")
    return value


def agreed_classes(given: int | None, outputs: int | None, says: str, origin: str) -> int:
    """The number of classes; a model with one output has two."""
    found = max(outputs, 2) if outputs else None
    return agreed("number of classes", "--teacher.num-classes", given, found, says, origin)


def as_text(value: object) -> str:
    """A shape as it is written on the command line, sizes that may be any as ?; anything else as it is."""
    if isinstance(value, tuple):
        return ",".join("?" if size is None else str(size) for size in value)
    return str(value)


def first_line(error: BaseException) -> str:
    """First non-empty line of an error, cut to 300 letters, or its type without a message."""
    lines = (" ".join(line.split()) for line in str(error).splitlines())
    return next((line for line in lines if line), type(error).__name__)[:300]


def import_extra(module: str) -> ModuleType:
    """The module of a package that dfme does not need otherwise.

    UserError with the command to run where the package is missing or cannot be imported.
    """
    package = module.partition(".")[0]
    try:
        importlib.import_module(package)
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        problem = "is not installed" if error.name == package else f"lacks {error.name}"
    except (ImportError, RuntimeError, OSError) as error:  # for another torch, or a library of it is missing
        problem = f"cannot be imported ({type(error).__name__}: {first_line(error)})"
    raise UserError(f"{package}, which this kind of teacher needs, {problem}; pip install {package}")
