"""Where images are in the body of a request, and scores in that of an answer."""

from typing import Any

import numpy as np
from starlette.datastructures import Headers

from dfme.spec import ImageSpec
from dfme.teachers.arrays import Array
from dfme.teachers.open_inference.message import HEADER_LENGTH, pack, read_header_length, unpack
from dfme.teachers.open_inference.tensors import NamedTensor

MAX_ELEMENTS = 2**26  # in a body's tensors


class HttpBody(bytes):
    """A body with its ``headers``; an answer's has the ``request`` and a ``status``."""

    headers = Headers()
    request: Any = None
    status = 200
    question: Any = None

    @classmethod
    def of(
        cls, content: bytes | bytearray, headers: Headers, request: Any = None, status: int = 200
    ) -> "HttpBody":
        body = cls(content)
        body.headers = headers
        body.request = request
        body.status = status
        return body


class V2Form:
    """One image tensor and one score tensor of the inference protocol v2, JSON or binary, under any names."""

    def __init__(self, spec: ImageSpec, classes: int) -> None:
        self._spec = spec
        self._classes = classes

    def images(self, body: HttpBody) -> Array:
        (tensor,) = _read(body, "inputs")[1]
        array = tensor.array
        if array.dtype == np.uint8:
            low, high = self._spec.bounds
            array = (low + array.astype(np.float32) * ((high - low) / 255)).clip(low, high)
        fits = array.shape[1:] == self._spec.shape
        images: Array = array if fits else array.transpose(0, 3, 1, 2)
        return images

    def scores(self, body: HttpBody) -> Any:
        (tensor,) = _read(body, "outputs")[1]
        return tensor.array

    def replace(self, body: HttpBody, answers: Array) -> HttpBody:
        """The answer with these scores alone; a label is a score of 1."""
        header, (tensor,) = _read(body, "outputs")
        header = {name: header[name] for name in ("model_name", "model_version", "id") if name in header}
        scores_BK = np.eye(self._classes)[answers] if answers.ndim == 1 else answers
        told = [NamedTensor(tensor.name, scores_BK.astype(np.float32))]
        content, length = pack(header, told, "outputs", read_header_length(body.headers) is not None)
        return HttpBody.of(content, Headers({} if length is None else {HEADER_LENGTH: str(length)}))


def _read(body: HttpBody, key: Any) -> Any:
    return unpack(body, read_header_length(body.headers), key, MAX_ELEMENTS)
