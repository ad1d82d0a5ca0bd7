"""Plan of a v2 model from metadata and flags, which fill gaps; UserError for conflicts.

A batch limit comes from Triton's model configuration; ``run.py serve`` announces more under
``parameters``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

from dfme.config.messages import unknown_choice
from dfme.config.settings import TeacherConfig
from dfme.errors import OptionError, UserError, say
from dfme.spec import ImageSpec, LabelMode
from dfme.teachers.open_inference.message import read_object
from dfme.teachers.open_inference.tensors import short
from dfme.teachers.remote.endpoint import Endpoint
from dfme.teachers.remote.options import V2Options

# names under which servers announce the binary tensor data extension
BINARY = ("binary_tensor_data", "binary_data")
IMAGE_DATATYPES = ("FP32", "UINT8", "FP16", "FP64")
MAX_NUMBERS = 2**26  # in one image, and for a size of a shape: metadata come from a stranger too
MAX_CLASSES = 1_000_000
LABEL_MODE = re.compile(r"[a-z_]{1,20}(:[0-9]{1,6}){0,2}")
"""A label mode as text: short, so that whatever a stranger announces can be read."""


@dataclass(frozen=True)
class TensorMetadata:
    """A tensor of the model; ``name`` and ``shape`` None if unknown, varying sizes -1."""

    name: str | None
    datatype: str
    shape: tuple[int, ...] | None

    def __str__(self) -> str:
        shape = "of unknown shape" if self.shape is None else short(list(self.shape))
        return (
            f"{short(self.name)} {short(self.datatype)} {shape}"
            if self.name
            else f"unnamed {shape}"
        )

    def numbers(self, batch_axis: bool) -> int | None:
        """Numbers per image, sizes of 1 left out; None where the metadata do not say.

        ``batch_axis``: the first size is the number of images.
        """
        if self.shape is None:
            return None
        sizes = [size for size in self.shape[batch_axis:] if size != 1]
        if len(sizes) > 1:
            raise OptionError(
                "teacher.output",
                f"expected a row of scores per image, or one label, got the output {self}",
            )
        if not sizes:
            return 1
        return sizes[0] if sizes[0] > 0 else None

    def may_be_label(self, batch_axis: bool) -> bool:
        """True if the output may be one whole number per image."""
        return self.datatype.startswith(("INT", "UINT")) and self.numbers(batch_axis) in (1, None)


@dataclass(frozen=True)
class V2Model:
    """Access to a model: ``path`` of its URLs; ``binary``: the server has the extension."""

    name: str
    version: str | None
    path: str
    input: TensorMetadata
    output: TensorMetadata
    layout: ImageLayout
    spec: ImageSpec
    num_classes: int
    label_mode: LabelMode
    max_batch: int | None
    binary: bool


def read_model(endpoint: Endpoint, options: V2Options, config: TeacherConfig) -> V2Model:
    """Ask the server for everything that is known about a model; no image is sent.

    UserError where the server or the model is not ready, and, naming the flag, for what is missing
    or contradictory.
    """
    path = f"/v2/models/{quote(options.model, safe='')}"
    path += f"/versions/{quote(options.version, safe='')}" if options.version is not None else ""
    endpoint.get("/v2/health/ready")
    metadata = _asked(endpoint, path)
    endpoint.get(f"{path}/ready")
    extensions = _asked(endpoint, "/v2").get("extensions")
    extensions = extensions if isinstance(extensions, list) else []
    parameters = metadata.get("parameters")
    parameters = parameters if isinstance(parameters, dict) else {}
    image = _choose("input", _tensors(metadata, "inputs"), options.input)
    output = _choose("output", _tensors(metadata, "outputs"), options.output)
    _require_numbers(output)
    order = parameters.get("layout") if options.layout == "auto" else options.layout
    most: object = None
    with suppress(UserError):  # only some servers have it
        most = _asked(endpoint, f"{path}/config").get("max_batch_size")
    layout = find_layout(image.shape, config.shape, order, literal=type(most) is int and most == 0)
    axis = _has_batch_axis(output, layout)
    classes = _classes(output, axis, config.num_classes, parameters)
    limits = [layout.batch, config.max_batch, parameters.get("max_batch"), most]
    if not axis and layout.batch_axis == "yes":
        limits.append(1)
    return V2Model(
        name=options.model,
        version=options.version,
        path=path,
        input=image,
        output=output,
        layout=layout,
        spec=_spec(image, layout, config, parameters),
        num_classes=classes,
        label_mode=_label_mode(output, axis, config, parameters),
        max_batch=min((n for n in limits if type(n) is int and n > 0), default=None),
        binary=any(name in extensions for name in BINARY),
    )


def _asked(endpoint: Endpoint, path: str) -> dict[str, Any]:
    """The JSON object at a path; UserError for anything else."""
    reply = endpoint.get(path)
    try:
        return read_object(reply.body)
    except ValueError:
        came = f"expected a JSON object, got {len(reply.body):,} bytes of something else; is "
        doubt = say("{teacher.url} that of a server of the Open Inference Protocol v2?")
        raise UserError(came + doubt, about=f"GET {endpoint.url}{path}") from None


def _tensors(metadata: Mapping[str, Any], key: str) -> list[TensorMetadata]:
    """The model's inputs or outputs; none where the metadata leave them out."""
    entries = metadata.get(key) or []
    if not isinstance(entries, list):
        raise UserError(f"the model's metadata: expected {key} as a list, got {short(entries)}")
    found = []
    for entry in entries:
        described = entry if isinstance(entry, dict) else {}
        name = described.get("name")
        datatype = described.get("datatype")
        if not (isinstance(name, str) and name.isprintable() and isinstance(datatype, str)):
            raise UserError(
                f"the model's metadata: expected {key} with names and datatypes, got {short(entry)}"
            )
        shape: Any = described.get("shape")
        known = isinstance(shape, list) and all(type(n) is int and n < MAX_NUMBERS for n in shape)
        found.append(
            TensorMetadata(name, datatype, tuple(max(n, -1) for n in shape) if known else None)
        )
    return found


def _choose(what: str, tensors: list[TensorMetadata], given: str | None) -> TensorMetadata:
    """The tensor of the given name, or the only one."""
    if not tensors:
        if given is None and what == "input":
            nameless = "the model's metadata name no inputs; give the name of the one for images"
            raise OptionError("teacher.input", nameless)
        return TensorMetadata(given, "FP32", None)
    names = [str(tensor.name) for tensor in tensors]
    if given is None and len(tensors) > 1:
        raise OptionError(
            f"teacher.{what}",
            f"the model has several {what}s, name one of them: {', '.join(names)}",
        )
    if given is not None and given not in names:
        raise OptionError(f"teacher.{what}", unknown_choice("tensor", given, names))
    return tensors[0 if given is None else names.index(given)]


def _spec(
    image: TensorMetadata, layout: ImageLayout, config: TeacherConfig, parameters: Mapping[str, Any]
) -> ImageSpec:
    if image.datatype not in IMAGE_DATATYPES:
        raise OptionError(
            "teacher.input", f"expected {', '.join(IMAGE_DATATYPES)}, got the input {image}"
        )
    announced = parameters.get("levels")
    levels = config.levels or (announced if type(announced) is int else None)
    if image.datatype == "UINT8":
        if levels not in (None, 256):
            raise OptionError(
                "teacher.levels", f"expected 256, since the input {image} takes bytes, got {levels}"
            )
        levels = 256
    if math.prod(layout.shape) > MAX_NUMBERS:
        raise OptionError(
            "teacher.input",
            f"expected images of at most {MAX_NUMBERS:,} numbers, got the input {image}",
        )
    return ImageSpec(layout.shape, config.bounds or _bounds(parameters.get("bounds")), levels)


def _bounds(announced: object) -> tuple[float, float]:
    """The bounds in the metadata if they are two numbers, else 0 and 1."""
    if isinstance(announced, list) and len(announced) == 2:
        low, high = announced
        if type(low) in (int, float) and type(high) in (int, float) and -1e30 < low < high < 1e30:
            return float(low), float(high)
    return 0.0, 1.0


def _require_numbers(output: TensorMetadata) -> None:
    """UserError for an output of texts: which class is which is for an adapter to say."""
    if output.datatype == "BYTES":
        raise OptionError(
            "teacher.output",
            say(
                "expected numbers, got the output {} of texts; name an output of scores, or take "
                "{teacher:json} with an adapter: request.json as the protocol has it, answer.path "
                "outputs[0].data[*], form: name, and answer.classes",
                output,
            ),
        )


def _has_batch_axis(output: TensorMetadata, layout: ImageLayout) -> bool:
    """Whether the output's first size is the number of images.

    A lone size that is not the batch's is the number of classes: ``[10]`` is ten classes of one
    image.
    """
    if layout.batch_axis != "yes":
        return output.shape is None or (len(output.shape) > 1 and output.shape[0] == -1)
    return (
        output.shape is None or len(output.shape) != 1 or output.shape[0] in (-1, 1, layout.batch)
    )


def _classes(
    output: TensorMetadata, axis: bool, given: int | None, parameters: Mapping[str, Any]
) -> int:
    """Number of classes: the user's, the metadata's or the announced one; a lone score is two.

    UserError where two of them disagree, or where nothing tells.
    """
    numbers = output.numbers(axis)
    found = None if numbers is None or output.may_be_label(axis) else max(numbers, 2)
    announced = parameters.get("num_classes")
    known = found or (announced if type(announced) is int and announced > 1 else None)
    classes = given or known
    if classes is None:
        raise OptionError(
            "teacher.num_classes", f"give it, since the metadata do not tell (output {output})"
        )
    if known not in (None, classes):
        raise OptionError("teacher.num_classes", f"expected {known} (output {output}), got {given}")
    if classes > MAX_CLASSES:
        raise OptionError(
            "teacher.num_classes",
            f"expected at most {MAX_CLASSES:,}, got {classes:,} (output {output})",
        )
    return classes


def _label_mode(
    output: TensorMetadata, axis: bool, config: TeacherConfig, parameters: Mapping[str, Any]
) -> LabelMode:
    """The form of the answers: as announced, else as output and configuration let it be."""
    text = parameters.get("label_mode")
    if isinstance(text, str) and LABEL_MODE.fullmatch(text):
        return LabelMode.parse(text)
    if output.may_be_label(axis) and (output.numbers(axis) == 1 or config.label_mode == "label"):
        return LabelMode("label")
    logits = config.label_mode is not None and LabelMode.parse(config.label_mode).kind == "logits"
    return LabelMode("logits" if logits else "probabilities")


AxisOrder = Literal["nchw", "nhwc"]
Image = tuple[int, int, int]
"""An image's C, H, W."""

ORDERS: tuple[AxisOrder, ...] = ("nchw", "nhwc")
CHANNELS = (1, 3, 4)  # sizes of an axis that is taken for the channels where the order is open


@dataclass(frozen=True)
class ImageLayout:
    """Images ``shape`` (C, H, W) travel with their axes in ``order``, each in the shape ``sent``.

    ``batch``: most images in one request if the metadata fix it, else None. ``batch_axis``: whether
    requests have an axis for it; ``open`` where the metadata leave it out, as servers do that add
    one and such that take one image.
    """

    shape: Image
    order: AxisOrder
    sent: tuple[int, ...]
    batch: int | None
    batch_axis: Literal["yes", "no", "open"] = "yes"


def find_layout(
    metadata: tuple[int, ...] | None, given: Image | None, order: object, literal: bool = False
) -> ImageLayout:
    """Layout that fits the metadata's shape (-1: any size), the user's (C, H, W) and an order.

    Four axes are a batch of images, three that begin with -1 grey images without channels, two
    flattened images; other three are one image, its batch left out. ``literal``: the server adds no
    axis to them, as Triton with max_batch_size 0. UserError that names the flag where nothing or
    more than one fits.
    """
    known: AxisOrder | None = next((word for word in ORDERS if word == order), None)
    if metadata is None:
        metadata = (-1, -1, -1, -1)
    whole = len(metadata) == 3 and metadata[0] > 0
    if literal and len(metadata) < 3 and min(metadata, default=-1) > 0 and metadata[0] > 1:
        shape = _flat_shape(metadata, given)
        return ImageLayout(shape, known or "nchw", metadata, 1, "no")
    batch = -1
    sizes = metadata
    if metadata and not whole:
        batch = metadata[0]
        sizes = metadata[1:]
    if len(sizes) not in (1, 2, 3):
        raise UserError(
            f"the model's input: expected a batch of images, got the shape {list(metadata)}"
        )
    limit = batch if batch > 0 else None
    if len(sizes) < 3:
        shape = _flat_shape(sizes, given)
        sent = shape[1:] if len(sizes) == 2 else (math.prod(shape),)
        return ImageLayout(shape, known or "nchw", sent, limit)
    shape, found = _ordered(sizes, given, known)
    if not whole:
        return ImageLayout(shape, found, in_order(shape, found), limit)
    if literal:
        return ImageLayout(shape, found, in_order(shape, found), 1, "no")
    return ImageLayout(shape, found, in_order(shape, found), limit, "open")


def in_order(shape: Image, order: AxisOrder) -> Image:
    """The sizes (C, H, W) in the order in which they are sent."""
    channels, height, width = shape
    return shape if order == "nchw" else (height, width, channels)


def _ordered(
    sizes: tuple[int, ...], given: Image | None, known: AxisOrder | None
) -> tuple[Image, AxisOrder]:
    """Shape and order of images with three axes."""
    orders = (known,) if known else ORDERS
    if given is not None:
        fitting = [(given, order) for order in orders if _fits(sizes, in_order(given, order))]
    elif min(sizes) < 1:
        raise OptionError(
            "teacher.shape", f"give C,H,W, since the model's input leaves sizes open: {list(sizes)}"
        )
    else:
        one, two, three = sizes
        images: dict[AxisOrder, Image] = {"nchw": (one, two, three), "nhwc": (three, one, two)}
        fitting = [
            (images[order], order) for order in orders if known or images[order][0] in CHANNELS
        ]
    if len(fitting) == 1:
        return fitting[0]
    if given is not None and not fitting:
        raise OptionError(
            "teacher.shape", f"expected C,H,W that fit the model's input {list(sizes)}, got {given}"
        )
    raise OptionError(
        "teacher.layout", f"give nchw or nhwc, since the model's input {list(sizes)} does not tell"
    )


def _fits(sizes: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return all(size in (-1, actual) for size, actual in zip(sizes, shape, strict=True))


def _flat_shape(sizes: tuple[int, ...], given: Image | None) -> Image:
    """(C, H, W) of images that are sent with fewer axes."""
    if given is None and len(sizes) == 2 and min(sizes) > 0:
        return (1, *sizes)
    if given is None:
        raise OptionError(
            "teacher.shape",
            f"give C,H,W, since the model's input is one of {list(sizes)} per image",
        )
    wanted = given[1:] if len(sizes) == 2 else (math.prod(given),)
    if not _fits(sizes, wanted) or (len(sizes) == 2 and given[0] != 1):
        raise OptionError(
            "teacher.shape", f"expected C,H,W that fit the model's input {list(sizes)}, got {given}"
        )
    return given
