"""What folders of transformers and of timm have in common: a description in JSON, safetensors, and
nothing of them that is run.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import torch
from torch import nn

from dfme.config.settings import TeacherConfig
from dfme.errors import OptionError, UserError, say
from dfme.files import open_file
from dfme.spec import AT_ONCE, ImageSpec, Shape
from dfme.teachers.local.checks import Scale, agreed, as_text, first_line, first_look
from dfme.teachers.local.pytorch import TorchTeacher
from dfme.teachers.options import LocalOptions

Size = tuple[int, int]

LARGEST = sys.float_info.max
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PROCESSOR = "preprocessor_config.json"
PROCESSORS = "processor_config.json"  # of newer versions, with the image processor inside
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")

MAX_SIZE = 1_000_000  # of a layer, or of how many there are of something
MAX_CONFIG_BYTES = 10_000_000  # an index of weights names every tensor of a large model


@dataclass(frozen=True)
class FolderModel:
    """A folder's network, and what the folder and the configuration say of its images and answers.

    ``names`` of its classes count where there is one for each.
    """

    folder: Path
    network: nn.Module
    shape: Shape
    classes: int
    scale: Scale
    names: Sequence[object] = ()

    def teacher(
        self, options: LocalOptions, config: TeacherConfig, device: torch.device
    ) -> TorchTeacher:
        """The teacher that it is. UserError where it does not answer a first image."""
        spec = ImageSpec(self.shape, config.bounds or (0.0, 1.0), config.levels)
        teacher = TorchTeacher(
            self.network,
            spec,
            self.classes,
            *self.scale,
            device,
            config.max_batch,
            options.precision,
        )
        first_look(str(self.folder), teacher, spec)
        if len(self.names) == self.classes:
            teacher.info = replace(teacher.info, class_names=tuple(map(str, self.names)))
        return teacher


def deciding_files(folder: Path) -> list[str]:
    """Names of the files beside ``CONFIG`` that decide what the folder's model answers."""
    parts = {} if (folder / WEIGHTS).is_file() else read_config(folder, INDEX)["weight_map"]
    return [PROCESSOR, PROCESSORS, WEIGHTS, INDEX, *parts.values()]


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
    # a link instead of a file is its owner's choice
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


def unknown_scale(lacking: str) -> UserError:
    """The error of a folder that does not say how to normalise."""
    return UserError(
        say("{} to normalise by; give {teacher.mean} and {teacher.std} (0 and 1 for none)", lacking)
    )


def scaled(
    bounds: tuple[float, float] | None, mean: tuple[float, ...], std: tuple[float, ...]
) -> Scale:
    """The mean and deviation for pixels within ``bounds``, from those for pixels from 0 to 1."""
    low, high = bounds or (0.0, 1.0)
    return tuple(low + m * (high - low) for m in mean), tuple(s * (high - low) for s in std)


def numbers(value: Any, what: str) -> tuple[float, ...]:
    """One number, or a list of them, out of a configuration. UserError for anything else."""
    values = value if isinstance(value, list) else [value]
    if values and all(
        isinstance(number, int | float) and -LARGEST <= number <= LARGEST for number in values
    ):
        return tuple(map(float, values))
    raise UserError(f"{what}: expected finite numbers, got {str(value)[:80]}")


def image_shape(flagged: Shape | None, channels: int | None, size: Size | None) -> Shape:
    """C, H, W as flagged, else as stated. UserError where they differ in channels, or neither
    tells it.
    """
    channels = agreed(
        "number of channels",
        "teacher.shape",
        flagged and flagged[0],
        channels,
        f"the channels of {CONFIG} are",
        CONFIG,
    )
    if flagged is not None:
        return flagged
    if size is None:
        raise OptionError("teacher.shape", f"the image size cannot be told from {CONFIG}; give it")
    if channels * size[0] * size[1] > AT_ONCE:
        stated = as_text((channels, *size))
        raise OptionError(
            "teacher.shape", f"{CONFIG} says {stated}, too large to be meant; give it"
        )
    return channels, *size


def positive(value: Any) -> int | None:
    """A positive whole number out of a configuration; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
