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
from typing import Any
from urllib.parse import quote

from dfme.config.messages import unknown_choice
from dfme.config.settings import TeacherConfig
from dfme.errors import OptionError, UserError, say
from dfme.spec import ImageSpec, LabelMode
from dfme.teachers.open_inference.layout import ORDERS, AxisOrder, ImageLayout, find_layout
from dfme.teachers.open_inference.message import read_object, short
from dfme.teachers.options import V2Options
from dfme.teachers.remote.endpoint import Endpoint

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


@dataclass(frozen=True)
class Announced:
    """What a server says of its model under ``parameters``; None for what it does not say in a form
    that can be read.
    """

    layout: AxisOrder | None = None
    bounds: tuple[float, float] | None = None
    levels: int | None = None
    num_classes: int | None = None
    max_batch: int | None = None
    label_mode: LabelMode | None = None

    @staticmethod
    def read(parameters: object) -> Announced:
        """From the metadata, which come from a stranger."""
        if not isinstance(parameters, dict):
            return Announced()
        mode = LABEL_MODE.fullmatch(str(parameters.get("label_mode")))
        return Announced(
            layout=next((order for order in ORDERS if order == parameters.get("layout")), None),
            bounds=_bounds(parameters.get("bounds")),
            levels=_whole_number(parameters.get("levels")),
            num_classes=_positive(parameters.get("num_classes")),
            max_batch=_positive(parameters.get("max_batch")),
            label_mode=LabelMode.parse(mode[0]) if mode else None,
        )


def _whole_number(value: object) -> int | None:
    return value if type(value) is int else None


def _positive(value: object) -> int | None:
    return value if type(value) is int and value > 0 else None


def _bounds(value: object) -> tuple[float, float] | None:
    """Two numbers, the lower one first; None for anything else."""
    match value:
        case [int() | float() as low, int() | float() as high]:
            if bool not in (type(low), type(high)) and -1e30 < low < high < 1e30:
                return float(low), float(high)
    return None


def read_model(endpoint: Endpoint, options: V2Options, config: TeacherConfig) -> V2Model:
    """Ask the server for everything that is known about a model; no image is sent.

    UserError where the server or the model is not ready, and, naming the flag, for what is missing
    or contradictory.
    """
    path = f"/v2/models/{quote(options.model, safe='')}"
    path += f"/versions/{quote(options.version, safe='')}" if options.version is not None else ""
    endpoint.get("/v2/health/ready")
    metadata = _object_at(endpoint, path)
    endpoint.get(f"{path}/ready")
    extensions = _object_at(endpoint, "/v2").get("extensions")
    announced = Announced.read(metadata.get("parameters"))
    image = _choose("input", _tensors(metadata, "inputs"), options.input)
    output = _choose("output", _tensors(metadata, "outputs"), options.output)
    _require_numbers(output)
    most: object = None
    with suppress(UserError):  # only some servers have it
        most = _object_at(endpoint, f"{path}/config").get("max_batch_size")
    order = announced.layout if options.layout == "auto" else options.layout
    layout = find_layout(image.shape, config.shape, order, literal=type(most) is int and most == 0)
    axis = _has_batch_axis(output, layout)
    classes = _classes(output, axis, config.num_classes, announced.num_classes)
    limits = [layout.batch, config.max_batch, announced.max_batch, _positive(most)]
    if not axis and layout.batch_axis == "yes":
        limits.append(1)
    return V2Model(
        name=options.model,
        version=options.version,
        path=path,
        input=image,
        output=output,
        layout=layout,
        spec=_spec(image, layout, config, announced),
        num_classes=classes,
        label_mode=announced.label_mode or _label_mode(output, axis, config.label_mode),
        max_batch=min((limit for limit in limits if limit), default=None),
        binary=isinstance(extensions, list) and any(name in extensions for name in BINARY),
    )


def _object_at(endpoint: Endpoint, path: str) -> dict[str, Any]:
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
    tensors = []
    for entry in entries:
        described = entry if isinstance(entry, dict) else {}
        name = described.get("name")
        datatype = described.get("datatype")
        if not (isinstance(name, str) and name.isprintable() and isinstance(datatype, str)):
            raise UserError(
                f"the model's metadata: expected {key} with names and datatypes, got {short(entry)}"
            )
        shape: Any = described.get("shape")
        is_shape = isinstance(shape, list) and all(
            type(n) is int and n < MAX_NUMBERS for n in shape
        )
        tensors.append(
            TensorMetadata(name, datatype, tuple(max(n, -1) for n in shape) if is_shape else None)
        )
    return tensors


def _choose(what: str, tensors: list[TensorMetadata], wanted: str | None) -> TensorMetadata:
    """The tensor of the given name, or the only one."""
    if not tensors:
        if wanted is None and what == "input":
            raise OptionError(
                "teacher.input",
                "the model's metadata name no inputs; give the name of the one for images",
            )
        return TensorMetadata(wanted, "FP32", None)
    names = [str(tensor.name) for tensor in tensors]
    if wanted is None and len(tensors) > 1:
        raise OptionError(
            f"teacher.{what}",
            f"the model has several {what}s, name one of them: {', '.join(names)}",
        )
    if wanted is not None and wanted not in names:
        raise OptionError(f"teacher.{what}", unknown_choice("tensor", wanted, names))
    return tensors[0 if wanted is None else names.index(wanted)]


def _spec(
    image: TensorMetadata, layout: ImageLayout, config: TeacherConfig, announced: Announced
) -> ImageSpec:
    if image.datatype not in IMAGE_DATATYPES:
        raise OptionError(
            "teacher.input", f"expected {', '.join(IMAGE_DATATYPES)}, got the input {image}"
        )
    levels = config.levels or announced.levels
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
    return ImageSpec(layout.shape, config.bounds or announced.bounds or (0.0, 1.0), levels)


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


def _classes(output: TensorMetadata, axis: bool, flagged: int | None, announced: int | None) -> int:
    """Number of classes: the user's, the metadata's or the announced one; a lone score is two.

    UserError where two of them disagree, or where nothing tells.
    """
    numbers = output.numbers(axis)
    counted = None if numbers is None or output.may_be_label(axis) else max(numbers, 2)
    stated = counted or (announced if announced and announced > 1 else None)
    classes = flagged or stated
    if classes is None:
        raise OptionError(
            "teacher.num_classes", f"give it, since the metadata do not tell (output {output})"
        )
    if stated not in (None, classes):
        raise OptionError(
            "teacher.num_classes", f"expected {stated} (output {output}), got {flagged}"
        )
    if classes > MAX_CLASSES:
        raise OptionError(
            "teacher.num_classes",
            f"expected at most {MAX_CLASSES:,}, got {classes:,} (output {output})",
        )
    return classes


def _label_mode(output: TensorMetadata, axis: bool, wanted: str | None) -> LabelMode:
    """The form of the answers, as output and configuration let it be."""
    if output.may_be_label(axis) and (output.numbers(axis) == 1 or wanted == "label"):
        return LabelMode("label")
    logits = wanted is not None and LabelMode.parse(wanted).kind == "logits"
    return LabelMode("logits" if logits else "probabilities")
