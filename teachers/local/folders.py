"""Model folders: what transformers' and timm's have in common, and teachers that are timm's.

A description in JSON, and safetensors; nothing of them is run.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import ModuleType
from typing import Any

import torch
from torch import nn

from dfme.config.imports import blaming
from dfme.config.messages import did_you_mean
from dfme.config.settings import TeacherConfig
from dfme.errors import OptionError, UserError, flag, say
from dfme.nets.files import of_bounded_size
from dfme.nets.model_folders import (
    CONFIG,
    INDEX,
    PROCESSOR,
    PROCESSORS,
    WEIGHTS,
    numbers,
    positive,
    read_config,
)
from dfme.spec import AT_ONCE, ImageSpec, Shape
from dfme.teachers.local.checks import (
    Scale,
    agreed,
    agreed_classes,
    as_text,
    first_line,
    first_look,
    flagged_scale,
    import_extra,
)
from dfme.teachers.local.pytorch import TorchTeacher
from dfme.teachers.local.weights import load_into, read_weights, require_fit
from dfme.teachers.options import LocalOptions, TimmOptions

Size = tuple[int, int]

PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")


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


# Teachers that are folders of timm's, with config.json and model.safetensors, from local files


def load_timm(options: TimmOptions, config: TeacherConfig, device: torch.device) -> TorchTeacher:
    """The teacher in a folder as timm's ``save_for_hf`` writes it, answering logits.

    The architecture is timm's own, by its name; no network, no code and no pickle of the folder's
    is used. Mean and deviation are the pretrained_cfg's, unless the configuration gives them.
    """
    folder = Path(options.folder).expanduser()
    model_config = read_config(folder)
    timm = import_extra("timm")
    name = _architecture(timm, folder, model_config)
    arguments = _arguments(timm, folder, model_config)
    source = model_config.get("pretrained_cfg")
    source = source if isinstance(source, dict) else model_config  # the older layout has one level
    stated = (where.get("num_classes") for where in (model_config, source, arguments))
    outputs = next(filter(None, map(positive, stated)), config.num_classes)
    classes = agreed_classes(
        config.num_classes, outputs, f"the num_classes of {CONFIG} are", CONFIG
    )
    shape = _shape(source, arguments, config.shape)
    scale = flagged_scale(config) or _scale(folder, source, config)
    arguments = _as_saved(source, arguments) | {"num_classes": outputs, "in_chans": shape[0]}
    build = partial(_build, timm, folder, name, arguments)
    # no memory for a network of the size that a file claims, before it is known to fit
    with torch.device("meta"):
        outline = build()
    require_weights(folder)
    if not (folder / WEIGHTS).is_file():
        raise UserError(f"{folder}: expected {WEIGHTS} in one file, found {INDEX}")
    state = read_weights(folder / WEIGHTS)[0]
    source_name = f"{folder / WEIGHTS} as {name}"
    require_fit(outline, state, source=source_name)
    _require_pool(folder, model_config, outline)
    module = build()
    load_into(module, state, source=source_name)
    names = model_config.get("label_names") or source.get("label_names")
    names = names if isinstance(names, list) else []
    return FolderModel(folder, module, shape, classes, scale, names).teacher(
        options, config, device
    )


def _arguments(timm: ModuleType, folder: Path, model_config: dict[str, Any]) -> dict[str, Any]:
    """The network's own arguments. UserError for any with which timm would read weights from
    elsewhere.
    """
    arguments = model_config.get("model_args") or {}
    if not isinstance(arguments, dict):
        raise UserError(
            f"{folder / CONFIG}: model_args: expected an object, got {type(arguments).__name__}"
        )
    reserved = inspect.signature(timm.create_model).parameters
    foreign = [name for name in arguments if name in reserved or name.startswith("pretrained")]
    if foreign:
        raise UserError(
            f"{folder / CONFIG}: model_args may not say where weights are, but has {foreign[0]}"
        )
    return arguments


def _as_saved(source: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """The network's arguments, and those that timm itself takes from the pretrained_cfg."""
    size = source.get("input_size")
    defaults = {"global_pool": source.get("global_pool")}
    if source.get("fixed_input_size") and isinstance(size, list) and len(size) == 3:
        defaults["img_size"] = size[1:]
    return {name: value for name, value in defaults.items() if value is not None} | arguments


def _require_pool(folder: Path, model_config: dict[str, Any], network: nn.Module) -> None:
    """UserError where the folder names another pooling than the network has, which no weight tells.

    timm writes the pooling for people and does not read it again, so its own loader would go wrong.
    """
    stated = model_config.get("global_pool")
    layer = getattr(network, "global_pool", None)
    if layer is None:
        layer = getattr(getattr(network, "head", None), "global_pool", None)
    built = getattr(layer, "pool_type", layer)
    if stated and isinstance(built, str) and built and stated != built:
        raise UserError(
            f"{folder / CONFIG}: its global_pool is {str(stated)[:40]!r}, but what it describes is "
            f"built with {built!r}; expected the one that it was trained with in model_args, too"
        )


def _build(timm: ModuleType, folder: Path, name: str, arguments: dict[str, Any]) -> nn.Module:
    """The network with fresh weights; the caller's random state is as it was."""
    failing = blaming(f"{folder}: timm cannot build {name}", UserError, first_line)
    with failing, torch.random.fork_rng(devices=[]), of_bounded_size():
        module: nn.Module = timm.create_model(name, pretrained=False, **arguments)
    return module


def _architecture(timm: ModuleType, folder: Path, model_config: dict[str, Any]) -> str:
    """The architecture's name without its tag, one that timm knows: a name with a scheme would be
    fetched.
    """
    if "architecture" not in model_config:
        hint = (
            f"; it looks like transformers': say {flag('teacher', 'hf')}"
            if "model_type" in model_config
            else ""
        )
        raise UserError(
            f"{folder / CONFIG}: expected the name of a timm architecture, found none{hint}"
        )
    name = str(model_config["architecture"]).partition(".")[0]
    if not timm.is_model(name):
        hint = did_you_mean(name, timm.list_models())
        raise UserError(f"{folder / CONFIG}: timm has no such architecture: {name[:80]!r}{hint}")
    return name


def _shape(source: dict[str, Any], arguments: dict[str, Any], flagged: Shape | None) -> Shape:
    """The image's C, H, W: the size as flagged, else as the network was built for."""
    size = source.get("input_size")
    depth, *built = (
        map(positive, size) if isinstance(size, list) and len(size) == 3 else (None, None, None)
    )
    edge = arguments.get("img_size")
    edges = list(map(positive, edge)) if isinstance(edge, list) else [positive(edge)] * 2
    sizes = (pair for pair in (edges, built) if len(pair) == 2)
    size = next(((height, width) for height, width in sizes if height and width), None)
    return image_shape(flagged, positive(arguments.get("in_chans")) or depth, size)


def _scale(folder: Path, source: dict[str, Any], config: TeacherConfig) -> Scale:
    """The pretrained_cfg's mean and deviation, for pixels within the bounds."""
    if "mean" not in source or "std" not in source:
        raise unknown_scale(f"{folder / CONFIG}: has no mean and std")
    mean, std = (numbers(source[name], f"{folder / CONFIG}: {name}") for name in ("mean", "std"))
    return scaled(config.bounds, mean, std)
