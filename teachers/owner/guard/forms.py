"""Where images are in a request's body and scores in an answer's: the role, and protocol v2."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from starlette.datastructures import Headers

from dfme.spec import ImageSpec
from dfme.teachers.arrays import Array
from dfme.teachers.json_text import HEADER_LENGTH
from dfme.teachers.open_inference.message import (
    TensorList,
    pack,
    read_header_length,
    unpack,
)
from dfme.teachers.open_inference.server import pixels_of
from dfme.teachers.open_inference.tensors import NamedTensor
from dfme.teachers.owner.guard.bodies import HttpBody

MAX_ELEMENTS = 2**26  # in a body's tensors
IDENTITY = ("model_name", "model_version", "id")  # what stays of an answer's header


class BodyForm(Protocol):
    """Reads and writes bodies. What cannot be read raises any error."""

    def images(self, body: HttpBody, /) -> Any:
        """The images of a request, (B, C, H, W) within the bounds."""

    def scores(self, answer: HttpBody, /) -> Any:
        """The scores of an answer, (B, K), or its labels."""

    def replace(self, answer: HttpBody, scores: Array, /) -> bytes:
        """The answer with other scores, and nothing that tells of its own; the headers of an
        ``HttpBody`` replace those of the answer.
        """


@dataclass(frozen=True)
class CustomForm:
    """Three callables of an owner's."""

    images: Callable[[HttpBody], Any]
    scores: Callable[[HttpBody], Any]
    replace: Callable[[HttpBody, Array], bytes]


class V2Form:
    """One image tensor and one score tensor of the inference protocol v2, JSON or binary, under any
    names.
    """

    def __init__(self, spec: ImageSpec, classes: int) -> None:
        self._spec = spec
        self._classes = classes

    def images(self, body: HttpBody, /) -> Array:
        _, (tensor,) = _unpacked(body, "inputs")
        return pixels(tensor.array, self._spec, tensor.array.shape[1:] != self._spec.shape)

    def scores(self, answer: HttpBody, /) -> Array:
        _, (tensor,) = _unpacked(answer, "outputs")
        return tensor.array

    def replace(self, answer: HttpBody, scores: Array, /) -> HttpBody:
        """The answer with these scores alone; a label is a score of 1."""
        header, (tensor,) = _unpacked(answer, "outputs")
        header = {name: header[name] for name in IDENTITY if name in header}
        tensors = [NamedTensor(tensor.name, score_rows(scores, self._classes))]
        binary = read_header_length(answer.headers) is not None
        content, length = pack(header, tensors, "outputs", binary)
        return HttpBody.of(content, Headers({} if length is None else {HEADER_LENGTH: str(length)}))


def pixels(array: Array, spec: ImageSpec, channels_last: bool) -> Array:
    """Images (B, C, H, W) of numbers as the wire has them; bytes are levels from 0 to 255."""
    if array.dtype == np.uint8:
        array = pixels_of(array, spec)
    return array.transpose(0, 3, 1, 2) if channels_last else array


def score_rows(answers: Array, classes: int) -> Array:
    """Scores (B, K), float32; a label is a score of 1."""
    scores_BK: Array = np.eye(classes)[answers] if answers.ndim == 1 else answers
    return scores_BK.astype(np.float32)


def _unpacked(body: HttpBody, key: TensorList) -> tuple[dict[str, Any], list[NamedTensor]]:
    return unpack(body, read_header_length(body.headers), key, MAX_ELEMENTS)
