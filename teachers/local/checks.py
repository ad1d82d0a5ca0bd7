"""What every loader checks: values from a flag and from a file agree, packages are there, and the
model answers.
"""

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

import torch
from torch import Tensor

from dfme.config.imports import blaming
from dfme.config.settings import TeacherConfig
from dfme.errors import OptionError, Problem, ShapeUnknown, UserError, say
from dfme.spec import ImageSpec

Value = TypeVar("Value")

SCRIPT_FAILED = "The following operation failed in the TorchScript interpreter"

Scale = tuple[tuple[float, ...] | None, tuple[float, ...] | None]
"""Per-channel mean and deviation."""


def agreed(
    what: str, key: str, flagged: Value | None, stated: Value | None, says: str, origin: str
) -> Value:
    """The one value that the option ``key`` gives (``flagged``), a file states, or both.

    UserError where both are there and differ, naming both, or where neither is. ``says`` stands
    before the stated value (``the weights are for``); ``origin`` is what should state it.
    """
    if flagged is not None and stated is not None and flagged != stated:
        raise OptionError(key, f"got {as_text(flagged)}, but {says} {as_text(stated)}")
    value = stated if flagged is None else flagged
    if value is None:
        text = f"the {what} cannot be told from {origin}; give "
        if what == "image shape":
            raise ShapeUnknown(Problem(key, text + say("{teacher.shape} C,H,W")))
        raise OptionError(key, f"{text}it")
    return value


def agreed_classes(flagged: int | None, outputs: int | None, says: str, origin: str) -> int:
    """The number of classes; a model with one output has two."""
    classes = max(outputs, 2) if outputs else None
    return agreed("number of classes", "teacher.num_classes", flagged, classes, says, origin)


def as_text(value: object) -> str:
    """A shape as on the command line, with ? for a size that may be any; another value as it is."""
    if isinstance(value, tuple):
        return ",".join("?" if size is None else str(size) for size in value)
    return str(value)


def first_line(error: BaseException) -> str:
    """First non-empty line of an error, cut to 300 letters, or its type without a message.

    TorchScript puts the place before the cause, which is the last line of its errors.
    """
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    lines = lines or [type(error).__name__]
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
    # a package for another torch, or one that lacks a library
    except (ImportError, RuntimeError, OSError) as error:
        problem = f"cannot be imported ({type(error).__name__}: {first_line(error)})"
    raise UserError(
        f"{package}, which this kind of teacher needs, {problem}; pip install {package}"
    )


def flagged_scale(config: TeacherConfig) -> Scale | None:
    """The mean and deviation of the configuration, if it has either."""
    return None if config.mean is None and config.std is None else (config.mean, config.std)


def first_look(source: str, ask: Callable[[Tensor], Tensor], spec: ImageSpec) -> None:
    """Ask twice about one random image, so that faults show before any cost.

    UserError where the model fails, answers anything but finite scores, or answers the same image
    differently.
    """
    low, high = spec.bounds
    noise_BCHW = torch.rand(1, *spec.shape, generator=torch.Generator().manual_seed(0))
    image_BCHW = spec.quantise(noise_BCHW * (high - low) + low)
    with blaming(
        f"{source}: does not take an image of shape {as_text(spec.shape)}", UserError, first_line
    ):
        first_BK = ask(image_BCHW)
        second_BK = ask(image_BCHW)
    if not first_BK.is_floating_point():
        raise UserError(
            f"{source}: expected scores as floating-point numbers, got {first_BK.dtype}"
        )
    if not first_BK.isfinite().all():
        raise UserError(f"{source}: answers NaN or infinite values to a random image")
    if not torch.allclose(first_BK.float(), second_BK.float(), rtol=1e-2, atol=1e-3):
        raise UserError(
            f"{source}: answers the same image differently each time; save it after eval()"
        )
