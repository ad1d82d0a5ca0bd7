"""Images and scores where an adapter's file says that they are in JSON bodies."""

import base64
import io
import math
from typing import Any

import numpy as np

from dfme.answers.reading import PartialAnswers
from dfme.config.settings import TeacherConfig
from dfme.errors import Unusable, UserError
from dfme.spec import ImageSpec, Teacher
from dfme.teachers.arrays import Array
from dfme.teachers.json_text import require_numbers
from dfme.teachers.owner.guard.bodies import HttpBody
from dfme.teachers.owner.guard.forms import pixels, score_rows
from dfme.teachers.remote.endpoint import Reply
from dfme.teachers.remote.json_api.adapter_file import load_adapter, model_spec
from dfme.teachers.remote.json_api.api import JsonAdapter
from dfme.teachers.remote.json_api.template import JsonPath, find_images
from dfme.teachers.remote.json_bodies import dump, lone_scores, numbers, parse

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

    def images(self, body: HttpBody, /) -> Array:
        template = self._request.json
        if template is None:
            return self._pixels(bytes(body))
        require_numbers(body)
        return np.concatenate([self._pixels(image) for image in find_images(template, parse(body))])

    def scores(self, answer: HttpBody, /) -> Array:
        values = self._path.values(parse(answer))
        reply = Reply(answer.status, answer.headers, bytes(answer))
        answers = self._adapter.decode(reply, len(values))
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
            names = self._label.put(None, [name for name, _ in best])
            return self._score.put(names, [score for _, score in best])
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
