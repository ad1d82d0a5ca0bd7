"""Shared by loaders: what is given and found must agree; folders of a model, of which nothing is
run.
"""

import importlib
import json
import sys
from itertools import chain
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import ModuleType
from typing import Any, TypeVar

from dfme.config.settings import TeacherConfig
from dfme.errors import OptionError, Problem, ShapeUnknown, UserError, say
from dfme.files import open_file
from dfme.spec import AT_ONCE, Shape

Value = TypeVar("Value")

LARGEST = sys.float_info.max
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")

SCRIPT_FAILED = "The following operation failed in the TorchScript interpreter"

MAX_SIZE = 1_000_000  # of a layer, or of how many there are of something
MAX_CONFIG_BYTES = 10_000_000  # an index of weights names every tensor of a large model

Scale = tuple[tuple[float, ...] | None, tuple[float, ...] | None]
"""Per-channel mean and deviation."""


def agreed(
    what: str, key: str, given: Value | None, found: Value | None, says: str, origin: str
) -> Value:
    """The one value of what is given by the option ``key``, found in a file, or both.

    UserError where both are known and differ, naming both, or where neither is. ``says`` stands
    before the value found (``the weights are for``); ``origin`` is what it was looked for in.
    """
    if given is not None and found is not None and given != found:
        raise OptionError(key, f"got {as_text(given)}, but {says} {as_text(found)}")
    value = found if given is None else given
    if value is None:
        text = f"the {what} cannot be told from {origin}; give "
        if what == "image shape":
            raise ShapeUnknown(Problem(key, text + say("{teacher.shape} C,H,W")))
        raise OptionError(key, f"{text}it")
    return value


def agreed_classes(given: int | None, outputs: int | None, says: str, origin: str) -> int:
    """The number of classes; a model with one output has two."""
    found = max(outputs, 2) if outputs else None
    return agreed("number of classes", "teacher.num_classes", given, found, says, origin)


def as_text(value: object) -> str:
    """A shape as it is written on the command line, sizes that may be any as ?; anything else as it
    is.
    """
    if isinstance(value, tuple):
        return ",".join("?" if size is None else str(size) for size in value)
    return str(value)


def first_line(error: BaseException) -> str:
    """First non-empty line of an error, cut to 300 letters, or its type without a message.

    TorchScript puts the place before the cause, which is the last line of its errors.
    """
    shown = (" ".join(line.split()) for line in str(error).splitlines())
    lines = [line for line in shown if line] or [type(error).__name__]
    telling = lines[-1] if lines[0].startswith(SCRIPT_FAILED) else lines[0]
    return telling[:300]


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
    except (
        ImportError,
        RuntimeError,
        OSError,
    ) as error:  # for another torch, or a library of it is missing
        problem = f"cannot be imported ({type(error).__name__}: {first_line(error)})"
    raise UserError(
        f"{package}, which this kind of teacher needs, {problem}; pip install {package}"
    )


def read_config(folder: Path, name: str = CONFIG) -> dict[str, Any]:
    """A folder's JSON object. UserError where it is missing or is none."""
    path = folder / name
    try:
        with open_file(path) as file:
            text = file.read(MAX_CONFIG_BYTES + 1)
        if len(text) > MAX_CONFIG_BYTES:
            raise ValueError(f"it is longer than {MAX_CONFIG_BYTES:,} bytes")
        value = json.loads(text, parse_int=_integer if name != INDEX else int)
    except OSError as error:
        raise UserError(
            f"{path}: expected a model folder with {name}: {error.strerror or error}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: expected the JSON of a model, but {first_line(error)}") from error
    if not isinstance(value, dict):
        raise UserError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def _integer(text: str) -> int:
    """A whole number of a model's description, which may be a size or a count of anything."""
    if len(text) > 1 + len(str(MAX_SIZE)) or abs(int(text)) > MAX_SIZE:
        raise ValueError(
            f"{text[:20]} is too large for anything in a model; the largest is {MAX_SIZE:,}"
        )
    return int(text)


def require_weights(folder: Path) -> None:
    """UserError unless the folder holds safetensors, in one file or in parts that all lie inside
    it.
    """
    if (folder / WEIGHTS).is_file():
        return
    if not (folder / INDEX).is_file():
        pickled = sorted(path.name for path in chain.from_iterable(map(folder.glob, PICKLED)))
        if pickled:
            raise UserError(
                f"{folder}: expected {WEIGHTS}, found pickled weights ({pickled[0]}), which can "
                "run any "
                "code; where you trust them, load them elsewhere and save the model again as "
                "safetensors"
            )
        raise UserError(f"{folder}: expected {WEIGHTS}, found no weights")
    parts = read_config(folder, INDEX).get("weight_map")
    if not isinstance(parts, dict) or not parts:
        raise UserError(
            f"{folder / INDEX}: expected the name of a file for each tensor, under weight_map"
        )
    # a link in the place of one is its owner's choice
    for name in sorted({str(part) for part in parts.values()}):
        posix = PurePosixPath(name)
        windows = PureWindowsPath(name)
        if posix.is_absolute() or windows.anchor or ".." in (*posix.parts, *windows.parts):
            raise UserError(
                f"{folder / INDEX}: names a file of weights outside the folder: {name!r}"
            )
        if posix.suffix != ".safetensors" or not (folder / name).is_file():
            raise UserError(
                f"{folder / INDEX}: expected safetensors files beside it, but {name!r} is none"
            )


def given_scale(config: TeacherConfig) -> Scale | None:
    """The mean and deviation of the configuration, if it has either."""
    return None if config.mean is None and config.std is None else (config.mean, config.std)


def unknown_scale(lacking: str) -> UserError:
    """The error of a folder that does not say how to normalise."""
    return UserError(
        say("{} to normalise by; give {teacher.mean} and {teacher.std} (0 and 1 for none)", lacking)
    )


def scaled(
    bounds: tuple[float, float] | None, mean: tuple[float, ...], std: tuple[float, ...]
) -> Scale:
    """The mean and deviation for pixels within ``bounds`` that are those of pixels within 0 and
    1.
    """
    low, high = bounds or (0.0, 1.0)
    return tuple(low + m * (high - low) for m in mean), tuple(s * (high - low) for s in std)


def numbers(value: Any, what: str) -> tuple[float, ...]:
    """One number, or a list of them, out of a configuration. UserError for anything else."""
    values = value if isinstance(value, list) else [value]
    if values and all(
        isinstance(each, int | float) and -LARGEST <= each <= LARGEST for each in values
    ):
        return tuple(map(float, values))
    raise UserError(f"{what}: expected finite numbers, got {str(value)[:80]}")


def image_shape(given: Shape | None, channels: int | None, size: tuple[int, int] | None) -> Shape:
    """C, H, W as given, else as found. UserError where they differ in channels, or neither tells
    it.
    """
    says = f"the channels of {CONFIG} are"
    channels = agreed(
        "number of channels", "teacher.shape", given and given[0], channels, says, CONFIG
    )
    if given is not None:
        return given
    if size is None:
        raise OptionError("teacher.shape", f"the image size cannot be told from {CONFIG}; give it")
    if channels * size[0] * size[1] > AT_ONCE:
        found = as_text((channels, *size))
        raise OptionError("teacher.shape", f"{CONFIG} says {found}, too large to be meant; give it")
    return channels, *size


def whole(value: Any) -> int | None:
    """A positive whole number out of a configuration; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
