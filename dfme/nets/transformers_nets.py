"""Backbones in Hugging Face folders: what the last layer of transformers' own classifier sees.

The classifier of the model's type is built, with its last layer taken out, so that each type pools
as its own code does. CLIP has no classifier of its own: its image tower's pooled output is taken.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dfme.config.imports import blaming
from dfme.errors import UserError
from dfme.nets.input_form import IMAGENET_MEAN, IMAGENET_STD, USUAL_SIDE, InputForm, Size, Sizes
from dfme.nets.model_folders import CONFIG, PROCESSOR, positive, require_plain
from dfme.nets.processor import (
    load_processor,
    measure,
    processor_config,
    require_bounded,
    resulting_shape,
)
from dfme.nets.sources import TRANSFORMERS, WeightsFile, import_theirs
from dfme.nets.state_files import State
from dfme.nets.transformers_folders import (
    description_of,
    load_model,
    one_line,
    require_room,
    silent,
)

COLOURS = 3
ORDER = "channel_order"
"""Our key beside transformers' own: which channel of an RGB image each input of the net is."""

TOWERS = ("clip", "clip_vision_model")
"""Types whose images go through one half of the model alone, which has no classifier."""

FIXED = ("beit", "data2vec-vision", *TOWERS)
"""Types that take images of one size."""

ABOUT_CLASSES = re.compile(
    "id2label|label2id|num_labels|architectures|problem_type|_name_or_path|(torch_)?dtype"
)
"""Keys of a description that say nothing of a backbone."""

POSITIONS = "position_embeddings"
OUTPUT = re.compile(r"(?:\w+\.)*\w*classifier(?:\.\d+)?")


class TransformersBackbone(nn.Module):
    """Images (B, 3, H, W), normalised, to features (B, d)."""

    def __init__(self, model: nn.Module, order: list[int]) -> None:
        super().__init__()
        self.model = model
        self.order = order
        self.reorders = order != sorted(order)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """The pooled features that a classifier of this type sees."""
        if self.reorders:
            x_BCHW = x_BCHW[:, self.order]
        output = self.model(pixel_values=x_BCHW)
        features = output.logits if hasattr(output, "logits") else output.pooler_output
        return features.flatten(1)  # type: ignore[no-any-return]


def read_folder(source: WeightsFile) -> tuple[State, InputForm, str]:
    """A folder's weights without the last layer, the form of its images, its description as JSON.

    UserError for weights that lack a tensor, and for an image processor that does more than scale.
    """
    folder = source.path.parent
    auto = _class_for(source.config.get("model_type"))
    with blaming(f"{folder}: transformers cannot read {CONFIG}", UserError, one_line), silent():
        described = _for_images(description_of(folder))
    require_room(folder, auto, described)
    model, missing = load_model(folder, auto, described)
    output = _output_of(model)
    missing = [name for name in missing if output is None or not name.startswith(f"{output}.")]
    if missing:
        raise UserError(
            f"{folder}: its weights lack {len(missing)} tensors of the model, first {missing[0]}"
        )
    form, order = _form(folder, source.config)
    plain = {
        name: value for name, value in source.config.items() if not ABOUT_CLASSES.fullmatch(name)
    }
    backbone = TransformersBackbone(_without_output(model), order)
    return backbone.state_dict(), form, json.dumps(plain | {ORDER: order}, sort_keys=True)


def build(arguments: Mapping[str, Any], size: Size) -> TransformersBackbone:
    """The backbone of a description, for images of this size, with fresh weights."""
    values = dict(arguments)
    order = values.pop(ORDER, [0, 1, 2])
    if not isinstance(order, list) or sorted(order) != [0, 1, 2]:
        raise UserError(f"{TRANSFORMERS}: {ORDER}: expected 0, 1 and 2, got {str(order)[:40]}")
    require_plain(values, TRANSFORMERS)
    kind = values.pop("model_type", None)
    auto = _class_for(kind)
    with silent():
        described = _description(str(kind), values)
        if kind not in FIXED and hasattr(described, "image_size"):
            described.image_size = size[0] if size[0] == size[1] else list(size)
        model = auto.from_config(described)
    return TransformersBackbone(_without_output(model), order)


def sizes(arguments: Mapping[str, Any], backbone: nn.Module) -> Sizes:
    """The sizes of images that the backbone takes."""
    if arguments.get("model_type") in FIXED:
        return Sizes("one")
    patch = positive(arguments.get("patch_size"))
    if _positions(backbone) is None or patch is None:
        return Sizes("any")
    return Sizes("patches", (patch, patch))


def fitted(state: State, backbone: nn.Module, patch: Size, size: Size) -> State:
    """The weights, with position embeddings of the backbone's size."""
    name = _positions(backbone)
    if name is None or name not in state:
        return state
    grid = (size[0] // patch[0], size[1] // patch[1])
    return state | {name: resampled_positions(state[name], grid)}


def resampled_positions(value_1ND: Tensor, grid: Size) -> Tensor:
    """Embeddings of places (1, P + h w, D) for another grid, the first P of no place unchanged.

    The published grid is square; bicubic, smoothed where it shrinks, as timm does it.
    """
    side = int((value_1ND.shape[1]) ** 0.5)
    others = value_1ND.shape[1] - side * side
    if grid == (side, side) or value_1ND.ndim != 3:
        return value_1ND
    places = value_1ND[:, others:].reshape(1, side, side, -1).permute(0, 3, 1, 2)
    places = nn.functional.interpolate(places.float(), grid, mode="bicubic", antialias=True)
    return torch.cat((value_1ND[:, :others], places.flatten(2).transpose(1, 2)), 1)


def _class_for(kind: object) -> Any:
    autos = import_theirs("transformers.models.auto.modeling_auto")
    return autos.AutoModel if kind in TOWERS else autos.AutoModelForImageClassification


def _for_images(described: Any) -> Any:
    """The half of a description that is about images; which class wrote it does not count."""
    if described.model_type == "clip":
        described = described.vision_config
    described.architectures = []  # of several classifiers of a type the plain one is built
    return described


def _description(kind: str, values: dict[str, Any]) -> Any:
    auto = import_theirs("transformers.models.auto.configuration_auto").AutoConfig
    return _for_images(auto.for_model(kind, **values))


def _output_of(model: Any) -> str | None:
    """The name of the last layer of a classifier; None for a tower. UserError for another end."""
    if model.config.model_type in TOWERS:
        return None
    layers = model.named_modules()
    linear: list[str] = [name for name, layer in layers if isinstance(layer, nn.Linear)]
    if not linear or not OUTPUT.fullmatch(linear[-1]):
        raise UserError(
            f"{type(model).__name__}: expected a classifier that ends in a linear layer"
        )
    return linear[-1]


def _without_output(model: Any) -> Any:
    name = _output_of(model)
    if name is not None:
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, nn.Identity())
    return model


def _positions(backbone: nn.Module) -> str | None:
    """The name of the embeddings of places, one for each patch."""
    names = [name for name, value in backbone.named_parameters() if value.ndim == 3]
    return next((name for name in names if name.endswith(POSITIONS)), None)


def _form(folder: Path, config: dict[str, Any]) -> tuple[InputForm, list[int]]:
    """The form of images by the folder's image processor, and the order of channels."""
    stated = config.get("vision_config") if config.get("model_type") == "clip" else config
    side = positive((stated or {}).get("image_size")) or USUAL_SIDE
    source = processor_config(folder)
    if source is None:
        return InputForm((side, side), IMAGENET_MEAN, IMAGENET_STD), [0, 1, 2]
    with blaming(f"{folder / PROCESSOR}", UserError, one_line), silent():
        try:
            processor = load_processor(folder, source, config)
            pixels = measure(str(folder), processor, COLOURS)
            require_bounded(str(folder), processor)
        except UserError as error:
            raise UserError(
                f"{folder / PROCESSOR}: expected an image processor of transformers that scales "
                "images, crops them, and normalises their channels; save the model with its own"
            ) from error
        shape = resulting_shape(processor, COLOURS)
    size = (shape[1], shape[2]) if shape else (side, side)
    if config.get("model_type") in FIXED:
        size = (side, side)
    return InputForm(size, pixels.mean, pixels.std), list(pixels.order)
