"""A teacher that is an image-classification folder of Hugging Face's transformers, from local files alone."""

import math
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dfme.config.imports import blaming
from dfme.config.settings import TeacherConfig
from dfme.errors import UserError
from dfme.nets.files import of_bounded_size
from dfme.spec import ImageSpec
from dfme.teachers.local import checks
from dfme.teachers.local.checks import CONFIG, first_line, import_extra, numbers, read_config, whole
from dfme.teachers.local.program import first_look
from dfme.teachers.local.pytorch import TorchTeacher
from dfme.teachers.local.weights import require_as_large, sizes_on_disk
from dfme.teachers.options import HuggingFaceOptions

PROCESSOR = "preprocessor_config.json"

NOTHING = re.compile("(?!)")
ATTENTION = re.compile("eager|sdpa")
FETCHING = dict.fromkeys(("auto_map", "quantization_config", "backbone", "experts_implementation"), NOTHING)
FETCHING |= dict.fromkeys(("attn_implementation", "_attn_implementation"), ATTENTION)
FETCHING["model_type"] = re.compile("(?!timm).*")
"""What can make transformers import, fetch or open something else, and the values that do not."""


class _Logits(nn.Module):
    """A classifier of transformers as a network from images to logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x_BCHW: Tensor) -> Tensor:
        logits_BK: Tensor = self.model(pixel_values=x_BCHW).logits
        return logits_BK


def load_huggingface(
    options: HuggingFaceOptions, config: TeacherConfig, device: torch.device
) -> TorchTeacher:
    """The teacher in a folder with config.json, safetensors and preprocessor_config.json, answering logits.

    No network, no code and no pickle of the folder's is used: UserError where it asks for any. Rescaling and
    normalisation are the preprocessor's, unless the configuration gives ``mean`` and ``std``. Images are not
    resized.
    """
    folder = Path(options.folder).expanduser()
    model_config = read_config(folder)
    _require_plain(folder, model_config)
    checks.require_weights(folder)
    processor = read_config(folder, PROCESSOR) if (folder / PROCESSOR).is_file() else None
    made = processor or {}  # the size of the images that the preprocessor makes, else that the network takes
    crop = made.get("crop_size") if made.get("do_center_crop") else None
    sizes = map(_height_width, (crop, made.get("size"), model_config.get("image_size")))
    size = next(filter(None, sizes), None)
    shape = checks.image_shape(config.shape, whole(model_config.get("num_channels")), size)
    scale = checks.given_scale(config) or _scale(folder, processor, config)
    model = _load(folder)
    outputs = model.config.num_labels
    classes = checks.agreed_classes(config.num_classes, outputs, f"the labels of {CONFIG} are", CONFIG)
    spec = ImageSpec(shape, config.bounds or (0.0, 1.0), config.levels)
    teacher = TorchTeacher(_Logits(model), spec, classes, *scale, device, config.max_batch, options.precision)
    first_look(str(folder), teacher, spec)
    names = tuple(name for _, name in sorted(model.config.id2label.items()))
    teacher.info = replace(teacher.info, class_names=names)
    return teacher


def _require_plain(folder: Path, model_config: dict[str, Any]) -> None:
    """UserError for a folder that is no whole model of transformers' own."""
    inside: list[Any] = [model_config]
    for part in inside:
        if isinstance(part, dict | list):
            inside.extend(part.values() if isinstance(part, dict) else part)
        for name, harmless in FETCHING.items() if isinstance(part, dict) else ():
            if name in part and not (isinstance(part[name], str) and harmless.fullmatch(part[name])):
                raise UserError(f"{folder / CONFIG}: asks for code or weights of others, never done: {name}")
    if "model_type" not in model_config:
        hint = "; it looks like timm's: say --teacher timm" if "architecture" in model_config else ""
        raise UserError(f"{folder / CONFIG}: expected a model_type of transformers, found none{hint}")
    if (folder / "adapter_config.json").exists():
        raise UserError(f"{folder}: holds an adapter to another model; save the two as one whole model")


def _load(folder: Path) -> Any:
    """The model, in fp32; the caller's random state is as it was."""
    auto = import_extra("transformers.models.auto.modeling_auto").AutoModelForImageClassification
    _require_room(folder, auto)
    failing = blaming(f"{folder}: transformers cannot load it", UserError, first_line)
    with failing, torch.random.fork_rng(devices=[]), of_bounded_size(), _silent():
        model, loaded = auto.from_pretrained(
            str(folder),
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    missing = sorted(loaded["missing_keys"])
    if missing:
        raise UserError(f"{folder}: its weights lack {len(missing)} tensors of the model, first {missing[0]}")
    return model.float()


def _require_room(folder: Path, auto: Any) -> None:
    """UserError for a model that its weights do not fill, before memory is taken for it."""
    shapes = sizes_on_disk(folder)
    longest = max((max(shape, default=0) for shape in shapes if math.prod(shape)), default=0)
    labels = read_config(folder).get("num_labels")
    if isinstance(labels, int) and labels > longest:
        raise UserError(f"{folder / CONFIG}: has {labels:,} labels, but no tensor of the weights is so long")
    config = import_extra("transformers.models.auto.configuration_auto").AutoConfig
    failing = blaming(f"{folder}: transformers cannot load it", UserError, first_line)
    with failing, torch.random.fork_rng(devices=[]), of_bounded_size(), _silent():
        described = config.from_pretrained(
            str(folder),
            local_files_only=True,
            trust_remote_code=False,
        )
        try:
            with torch.device("meta"):
                outline = auto.from_config(described)
        except (NotImplementedError, RuntimeError) as error:
            if "meta" in str(error):  # older versions read numbers from a network without memory
                return
            raise
    require_as_large(outline, shapes, source=f"{folder / CONFIG}")


@contextmanager
def _silent() -> Iterator[None]:
    """transformers without its bars, log lines and warnings; the settings are as they were on exit."""
    log = import_extra("transformers.utils.logging")
    level = log.get_verbosity()
    bars = log.is_progress_bar_enabled()
    try:
        log.set_verbosity(log.CRITICAL)
        log.disable_progress_bar()
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()


def _height_width(size: Any) -> tuple[int, int] | None:
    """A size in one of the forms that configurations have; None for what is none."""
    if isinstance(size, dict):
        edge = size.get("shortest_edge")
        size = [size.get("height", edge), size.get("width", edge)]
    height, width = map(whole, size if isinstance(size, list) and len(size) == 2 else (size, size))
    return (height, width) if height and width else None


def _scale(folder: Path, processor: dict[str, Any] | None, config: TeacherConfig) -> checks.Scale:
    """Mean and deviation for pixels within the bounds, so that the network sees its own inputs.

    A preprocessor takes bytes p and makes (p factor - offset - mean) / std of them; with p = 255 x that is
    (x - (mean + offset) / (255 factor)) / (std / (255 factor)). EfficientNet's divides by std once more
    where ``include_top`` is set.
    """
    if processor is None:
        raise checks.unknown_scale(f"{folder}: has no {PROCESSOR}")
    where = str(folder / PROCESSOR)
    factor = 1.0
    offset = 0.0
    mean = numbers(0, where)
    std = numbers(1, where)
    if processor.get("do_rescale", True):
        factor = numbers(processor.get("rescale_factor", 1 / 255), f"{where}: rescale_factor")[0]
        offset = float(bool(processor.get("rescale_offset")))
    if processor.get("do_normalize", True):
        mean = numbers(processor.get("image_mean"), f"{where}: image_mean")
    if divisions := bool(processor.get("do_normalize", True)) + bool(processor.get("include_top")):
        std = tuple(s**divisions for s in numbers(processor.get("image_std"), f"{where}: image_std"))
    unit = 255 * factor
    if unit <= 0 or min(std) <= 0:
        raise UserError(f"{where}: expected positive rescale_factor and image_std, got {factor:g} and {std}")
    mean = tuple((each + offset) / unit for each in mean)
    return checks.scaled(config.bounds, mean, tuple(each / unit for each in std))
