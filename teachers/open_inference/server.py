"""Server half of the Open Inference Protocol v2: requests to images, answers to bytes.

Source: https://github.com/kserve/open-inference-protocol. One input, ``image``; one output,
``scores``, or ``label`` where that is the label mode.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dfme.spec import ImageSpec, LabelMode
from dfme.teachers.arrays import Array
from dfme.teachers.open_inference.message import (
    NamedTensor,
    datatype_of,
    pack,
    parameters_of,
    short,
    unpack,
)

INPUT = "image"
VERSION = "1"
PLATFORM = "dfme"
EXTENSIONS = ["binary_tensor_data", "model_configuration", "model_repository"]
BYTE_LEVELS = 256
# most bytes of a pixel in JSON: seventeen digits, sign, exponent, comma, a share of the brackets
JSON_PIXEL = 32
JSON_HEADER = 65_536
UNLIMITED_BODY = 64 * 2**20  # most bytes of a request's body where the batch has no limit


class BatchTooLargeError(ValueError):
    """More images than one request may hold."""


@dataclass(frozen=True)
class Service:
    """Model that is served: its name in URLs, its images, its answers."""

    name: str
    spec: ImageSpec
    num_classes: int
    label_mode: LabelMode
    max_batch: int | None = None

    @property
    def labels(self) -> bool:
        """True if an answer is a label alone."""
        return self.label_mode.kind == "label"

    @property
    def output(self) -> str:
        return "label" if self.labels else "scores"

    @property
    def datatypes(self) -> tuple[str, ...]:
        """Datatypes that an image may have; the first is the one the metadata name."""
        return ("UINT8", "FP32") if self.spec.levels == BYTE_LEVELS else ("FP32",)

    @property
    def most_bytes(self) -> int:
        """Limit of a request's body, into which the largest batch fits in any encoding."""
        image = self.spec.numel * JSON_PIXEL
        images = image * self.max_batch if self.max_batch else max(UNLIMITED_BODY, image)
        return images + JSON_HEADER


@dataclass(frozen=True)
class Question:
    """One inference request: float32 images (B, C, H, W) within the bounds, and the form of the
    answer.
    """

    images: Array
    id: str | None = None
    binary: bool = False


def model_metadata(service: Service) -> dict[str, Any]:
    """The model's tensors and, under ``parameters`` (left open), label mode and limits."""
    spec = service.spec
    output = ("INT64", [-1]) if service.labels else ("FP32", [-1, service.num_classes])
    return {
        "name": service.name,
        "versions": [VERSION],
        "platform": PLATFORM,
        "inputs": [{"name": INPUT, "datatype": service.datatypes[0], "shape": [-1, *spec.shape]}],
        "outputs": [{"name": service.output, "datatype": output[0], "shape": output[1]}],
        "parameters": {
            "label_mode": str(service.label_mode),
            "bounds": list(spec.bounds),
            "levels": spec.levels,
            "layout": "nchw",
            "max_batch": service.max_batch,
            "num_classes": service.num_classes,
        },
    }


def model_config(service: Service) -> dict[str, Any]:
    """The model's configuration as Triton has it: with a batch limit, ``dims`` are those of one
    image.
    """
    batch = [] if service.max_batch else [-1]
    datatype = "TYPE_FP32"
    dims = [service.num_classes]
    if service.labels:
        datatype = "TYPE_INT64"
        dims = [] if batch else [1]
    image = {"name": INPUT, "data_type": f"TYPE_{service.datatypes[0]}", "format": "FORMAT_NCHW"}
    return {
        "name": service.name,
        "platform": PLATFORM,
        "backend": PLATFORM,
        "max_batch_size": service.max_batch or 0,
        "input": [{**image, "dims": [*batch, *service.spec.shape]}],
        "output": [{"name": service.output, "data_type": datatype, "dims": [*batch, *dims]}],
    }


def read_question(service: Service, body: bytes, header_length: int | None) -> Question:
    """Parse a request. ValueError if malformed; BatchTooLargeError for too many images."""
    header, tensors = unpack(body, header_length, "inputs", most_elements=service.most_bytes)
    if len(tensors) != 1 or tensors[0].name != INPUT:
        raise ValueError(
            f"expected one input {INPUT!r}, got {short([tensor.name for tensor in tensors])}"
        )
    request_id = header.get("id")
    if request_id is not None and not isinstance(request_id, str):
        raise ValueError(f"expected an id as text, got {short(request_id)}")
    return Question(_images(service, tensors[0]), request_id, _wants_binary(service, header))


def write_answer(service: Service, question: Question, answers: Array) -> tuple[bytes, int | None]:
    """Response body for scores (B, K) or labels (B,), and the length of its JSON part."""
    header = {"model_name": service.name, "model_version": VERSION}
    if question.id is not None:
        header["id"] = question.id
    return pack(header, [NamedTensor(service.output, answers)], "outputs", question.binary)


def pixels_of(levels: Array, spec: ImageSpec) -> Array:
    """Pixels, float32 within the bounds, of levels from 0 to 255."""
    low, high = map(np.float32, spec.bounds)
    step = np.float32((spec.bounds[1] - spec.bounds[0]) / (BYTE_LEVELS - 1))
    pixels: Array = levels.astype(np.float32) * step + low
    return pixels.clip(low, high)


def _images(service: Service, tensor: NamedTensor) -> Array:
    """The images of the input tensor, copied, as float32 within the bounds."""
    array = tensor.array
    shape = service.spec.shape
    datatype = datatype_of(array)
    if datatype not in service.datatypes:
        raise ValueError(
            f"input {INPUT!r}: expected {' or '.join(service.datatypes)}, got {datatype}"
        )
    if array.shape[1:] != shape or not len(array):
        raise ValueError(
            f"input {INPUT!r}: expected a shape {[-1, *shape]}, got {list(array.shape)}"
        )
    if service.max_batch and len(array) > service.max_batch:
        raise BatchTooLargeError(
            f"batch of {len(array)} images: expected at most {service.max_batch} images"
        )
    low, high = map(np.float32, service.spec.bounds)
    if array.dtype == np.uint8:
        return pixels_of(array, service.spec)
    images = np.array(array, np.float32)  # aligned, and the model may write into it
    least = images.min()
    most = images.max()
    if not (low <= least and most <= high):  # NaN is neither
        raise ValueError(
            f"input {INPUT!r}: expected pixels within {low:g} and {high:g}, got {least:g} to "
            f"{most:g}"
        )
    return images


def _wants_binary(service: Service, header: Mapping[str, Any]) -> bool:
    """True if the output goes as raw bytes."""
    binary = _flag(parameters_of(header), "binary_data_output", False)
    outputs = header.get("outputs")
    if outputs is None or outputs == []:
        return binary
    if not isinstance(outputs, list) or len(outputs) != 1 or not isinstance(outputs[0], dict):
        raise ValueError(f"expected outputs as a list of one object, got {short(outputs)}")
    if outputs[0].get("name") != service.output:
        raise ValueError(
            f"expected the output {service.output!r}, got {short(outputs[0].get('name'))}"
        )
    parameters = parameters_of(outputs[0])
    if parameters.get("classification"):
        raise ValueError(
            "parameter classification: expected none, since this server has no such extension"
        )
    return _flag(parameters, "binary_data", binary)


def _flag(parameters: Mapping[str, Any], name: str, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise ValueError(f"parameter {name}: expected true or false, got {short(value)}")
    return value
