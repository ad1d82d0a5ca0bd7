"""What the metadata of a v2 model say, beside what the user says: everything that has to be known to ask it.

Metadata are the protocol's; a batch limit comes from Triton's model configuration, and ``run.py serve`` announces
label mode, bounds, levels and limits under ``parameters``. The user's flags fill gaps; contradictions are UserErrors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from dfme.config.messages import unknown_choice
from dfme.config.settings import TeacherConfig
from dfme.errors import UserError
from dfme.spec import ImageSpec, LabelMode
from teachers.open_inference.layout import ImageLayout, find_layout
from teachers.open_inference.message import read_object
from teachers.open_inference.output import TensorFacts, form_of_answers, number_of_classes
from teachers.open_inference.tensors import short
from teachers.remote.endpoint import Endpoint
from teachers.remote.options import V2Options

BINARY = ("binary_tensor_data", "binary_data")
"""Names under which servers announce the binary tensor data extension."""

IMAGE_DATATYPES = ("FP32", "UINT8", "FP16", "FP64")
MOST_NUMBERS = 2**26
"""Numbers that one image may have, and sizes that a shape may have: metadata come from a stranger too."""


@dataclass(frozen=True)
class V2Model:
    """How a model is asked: ``path`` is that of its URLs; ``binary`` says whether the server announces the extension.

    ``classification``: the best so many classes are asked for as texts; 0: the scores or labels.
    """

    name: str
    version: str | None
    path: str
    input: TensorFacts
    output: TensorFacts
    layout: ImageLayout
    spec: ImageSpec
    num_classes: int
    label_mode: LabelMode
    max_batch: int | None
    binary: bool
    classification: int


def read_model(endpoint: Endpoint, options: V2Options, config: TeacherConfig) -> V2Model:
    """Ask the server for everything that is known about a model; no image is sent.

    UserError where the server or the model is not ready, and for what is missing, unknown or contradictory; each
    names the flag.
    """
    path = _path(options)
    endpoint.get("/v2/health/ready")
    metadata = _asked(endpoint, path)
    endpoint.get(f"{path}/ready")
    extensions = _asked(endpoint, "/v2").get("extensions")
    extensions = extensions if isinstance(extensions, list) else []
    own = metadata.get("parameters")
    own = own if isinstance(own, dict) else {}
    image = _choose("input", _tensors(metadata, "inputs"), options.input)
    output = _choose("output", _tensors(metadata, "outputs"), options.output)
    layout = find_layout(image.shape, config.shape, own.get("layout") if options.layout == "auto" else options.layout)
    classes = number_of_classes(output, config.num_classes, own)
    return V2Model(
        name=options.model,
        version=options.version,
        path=path,
        input=image,
        output=output,
        layout=layout,
        spec=_spec(image, layout, config, own),
        num_classes=classes,
        label_mode=form_of_answers(output, options.classification, classes, config, own, extensions),
        max_batch=_max_batch(layout.batch, config.max_batch, own, _optional(endpoint, f"{path}/config")),
        binary=any(name in extensions for name in BINARY),
        classification=options.classification,
    )


def _path(options: V2Options) -> str:
    """The path of the model's URLs, of its version if one is given."""
    path = f"/v2/models/{quote(options.model, safe='')}"
    return path if options.version is None else f"{path}/versions/{quote(options.version, safe='')}"


def _asked(endpoint: Endpoint, path: str) -> dict[str, Any]:
    """The JSON object at a path; UserError for anything else."""
    reply = endpoint.get(path)
    try:
        return read_object(reply.body)
    except ValueError:
        raise UserError(
            f"GET {endpoint.url}{path}: expected a JSON object, got {len(reply.body):,} bytes of something else; "
            "is --teacher.url that of a server of the Open Inference Protocol v2?"
        ) from None


def _optional(endpoint: Endpoint, path: str) -> dict[str, Any]:
    """The JSON object at a path that only some servers have; an empty one where there is none."""
    try:
        return _asked(endpoint, path)
    except UserError:
        return {}


def _tensors(metadata: Mapping[str, Any], key: str) -> list[TensorFacts]:
    """The model's inputs or outputs; none where the metadata leave them out."""
    entries = metadata.get(key) or []
    if not isinstance(entries, list):
        raise UserError(f"the model's metadata: expected {key} as a list, got {short(entries)}")
    return [_tensor(entry, key) for entry in entries]


def _tensor(entry: object, key: str) -> TensorFacts:
    """A tensor as the metadata describe it."""
    if isinstance(entry, dict):
        name, datatype, shape = entry.get("name"), entry.get("datatype"), entry.get("shape")
        if isinstance(name, str) and name.isprintable() and isinstance(datatype, str):
            sizes = (
                shape if isinstance(shape, list) and all(type(n) is int and n < MOST_NUMBERS for n in shape) else None
            )
            return TensorFacts(name, datatype, None if sizes is None else tuple(max(n, -1) for n in sizes))
    raise UserError(f"the model's metadata: expected {key} with names and datatypes, got {short(entry)}")


def _choose(what: str, tensors: list[TensorFacts], given: str | None) -> TensorFacts:
    """The tensor of the given name, or the only one."""
    if not tensors:
        if given is None and what == "input":
            raise UserError("--teacher.input: the model's metadata name no inputs; give the name of the one for images")
        return TensorFacts(given, "FP32", None)
    names = [str(tensor.name) for tensor in tensors]
    if given is None and len(tensors) > 1:
        raise UserError(f"--teacher.{what}: the model has several {what}s, name one of them: {', '.join(names)}")
    if given is not None and given not in names:
        raise UserError(f"--teacher.{what}: {unknown_choice('tensor', given, names)}")
    return tensors[0 if given is None else names.index(given)]


def _spec(image: TensorFacts, layout: ImageLayout, config: TeacherConfig, own: Mapping[str, Any]) -> ImageSpec:
    """The images that the model takes."""
    if image.datatype not in IMAGE_DATATYPES:
        raise UserError(f"--teacher.input: expected {', '.join(IMAGE_DATATYPES)}, got the input {image}")
    announced = own.get("levels")
    levels = config.levels or (announced if type(announced) is int else None)
    if image.datatype == "UINT8":
        if levels not in (None, 256):
            raise UserError(f"--teacher.levels: expected 256, since the input {image} takes bytes, got {levels}")
        levels = 256
    spec = ImageSpec(layout.shape, config.bounds or _bounds(own.get("bounds")), levels)
    if spec.numel > MOST_NUMBERS:
        raise UserError(f"--teacher.input: expected images of at most {MOST_NUMBERS:,} numbers, got the input {image}")
    return spec


def _bounds(announced: object) -> tuple[float, float]:
    """The bounds in the metadata if they are two numbers, else 0 and 1."""
    if isinstance(announced, list) and len(announced) == 2:
        low, high = announced
        if type(low) in (int, float) and type(high) in (int, float) and -1e30 < low < high < 1e30:
            return float(low), float(high)
    return 0.0, 1.0


def _max_batch(fixed: int | None, given: int | None, own: Mapping[str, Any], triton: Mapping[str, Any]) -> int | None:
    """The smallest of all limits that are known."""
    limits = (fixed, given, own.get("max_batch"), triton.get("max_batch_size"))
    return min((limit for limit in limits if type(limit) is int and limit > 0), default=None)
