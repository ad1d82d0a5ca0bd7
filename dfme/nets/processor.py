"""What a folder's image processor does to the pixels, measured on transformers' own object.

Processors differ: some swap red and blue, some do not normalise, some divide twice, and a value
that their file leaves out is their class's default. So the file is not interpreted here:
transformers makes the processor, which is measured on a few images.
"""

import importlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dfme.config.imports import blaming
from dfme.errors import UserError, flag, say
from dfme.nets.model_folders import PROCESSOR, PROCESSORS, read_config
from dfme.nets.transformers_folders import one_line
from dfme.spec import Shape

NESTED = "image_processor"  # the key in PROCESSORS

TYPES = ("image_processor_type", "feature_extractor_type")
GEOMETRY = (
    "do_resize",
    "do_center_crop",
    "do_pad",
    "do_thumbnail",
    "do_align_long_axis",
    "do_crop_margin",
)
"""Steps that move pixels. A teacher takes images as these steps leave them."""

SIZES = ("size", "crop_size", "pad_size")
MAX_EDGE = 2_048  # pixels that a processor may make of a small image, to see its shape
MIN_CROP = 0.25  # of a size: less than that makes images of any size
EDGE = 16  # pixels of the images that a processor is tried on
WHITE = 255
CALL = {"return_tensors": "pt", "input_data_format": "channels_last"}
TOLERANCE = 1e-4  # of the distance from black to white


@dataclass(frozen=True)
class Pixels:
    """What the network gets: channel ``order[j]`` of an image within 0 and 1, less mean, by std.

    ``mean`` and ``std`` are in the order of the image's channels, before they are reordered.
    """

    order: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]


def processor_config(folder: Path) -> dict[str, Any] | None:
    """What the folder says of its image processor; None where it says nothing."""
    for name in (PROCESSORS, PROCESSOR):
        config = read_config(folder, name) if (folder / name).is_file() else {}
        if isinstance(config.get(NESTED), dict):
            return dict(config[NESTED])
        if config and name == PROCESSOR:
            return config
    return None


def load_processor(folder: Path, config: dict[str, Any], model_config: dict[str, Any]) -> Any:
    """transformers' own processor, from local files alone. UserError for one that it lacks."""
    auto = importlib.import_module("transformers.models.auto.image_processing_auto")
    if "auto_map" in config:
        raise UserError(f"{folder / PROCESSOR}: asks for code of others, never done: auto_map")
    name = _type(config) or _type(model_config)
    plain = name.replace("FeatureExtractor", "ImageProcessor").removesuffix("Fast")
    if name and plain not in _names(auto.IMAGE_PROCESSOR_MAPPING_NAMES.values()):
        raise UserError(
            say(
                "{}: transformers has no image processor {!r}; give {teacher.mean} and "
                "{teacher.std}",
                folder / PROCESSOR,
                name[:80],
            )
        )
    with blaming(f"{folder}: transformers cannot make its image processor", UserError, one_line):
        return auto.AutoImageProcessor.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )


def _type(config: dict[str, Any]) -> str:
    """The class that a configuration names; empty where it names none."""
    return next((str(config[key]) for key in TYPES if config.get(key)), "")


def _names(values: Iterable[Any]) -> Iterator[str]:
    """All texts in nested containers: the form of transformers' table differs with its version."""
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            yield from _names(value.values())
        elif isinstance(value, list | tuple):
            yield from _names(value)


def require_bounded(source: str, processor: Any) -> None:
    """UserError for a processor that would take memory without end for one small image."""
    sizes = {name: getattr(processor, name, None) for name in SIZES}
    too_large = {
        name: size for name, size in sizes.items() if any(edge > MAX_EDGE for edge in _edges(size))
    }
    crop = getattr(processor, "crop_pct", None)
    if crop is not None and not (isinstance(crop, float | int) and crop >= MIN_CROP):
        too_large["crop_pct"] = crop
    for name, value in too_large.items():
        raise UserError(
            f"{source}: its image processor has {name} {' '.join(str(value).split())[:80]}, which "
            f"makes images too large to be meant; give {flag('teacher.shape')} C,H,W"
        )


def resulting_shape(processor: Any, channels: int) -> Shape | None:
    """C, H, W of what a bounded processor makes of any square image; None if the size varies."""
    try:
        small, large = (
            tuple(processor([_image(channels, edge=edge)], **CALL)["pixel_values"].shape[1:])
            for edge in (EDGE, 2 * EDGE)
        )
    except Exception:  # a processor of odd settings can raise anything; the flag asks for the shape
        return None
    # one that leaves images as large as they are tells no shape
    return small if len(small) == 3 and small == large else None


def _edges(size: Any) -> list[float]:
    """The numbers of a size: one, a list, or one by each name, also in a class of transformers."""
    if size is None:
        return []
    plain = [size] if isinstance(size, int | float) else list(size)
    named = isinstance(size, dict) or any(isinstance(value, tuple) for value in plain)
    values = list(dict(size).values()) if named else plain
    return [value if isinstance(value, int | float) else MAX_EDGE + 1 for value in values if value]


def _image(channels: int, edge: int = EDGE) -> np.ndarray[Any, Any]:
    return np.zeros((edge, edge, channels), np.uint8)


def measure(source: str, processor: Any, channels: int) -> Pixels:
    """What the processor does to pixels. UserError if it does more than to scale and to reorder."""
    lit = []
    for channel in range(channels):
        image = _image(channels)
        image[..., channel] = WHITE
        lit.append(image)
    noise = np.random.default_rng(0).integers(0, WHITE + 1, (EDGE, EDGE, channels), dtype=np.uint8)
    with blaming(f"{source}: its image processor fails", UserError, one_line):
        black_CHW, noise_CHW, *lit_CHW = [
            _processed(processor, image) for image in (_image(channels), noise, *lit)
        ]
    expected = f"{source}: expected an image processor that scales pixels and orders channels"
    remedy = f"give {flag('teacher.mean')} and {flag('teacher.std')}"
    if not bool(noise_CHW.isfinite().all()):
        raise UserError(
            f"{source}: its image processor makes NaN or infinite values of an image; expected "
            "positive rescale_factor and image_std"
        )
    if any(x.shape != (channels, EDGE, EDGE) for x in (black_CHW, noise_CHW, *lit_CHW)):
        raise UserError(
            f"{expected}, but it makes {tuple(noise_CHW.shape)} of {channels} channels; {remedy}"
        )
    low_C = black_CHW[:, 0, 0]
    gain_CC = torch.stack([x_CHW[:, 0, 0] - low_C for x_CHW in lit_CHW], 1)
    order_C = gain_CC.abs().argmax(1)
    scale_C = gain_CC.gather(1, order_C[:, None])[:, 0]
    x_CHW = torch.from_numpy(noise).permute(2, 0, 1).double() / WHITE
    predicted_CHW = x_CHW[order_C] * scale_C[:, None, None] + low_C[:, None, None]
    apart = (predicted_CHW - noise_CHW).abs().amax()
    permutes = sorted(order_C.tolist()) == list(range(channels))
    if not permutes or not bool(apart <= TOLERANCE * scale_C.min()):
        raise UserError(f"{expected}, but it does something else to them; {remedy}")
    at_C = order_C.argsort()
    mean_C = (-low_C / scale_C)[at_C]
    std_C = (1 / scale_C)[at_C]
    return Pixels(tuple(order_C.tolist()), tuple(mean_C.tolist()), tuple(std_C.tolist()))


def _processed(processor: Any, image: np.ndarray[Any, Any]) -> Tensor:
    """What the network would get of an image that has its size already."""
    off = {name: False for name in GEOMETRY if hasattr(processor, name)}
    outputs = processor([image], **CALL, **off)
    if "pixel_values" not in outputs:
        raise ValueError(f"it makes {', '.join(outputs)} of an image, and no pixel_values")
    pixels: Tensor = outputs["pixel_values"]
    return pixels[0].double()
