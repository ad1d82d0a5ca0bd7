"""Where images are in the body of a request, and scores in that of an answer: protocol v2, JSON
adapters.
"""

import base64
import io
from types import SimpleNamespace
from typing import Any

import numpy as np
from starlette.datastructures import Headers

from dfme.answers.reading import PartialAnswers
from dfme.config.settings import TeacherConfig
from dfme.errors import Unusable, UserError
from dfme.spec import ImageSpec, Teacher
from dfme.teachers.arrays import Array
from dfme.teachers.json_text import HEADER_LENGTH, load_json, require_numbers
from dfme.teachers.open_inference.message import pack, read_header_length, unpack
from dfme.teachers.open_inference.server import pixels_of
from dfme.teachers.open_inference.tensors import NamedTensor
from dfme.teachers.remote.endpoint import Reply
from dfme.teachers.remote.json_api.adapter_file import load_adapter, model_spec
from dfme.teachers.remote.json_api.api import JsonAdapter
from dfme.teachers.remote.json_api.template import JsonPath, find_images
from dfme.teachers.remote.json_bodies import dump, lone_scores, numbers, parse

MAX_ELEMENTS = 2**26  # in a body's tensors


class HttpBody(bytes):
    """A body with its ``headers``; an answer's has the ``request`` and a ``status``."""

    headers = Headers()
    request: Any = None
    status = 200
    question: Any = None

    def json(self) -> Any:
        """The document in it; while a large one is read, others are served.

        ValueError, too, for a large request that is not mostly numbers.
        """
        if self.request is None:
            require_numbers(self)
        return load_json(self)

    @classmethod
    def of(
        cls, content: bytes | bytearray, headers: Headers, request: Any = None, status: int = 200
    ) -> "HttpBody":
        body = cls(content)
        body.headers = headers
        body.request = request
        body.status = status
        return body


def form_of(form: Any, own: SimpleNamespace, teacher: Teacher) -> Any:
    """Where things are: by ``v2``, by an adapter's file, by an object with three callables or by
    ``own``.
    """
    file = isinstance(form, str) and form.endswith((".yaml", ".yml"))
    unknown = isinstance(form, str) and form != "v2" and not file
    if unknown or (form is None) == (None in vars(own).values()):
        either = (
            "Guard: expected either form, v2, an adapter's YAML file or an object of "
            "yours, or all of"
        )
        raise UserError(f"{either} {', '.join(vars(own))}; got form={form!r}")
    if file:
        return AdapterForm(form, teacher)
    return V2Form(teacher.spec, teacher.num_classes) if form == "v2" else form or own


class V2Form:
    """One image tensor and one score tensor of the inference protocol v2, JSON or binary, under any
    names.
    """

    def __init__(self, spec: ImageSpec, classes: int) -> None:
        self._spec = spec
        self._classes = classes

    def images(self, body: HttpBody) -> Array:
        (tensor,) = _read(body, "inputs")[1]
        return _pixels(tensor.array, self._spec, tensor.array.shape[1:] != self._spec.shape)

    def scores(self, body: HttpBody) -> Any:
        (tensor,) = _read(body, "outputs")[1]
        return tensor.array

    def replace(self, body: HttpBody, answers: Array) -> HttpBody:
        """The answer with these scores alone; a label is a score of 1."""
        header, (tensor,) = _read(body, "outputs")
        header = {
            name: header[name] for name in ("model_name", "model_version", "id") if name in header
        }
        told = [NamedTensor(tensor.name, _scores(answers, self._classes))]
        content, length = pack(
            header, told, "outputs", read_header_length(body.headers) is not None
        )
        return HttpBody.of(content, Headers({} if length is None else {HEADER_LENGTH: str(length)}))


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
        paths = (self._answer.path, self._answer.label, self._answer.score)
        self._path, self._label, self._score = map(JsonPath.read, paths)
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

    def images(self, body: HttpBody) -> Array:
        template = self._request.json
        if template is not None:
            require_numbers(body)
        found = [bytes(body)] if template is None else find_images(template, parse(body))
        return np.concatenate([self._read(each) for each in found])

    def scores(self, body: HttpBody) -> Array:
        values = self._path.values(parse(body))
        answers = self._adapter.decode(Reply(body.status, body.headers, bytes(body)), len(values))
        lone = self._answer.form == "scores" and lone_scores(values, len(self._names)) is not None
        if isinstance(answers, PartialAnswers) or lone:
            raise Unusable(
                "expected scores of every class for each image, got fewer", "too few scores"
            )
        return answers.numpy()

    def replace(self, body: HttpBody, answers: Array) -> bytes:
        """A document of these scores alone; where the API answers logits they are logarithms."""
        scores_BK = _scores(answers, len(self._names)) * np.float32(self._answer.scale or 1.0)
        if self._as_logits:
            scores_BK = np.log(scores_BK.clip(np.finfo(np.float32).tiny))
        entries = [self._entry(row) for row in numbers(scores_BK)]
        return dump(self._path.put(None, entries if self._path.each else entries[0]))

    def _entry(self, scores: list[float]) -> Any:
        """One image's part of an answer; a score that is not revealed is null, or left out."""
        told = {name: each for name, each in zip(self._names, scores, strict=True) if each == each}
        if self._answer.form == "mapping":
            return told
        if self._answer.form == "scores":
            return [told.get(name) for name in self._names]
        best = sorted(told.items(), key=lambda pair: -pair[1])
        if self._answer.form == "lists":
            names, values = ([pair[at] for pair in best] for at in (0, 1))
            return self._score.put(self._label.put(None, names), values)
        return [self._score.put(self._label.put(None, name), each) for name, each in best]

    def _read(self, image: Any) -> Array:
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
            start, end = np.array(form.scale, np.float32).astype(
                float
            )  # so that both ends stay in bounds
            array = low + (array.astype(float) - start) / (end - start) * (high - low)
        return _pixels(array, self._spec, last)


def _picture(data: bytes, spec: ImageSpec) -> bytes:
    """The pixels of a picture of the model's size, rows by columns by channels."""
    from PIL import Image

    picture = Image.open(io.BytesIO(data), formats=("PNG", "JPEG", "WEBP"))
    if picture.size != (spec.shape[2], spec.shape[1]):
        raise ValueError(f"expected a picture of the model's size, got {picture.size}")
    return picture.convert(
        {
            1: "L",
            2: "LA",
            3: "RGB",
            4: "RGBA",
        }[spec.shape[0]]
    ).tobytes()


def _pixels(array: Array, spec: ImageSpec, channels_last: bool) -> Array:
    """Images (B, C, H, W) of numbers as the wire has them; bytes are levels from 0 to 255."""
    if array.dtype == np.uint8:
        array = pixels_of(array, spec)
    return array.transpose(0, 3, 1, 2) if channels_last else array


def _scores(answers: Array, classes: int) -> Array:
    """Scores (B, K), float32; a label is a score of 1."""
    scores_BK: Array = np.eye(classes)[answers] if answers.ndim == 1 else answers
    return scores_BK.astype(np.float32)


def _read(body: HttpBody, key: Any) -> Any:
    return unpack(body, read_header_length(body.headers), key, MAX_ELEMENTS)
