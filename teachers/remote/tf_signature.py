"""What a TensorFlow model takes and gives: the signature in its metadata.

The metadata are JSON of the protocol buffers of a SavedModel: sizes of axes are texts, -1 is a size of any number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dfme.config.messages import did_you_mean
from dfme.config.settings import TeacherConfig
from dfme.errors import UserError
from dfme.teachers.local.checks import agreed_classes, as_text, first_line
from dfme.teachers.remote.json_bodies import shown
from dfme.teachers.remote.pictures import AxisOrder, Image, image_of, in_order

PIXELS = ("DT_FLOAT", "DT_UINT8")
INTEGERS = ("DT_INT32", "DT_INT64")
DEFAULT = "serving_default"
_ANY = -1
_LONGEST_NAME = 100


@dataclass(frozen=True)
class TensorInfo:
    """An input or an output: its name, TensorFlow's word for its dtype, its axes (-1: any size; None: any axes)."""

    name: str
    dtype: str
    axes: tuple[int, ...] | None


@dataclass(frozen=True)
class Signature:
    """The inputs and outputs of a model, by name."""

    inputs: dict[str, TensorInfo]
    outputs: dict[str, TensorInfo]


def read_signature(metadata: object, name: str | None, where: str) -> Signature:
    """The signature of that name, by default ``serving_default``; UserError names ``where`` it was looked for."""
    found = _mapping(metadata, "metadata", "signature_def", "signature_def")
    callable_ = {key: value for key, value in found.items() if _mapping(value, "inputs") and _is_name(key)}
    wanted = name or DEFAULT
    if wanted not in callable_:
        known = ", ".join(callable_) or "none"
        hint = did_you_mean(wanted, callable_)
        raise UserError(f"--teacher.signature: expected one with inputs of {where} ({known}), got {wanted!r}{hint}")
    try:
        return Signature(*(_tensors(_mapping(callable_[wanted], side)) for side in ("inputs", "outputs")))
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise UserError(f"{where}: its signature {wanted} cannot be read: {first_line(error)}") from None


def pick(tensors: Mapping[str, TensorInfo], name: str | None, option: str) -> TensorInfo:
    """The tensor of that name, by default the only one; UserError, naming the option, if that does not say which."""
    if name is None and len(tensors) == 1:
        return next(iter(tensors.values()))
    if name is None or name not in tensors:
        hint = did_you_mean(name, tensors) if name else ""
        got = f"got {name!r}{hint}" if name else "and the option is needed where there are several"
        raise UserError(f"{option}: expected one of {', '.join(tensors) or 'none'}, {got}")
    return tensors[name]


def image_axes(info: TensorInfo, layout: AxisOrder, given: Image | None) -> tuple[Image, tuple[int, ...]]:
    """The image as (C, H, W), and the axes of one image as the model takes it.

    Besides the batch's, two axes are those of a grey image, one that of a flattened one. UserError where neither the
    model nor ``given`` has a size, and where they differ.
    """
    if info.dtype not in PIXELS:
        raise UserError(
            f"input {info.name}: expected {' or '.join(PIXELS)}, the model takes {shown(info.dtype)}; "
            "--teacher json can send images in other forms"
        )
    if info.axes is not None and len(info.axes) in (3, 4):
        shape = _full_shape(info, layout, given)
        return shape, in_order(shape, layout) if len(info.axes) == 4 else shape[1:]
    if given is None:
        raise UserError(f"--teacher.shape: input {info.name} does not tell the shape of an image; give it as C,H,W")
    if info.axes is None:
        return given, in_order(given, layout)
    flat = (math.prod(given),)
    if len(info.axes) != 2 or info.axes[1] not in (_ANY, *flat):
        raise _misfit(info, given)
    return given, flat


def _full_shape(info: TensorInfo, layout: AxisOrder, given: Image | None) -> Image:
    """The shape by the axes after the batch's, and by ``given`` where they leave it open; grey has no channels."""
    sizes = (info.axes or ())[1:]
    found = (1, sizes[0], sizes[1]) if len(sizes) == 2 else image_of((sizes[0], sizes[1], sizes[2]), layout)
    shape = given or found
    if any(size not in (_ANY, wanted) for size, wanted in zip(found, shape, strict=True)):
        raise _misfit(info, shape)
    if min(shape) < 1:
        raise UserError(f"--teacher.shape: input {info.name} leaves sizes open: {info.axes}; give them as C,H,W")
    return shape


def number_of_classes(info: TensorInfo, config: TeacherConfig) -> int:
    """The size of the output's last axis, 2 for a binary model's one score; the flag's where the model tells none."""
    if info.axes is not None and len(info.axes) != (1 if info.dtype in INTEGERS else 2):
        raise UserError(
            f"output {info.name}: expected axes for batch and classes, got {info.axes}; see --teacher.output"
        )
    size = _ANY if info.axes is None or len(info.axes) == 1 else info.axes[1]
    output = f"output {info.name}"
    return agreed_classes(config.num_classes, None if size == _ANY else size, f"{output} has", output)


def most_images(info: TensorInfo) -> int | None:
    """Images in one call that the input's first axis allows: any number, or one."""
    first = info.axes[0] if info.axes else _ANY
    if first not in (_ANY, 1):
        raise UserError(f"input {info.name}: expected a first axis of any size, the model takes exactly {first} images")
    return 1 if first == 1 else None


def _misfit(info: TensorInfo, shape: Image) -> UserError:
    return UserError(f"--teacher.shape: got {as_text(shape)}, but input {info.name} has the axes {info.axes}")


def _mapping(document: object, *keys: str) -> dict[str, Any]:
    """The object at the end of the keys; an empty one where there is none."""
    for key in keys:
        document = document.get(key) if isinstance(document, dict) else None
    return document if isinstance(document, dict) else {}


def _tensors(described: dict[str, Any]) -> dict[str, TensorInfo]:
    if not all(map(_is_name, described)):
        raise ValueError("a tensor has a name that cannot be shown")
    return {name: TensorInfo(name, str(_mapping(info).get("dtype")), _axes(info)) for name, info in described.items()}


def _is_name(text: str) -> bool:
    """Whether a service's name for something can stand in a message."""
    return text.isprintable() and len(text) <= _LONGEST_NAME


def _axes(info: object) -> tuple[int, ...] | None:
    shape = _mapping(info, "tensor_shape")
    if shape.get("unknown_rank") in (True, "true"):
        return None
    return tuple(int(_mapping(axis)["size"]) for axis in shape.get("dim", []))
