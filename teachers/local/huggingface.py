"""A teacher that is an image-classification folder of Hugging Face's transformers, from local files
alone.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dfme.config.settings import TeacherConfig
from dfme.errors import UserError, flag, say
from dfme.nets.model_folders import CONFIG, PROCESSOR, positive, read_config, require_plain
from dfme.nets.processor import (
    Pixels,
    load_processor,
    measure,
    processor_config,
    require_bounded,
    resulting_shape,
)
from dfme.nets.transformers_folders import load_model, require_room, silent
from dfme.spec import Shape
from dfme.teachers.local import folders
from dfme.teachers.local.checks import agreed_classes, flagged_scale, import_extra
from dfme.teachers.local.folders import FolderModel
from dfme.teachers.local.pytorch import TorchTeacher
from dfme.teachers.options import HuggingFaceOptions

COLOURS = 3  # channels of a model whose configuration names no number of them


class _Logits(nn.Module):
    """A classifier of transformers, which reorders the channels of images and answers logits."""

    def __init__(self, model: nn.Module, order: tuple[int, ...]) -> None:
        super().__init__()
        self.model = model
        self.order = list(order)
        self.reorders = self.order != sorted(order)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        if self.reorders:
            x_BCHW = x_BCHW[:, self.order]
        logits_BK: Tensor = self.model(pixel_values=x_BCHW).logits
        return logits_BK


def load_huggingface(
    options: HuggingFaceOptions, config: TeacherConfig, device: torch.device
) -> TorchTeacher:
    """The teacher in a folder with config.json, safetensors and preprocessor_config.json, answering
    logits.

    No network, no code and no pickle of the folder's is used: UserError where it asks for any. The
    pixels are treated as by transformers' own image processor, but ``mean`` and ``std`` of the
    configuration take the place of its scaling. Images are not resized.
    """
    folder = Path(options.folder).expanduser()
    model_config = read_config(folder)
    _require_plain(folder, model_config)
    folders.require_weights(folder)
    _require_one_class_an_image(folder, model_config, config)
    model = _load(folder)
    with silent():
        shape, pixels = _processed(folder, model_config, config)
    scale = flagged_scale(config) or folders.scaled(config.bounds, pixels.mean, pixels.std)
    classes = agreed_classes(
        config.num_classes, model.config.num_labels, f"the labels of {CONFIG} are", CONFIG
    )
    names = [name for _, name in sorted((model.config.id2label or {}).items())]
    return FolderModel(folder, _Logits(model, pixels.order), shape, classes, scale, names).teacher(
        options, config, device
    )


def _require_plain(folder: Path, model_config: dict[str, Any]) -> None:
    """UserError for a folder that is no whole model of transformers' own."""
    require_plain(model_config, folder / CONFIG)
    if "model_type" not in model_config:
        hint = (
            f"; it looks like timm's: say {flag('teacher', 'timm')}"
            if "architecture" in model_config
            else ""
        )
        raise UserError(
            f"{folder / CONFIG}: expected a model_type of transformers, found none{hint}"
        )
    if (folder / "adapter_config.json").exists():
        raise UserError(
            f"{folder}: holds an adapter to another model; save the two as one whole model"
        )


def _load(folder: Path) -> Any:
    """The model, in fp32; the caller's random state is as it was."""
    auto = import_extra("transformers.models.auto.modeling_auto").AutoModelForImageClassification
    require_room(folder, auto)
    model, missing = load_model(folder, auto)
    if missing:
        raise UserError(
            f"{folder}: its weights lack {len(missing)} tensors of the model, first {missing[0]}"
        )
    return model


def _height_width(size: Any) -> folders.Size | None:
    """A size in one of the forms that configurations have; None for what is none."""
    if isinstance(size, dict):
        edge = size.get("shortest_edge")
        size = [size.get("height", edge), size.get("width", edge)]
    height, width = map(
        positive, size if isinstance(size, list) and len(size) == 2 else (size, size)
    )
    return (height, width) if height and width else None


def _processed(
    folder: Path, model_config: dict[str, Any], config: TeacherConfig
) -> tuple[Shape, Pixels]:
    """The image's shape, and what the folder's image processor does to its pixels.

    Where the configuration gives mean and deviation, a processor that fails is left out.
    """
    channels = positive(model_config.get("num_channels"))
    depth = channels or (config.shape[0] if config.shape else COLOURS)
    processor = None
    pixels = None
    size = None
    try:
        if (source := processor_config(folder)) is None:
            raise folders.unknown_scale(f"{folder}: has no {PROCESSOR}")
        processor = load_processor(folder, source, model_config)
        pixels = measure(str(folder), processor, depth)
    except UserError:
        if flagged_scale(config) is None:
            raise
    if processor is not None and config.shape is None:
        require_bounded(str(folder), processor)
        size = resulting_shape(processor, depth)
    shape = folders.image_shape(
        config.shape,
        channels or (depth if pixels else None),
        size[1:] if size else _height_width(model_config.get("image_size")),
    )
    return shape, pixels or Pixels(tuple(range(shape[0])), (0.0,), (1.0,))


def _require_one_class_an_image(
    folder: Path, model_config: dict[str, Any], config: TeacherConfig
) -> None:
    """UserError for a head that gives several labels an image, or a quantity.

    transformers takes one output for a regression. With --teacher.num-classes 2, the user says that
    it is the logit of class 1.
    """
    where = f"{folder / CONFIG}: problem_type"
    kind = model_config.get("problem_type")
    names = model_config.get("id2label")
    outputs = len(names) if isinstance(names, dict) else positive(model_config.get("num_labels"))
    if kind == "regression":
        raise UserError(f"{where}: expected a classifier, got a regression, which gives quantities")
    if kind == "multi_label_classification" and outputs != 1:
        raise UserError(
            f"{where}: expected a classifier with one class an image, got one of several labels"
        )
    if outputs == 1 and config.num_classes != 2:
        raise UserError(
            say(
                "{}: its one output is a regression to transformers; if it is the logit of class "
                "1, say {teacher.num_classes:2}",
                folder / CONFIG,
            )
        )
