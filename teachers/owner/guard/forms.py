"""Where images are in a request's body and scores in an answer's: protocol v2, adapters."""

import base64
import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from starlette.datastructures import Headers

from dfme.answers.reading import PartialAnswers
from dfme.config.settings import TeacherConfig
from dfme.errors import Unusable, UserError
from dfme.spec import ImageSpec, Teacher
from dfme.teachers.arrays import Array
from dfme.teachers.json_text import HEADER_LENGTH, require_numbers
from dfme.teachers.open_inference.message import (
    NamedTensor,
    TensorList,
    pack,
    read_header_length,
    unpack,
)
from dfme.teachers.open_inference.server import pixels_of
from dfme.teachers.owner.guard.bodies import HttpBody
from dfme.teachers.remote.endpoint import Reply
from dfme.teachers.remote.json_api.adapter_file import load_adapter, model_spec
from dfme.teachers.remote.json_api.api import JsonAdapter
from dfme.teachers.remote.json_api.description import JsonPath, find_images
from dfme.teachers.remote.json_bodies import dump, lone_scores, numbers, parse

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
        content, length = pack(
            header,
            [NamedTensor(tensor.name, score_rows(scores, self._classes))],
            "outputs",
            read_header_length(answer.headers) is not None,
        )
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


# Images and scores where an adapter's file says that they are in JSON bodies

PICTURE_MODES = {
    1: "L",
    2: "LA",
    3: "RGB",
    4: "RGBA",
}


class AdapterForm:
    """An API that an adapter file describes (docs/adapters.md), for any number of images in a
    request.
    """

    def __init__(self, path: str, teacher: Teacher) -> None:
        api = load_adapter(path)
        model = model_spec(
            api, TeacherConfig(shape=teacher.spec.shape, num_classes=teacher.num_classes)
        )
        self._spec = teacher.spec
        self._image = api.description.image
        self._request = api.description.request
        self._answer = api.description.answer
        self._names = model.classes.names
        self._path, self._label, self._score = map(
            JsonPath.read, (self._answer.path, self._answer.label, self._answer.score)
        )
        self._adapter = JsonAdapter(self._image, lambda images: (b"", {}), self._answer, model)
        self.answers = model.mode.kind
        self._as_logits = self.answers == "logits" and teacher.label_mode.kind != "logits"
        if self._request.multipart is not None:
            raise UserError(
                f"{path}: request.multipart: expected json or bytes, where images can be found"
            )
        if self.answers not in ("probabilities", "logits"):
            raise UserError(
                f"{path}: teacher.label_mode: expected scores of all classes, got {model.mode}"
            )

    def images(self, body: HttpBody, /) -> Array:
        template = self._request.json
        if template is None:
            return self._pixels(bytes(body))
        require_numbers(body)
        return np.concatenate([self._pixels(image) for image in find_images(template, parse(body))])

    def scores(self, answer: HttpBody, /) -> Array:
        values = self._path.values(parse(answer))
        answers = self._adapter.decode(
            Reply(answer.status, answer.headers, bytes(answer)), len(values)
        )
        lone = self._answer.form == "scores" and lone_scores(values, len(self._names)) is not None
        if isinstance(answers, PartialAnswers) or lone:
            raise Unusable(
                "expected scores of every class for each image, got fewer", "too few scores"
            )
        return answers.numpy()

    def replace(self, answer: HttpBody, scores: Array, /) -> bytes:
        """A document of these scores alone; where the API answers logits they are logarithms."""
        scores_BK = score_rows(scores, len(self._names)) * np.float32(self._answer.scale or 1.0)
        if self._as_logits:
            scores_BK = np.log(scores_BK.clip(np.finfo(np.float32).tiny))
        entries = [self._entry(row) for row in numbers(scores_BK)]
        return dump(self._path.put(None, entries if self._path.each else entries[0]))

    def _entry(self, scores: list[float]) -> Any:
        """One image's part of an answer; a score that is not revealed is null, or left out."""
        pairs = zip(self._names, scores, strict=True)
        revealed = {name: score for name, score in pairs if not math.isnan(score)}
        if self._answer.form == "mapping":
            return revealed
        if self._answer.form == "scores":
            return [revealed.get(name) for name in self._names]
        best = sorted(revealed.items(), key=lambda pair: -pair[1])
        if self._answer.form == "lists":
            return self._score.put(
                self._label.put(None, [name for name, _ in best]), [score for _, score in best]
            )
        return [self._score.put(self._label.put(None, name), score) for name, score in best]

    def _pixels(self, image: Any) -> Array:
        """One image (1, C, H, W), as it is encoded."""
        form = self._image
        channels, height, width = self._spec.shape
        last = form.picture or form.layout == "nhwc"
        if form.encoding in ("png_base64", "data_url", "raw_base64"):
            image = base64.b64decode(image.rpartition(",")[2], validate=True)
        if form.picture:
            image = _picture(image, self._spec)
        dtype = np.dtype("u1" if form.eight_bit else "<f4")
        array = np.frombuffer(image, dtype) if isinstance(image, bytes) else np.array(image, dtype)
        array = array.reshape(1, *((height, width, channels) if last else self._spec.shape))
        if form.scale is not None:
            low, high = self._spec.bounds
            # as float32 has them, so that both ends stay in bounds
            start, end = np.array(form.scale, np.float32).astype(float)
            array = low + (array.astype(float) - start) / (end - start) * (high - low)
        return pixels(array, self._spec, last)


def _picture(data: bytes, spec: ImageSpec) -> bytes:
    """The pixels of a picture of the model's size, rows by columns by channels."""
    from PIL import Image

    picture = Image.open(io.BytesIO(data), formats=("PNG", "JPEG", "WEBP"))
    if picture.size != (spec.shape[2], spec.shape[1]):
        raise ValueError(f"expected a picture of the model's size, got {picture.size}")
    return picture.convert(PICTURE_MODES[spec.shape[0]]).tobytes()
