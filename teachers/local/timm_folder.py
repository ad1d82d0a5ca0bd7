"""A teacher that is a folder of timm's, with config.json and model.safetensors, from local files
alone.
"""

import inspect
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from dfme.config.imports import blaming
from dfme.config.messages import did_you_mean
from dfme.config.settings import TeacherConfig
from dfme.errors import UserError, flag
from dfme.nets.files import of_bounded_size
from dfme.spec import Shape
from dfme.teachers.local import folders
from dfme.teachers.local.checks import (
    Scale,
    agreed_classes,
    first_line,
    flagged_scale,
    import_extra,
)
from dfme.teachers.local.folders import CONFIG, WEIGHTS, FolderModel, positive
from dfme.teachers.local.pytorch import TorchTeacher
from dfme.teachers.local.weights import load_into, read_weights, require_fit
from dfme.teachers.options import TimmOptions


def load_timm(options: TimmOptions, config: TeacherConfig, device: torch.device) -> TorchTeacher:
    """The teacher in a folder as timm's ``save_for_hf`` writes it, answering logits.

    The architecture is timm's own, by its name; no network, no code and no pickle of the folder's
    is used. Mean and deviation are the pretrained_cfg's, unless the configuration gives them.
    """
    folder = Path(options.folder).expanduser()
    model_config = folders.read_config(folder)
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
    folders.require_weights(folder)
    if not (folder / WEIGHTS).is_file():
        raise UserError(f"{folder}: expected {WEIGHTS} in one file, found {folders.INDEX}")
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
    return folders.image_shape(flagged, positive(arguments.get("in_chans")) or depth, size)


def _scale(folder: Path, source: dict[str, Any], config: TeacherConfig) -> Scale:
    """The pretrained_cfg's mean and deviation, for pixels within the bounds."""
    if "mean" not in source or "std" not in source:
        raise folders.unknown_scale(f"{folder / CONFIG}: has no mean and std")
    mean, std = (
        folders.numbers(source[name], f"{folder / CONFIG}: {name}") for name in ("mean", "std")
    )
    return folders.scaled(config.bounds, mean, std)
