"""A teacher behind any HTTP API with JSON answers that a YAML file describes (docs/adapters.md)."""

import base64
import hashlib
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dfme.answers.reading import NO_ANSWER, PartialAnswers
from dfme.config.settings import TeacherConfig
from dfme.config.values import narrowed
from dfme.errors import Unusable
from dfme.spec import ImageSpec, RequestPolicy
from dfme.teachers.arrays import Array
from dfme.teachers.options import JsonOptions
from dfme.teachers.remote.endpoint import Endpoint, Reply
from dfme.teachers.remote.json_api.adapter_file import (
    JsonApi,
    ModelSpec,
    load_adapter,
    model_spec,
    secrets_of,
)
from dfme.teachers.remote.json_api.description import (
    AnswerForm,
    ImageForm,
    JsonPath,
    fill_images,
    with_environment,
)
from dfme.teachers.remote.json_api.reading import AnswerReader
from dfme.teachers.remote.json_bodies import NUMBER, ROOM, dump, excerpt, numbers, parse
from dfme.teachers.remote.secrets import Secrets, read_secrets
from dfme.teachers.remote.teacher import Adapter, Query, RemoteTeacher

COLOUR_TYPES = {
    1: 0,
    2: 4,
    3: 2,
    4: 6,
}  # PNG's number for grey, grey with alpha, RGB and RGBA, by channels
LEVEL = 1  # a generator's images are close to noise: more effort buys next to nothing


def png(x_HWC: Array) -> bytes:
    """An image of bytes (H, W, C) with 1, 2, 3 or 4 channels as a PNG file."""
    height, width, channels = x_HWC.shape
    assert x_HWC.dtype == np.uint8
    header = struct.pack(">IIBBBBB", width, height, 8, COLOUR_TYPES[channels], 0, 0, 0)
    lines = np.zeros(
        (height, 1 + width * channels), np.uint8
    )  # each line begins with its filter: 0, none
    lines[:, 1:] = x_HWC.reshape(height, -1)
    data = zlib.compress(lines.tobytes(), LEVEL)
    return (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", header)
        + _chunk(b"IDAT", data)
        + _chunk(b"IEND", b"")
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return (
        struct.pack(">I", len(data))
        + kind
        + data
        + struct.pack(">I", zlib.crc32(data, zlib.crc32(kind)))
    )


# The teacher

NO_CONTENT = 204
Body = Callable[[Sequence[Any]], tuple[bytes, dict[str, str]]]


def connect_json(
    options: JsonOptions, config: TeacherConfig, device: torch.device
) -> RemoteTeacher:
    """The API of ``options.adapter``; nothing is asked. UserError for problems of a run."""
    api = load_adapter(options.adapter, options.classes)
    url = options.url or api.description.url
    model = model_spec(api, config)
    secrets = read_secrets(vars(options), url, *secrets_of(api.description, url))
    endpoint = Endpoint(options, url, secrets, api.description.headers)
    adapter = JsonAdapter(
        api.description.image, body_of(api, secrets), api.description.answer, model
    )
    batch = min(config.max_batch or api.description.batch, api.description.batch)
    wire = narrowed(RequestPolicy, options)
    names = model.classes.names
    return RemoteTeacher(endpoint, adapter, model.spec, len(names), model.mode, batch, wire, names)


def body_of(api: JsonApi, secrets: Secrets) -> Body:
    """Maker of a body of encoded images and its headers, with the secrets in their places."""
    request = api.description.request
    if request.multipart is not None:
        fields = {name: secrets.fill(value) for name, value in request.fields.items()}
        return partial(
            multipart_body,
            request.multipart,
            request.filename,
            api.description.image.picture,
            fields,
        )
    headers = {"Content-Type": request.bytes or "application/json", "Accept": "application/json"}
    if request.bytes is not None:
        return lambda images: (images[0], headers)
    template = with_environment(request.json, secrets.fill)
    return lambda images: (dump(fill_images(template, images)), headers)


class JsonAdapter(Adapter):
    """Writes requests as ``form`` and ``body`` say, reads answers as ``answer`` and ``model``
    say.
    """

    def __init__(self, form: ImageForm, body: Body, answer: AnswerForm, model: ModelSpec) -> None:
        self._form = form
        self._body = body
        self._model = model
        self._path = JsonPath.read(answer.path, "answer.path")
        self._error = JsonPath.read(answer.error)
        self._kind = answer.form
        self._optional = answer.optional
        self._reader = AnswerReader(answer, model)
        self._no_class = {str(status) for status in (*answer.no_answer_status, NO_CONTENT)}

    def encode(self, images_BCHW: Tensor) -> Query:
        body, headers = self._body(encode_images(images_BCHW, self._form, self._model.spec))
        return Query("", body, headers)

    def decode(self, reply: Reply, batch: int) -> Tensor | PartialAnswers:
        if str(reply.status) in self._no_class:
            return self._reader.read([None] * batch)
        return self._reader.read(self._values(parse(reply.body), batch))

    def refused(self, reason: str, batch: int) -> PartialAnswers | None:
        return PartialAnswers(None, (NO_ANSWER,) * batch) if reason in self._no_class else None

    def most_bytes(self, batch: int) -> int:
        classes = self._model.classes
        # a character of a name in JSON may take six bytes, a rare one twelve
        name = 0 if self._kind in ("scores", "number") else 12 * max(map(len, classes.names))
        return ROOM + batch * len(classes) * (NUMBER + name)

    def _values(self, document: object, batch: int) -> list[object]:
        """Each image's part of an answer. Unusable, with the service's words, if there is none."""
        error = self._error.first(document)
        if isinstance(error, str) and error.strip():
            raise Unusable(f"expected an answer, got the error {excerpt(error)}", "an error")
        if document is None:
            raise Unusable("expected an answer, got null", "no answer")
        try:
            values = self._path.values(document)
        except Unusable as error:
            if batch == 1 and self._optional:
                return [None]
            cure = "; if it knows no class for such an image, say answer.optional: true"
            problem = error.message + cure if batch == 1 else error.message
            raise Unusable(problem, error.reason) from None
        if batch == 1 and not values:
            return [None]
        if len(values) != batch:
            raise Unusable(
                f"answer.path: {self._path.text!r} found {len(values)} answers to {batch} images",
                "wrong shape",
            )
        return values


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


ENCODINGS: dict[str, Callable[[Array], Any]] = {
    "png": png,
    "png_base64": lambda x: _text(png(x)),
    "data_url": lambda x: f"data:image/png;base64,{_text(png(x))}",
    "raw": lambda x: x.tobytes(),
    "raw_base64": lambda x: _text(x.tobytes()),
    "list": numbers,
}
"""From the numbers of an image to what goes into a request."""


def encode_images(images_BCHW: Tensor, form: ImageForm, spec: ImageSpec) -> list[Any]:
    """Each image as bytes, as text or as nested lists."""
    x_BCHW = (
        spec.encode(images_BCHW).numpy()
        if form.eight_bit
        else _pixels(images_BCHW, form.scale, spec)
    )
    x = x_BCHW if form.layout == "nchw" and not form.picture else x_BCHW.transpose(0, 2, 3, 1)
    encode = ENCODINGS[form.encoding]
    return [encode(image.reshape(-1) if form.flat else image) for image in x]


def _pixels(images_BCHW: Tensor, scale: tuple[float, float] | None, spec: ImageSpec) -> Array:
    """The pixels as little-endian float32, moved from the teacher's bounds to ``scale``."""
    x_BCHW = images_BCHW.numpy()
    if scale is None or scale == spec.bounds:
        return x_BCHW.astype("<f4")
    (low, high) = spec.bounds
    (start, end) = scale
    share = (x_BCHW.astype(np.float64) - low) / (high - low)
    if spec.levels is not None:  # so that 255 * (i / 255) is the whole number i
        share = np.rint(share * (spec.levels - 1)) / (spec.levels - 1)
    return (start + share * (end - start)).astype("<f4")


def multipart_body(
    name: str, filename: str, picture: bool, fields: Mapping[str, str], images: Sequence[Any]
) -> tuple[bytes, dict[str, str]]:
    """A form (RFC 7578) with the fields, and each image as a file of the field ``name``; and its
    headers.
    """
    kind = "image/png" if picture else "application/octet-stream"
    parts = [(f'name="{key}"', "", value.encode()) for key, value in fields.items()]
    parts += [
        (f'name="{name}"; filename="{filename}"', f"Content-Type: {kind}\r\n", image)
        for image in images
    ]
    # no content holds its own digest
    boundary = hashlib.sha256(b"".join(content for *_, content in parts)).hexdigest()
    pieces = [
        f"--{boundary}\r\nContent-Disposition: form-data; {head}\r\n{more}\r\n".encode()
        + content
        + b"\r\n"
        for head, more, content in parts
    ]
    body = b"".join(pieces) + f"--{boundary}--\r\n".encode()
    return body, {
        "Content-Type": f"multipart/form-data; boundary={boundary}",
        "Accept": "application/json",
    }
