"""A teacher behind any HTTP API with JSON answers that a YAML file describes (``description`` is its reference)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dfme.config.settings import TeacherConfig
from dfme.errors import Unusable, UserError
from teachers.remote.endpoint import Endpoint, Reply
from teachers.remote.json_api.adapter_file import Facts, JsonApi, load_adapter, secrets_of, settle_facts
from teachers.remote.json_api.description import AnswerForm
from teachers.remote.json_api.requests import bytes_body, encode_images, json_body, multipart_body
from teachers.remote.json_api.template import JsonPath, environment_names, with_environment
from teachers.remote.json_bodies import NUMBER, ROOM, labels, parse, settle, shown, table
from teachers.remote.options import JsonOptions
from teachers.remote.secrets import Secrets
from teachers.remote.teacher import Query, RemoteTeacher, request_policy_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from teachers.remote.json_api.description import ImageForm

Body = Callable[[Sequence[Any]], tuple[bytes, dict[str, str]]]


def connect_json(options: JsonOptions, config: TeacherConfig, device: torch.device) -> RemoteTeacher:
    """The API that ``options.adapter`` describes; nothing is asked here. UserError for whatever would stop a run."""
    api = load_adapter(options.adapter)
    url = options.url or api.description.url
    if not url:
        raise UserError(f"--teacher.url: neither the flag nor {options.adapter} says where the service is")
    facts = settle_facts(api, config)
    names = [*environment_names(url), *secrets_of(api.description, api.template), options.api_key_env]
    secrets = Secrets.from_environment(dict.fromkeys(names))
    endpoint = Endpoint(options, url, secrets, api.description.headers)
    adapter = JsonAdapter(api.description.image, body_of(api, secrets), api.description.answer, facts)
    batch = min(config.max_batch or api.description.batch, api.description.batch)
    return RemoteTeacher(
        endpoint, adapter, facts.spec, len(facts.classes), facts.mode, batch, request_policy_of(options)
    )


def body_of(api: JsonApi, secrets: Secrets) -> Body:
    """What makes a body of encoded images, with the secrets in their places."""
    request = api.description.request
    if request.bytes is not None:
        return partial(bytes_body, request.bytes)
    if request.multipart is not None:
        fields = {name: secrets.fill(value) for name, value in request.fields.items()}
        return partial(multipart_body, request.multipart, request.filename, api.description.image.picture, fields)
    return partial(json_body, with_environment(api.template, secrets.fill))


class JsonAdapter:
    """Writes requests as ``form`` and ``body`` say, reads answers as ``answer`` and ``facts`` say."""

    def __init__(self, form: ImageForm, body: Body, answer: AnswerForm, facts: Facts) -> None:
        self._form = form
        self._body = body
        self._facts = facts
        self._path, self._error = JsonPath.read(answer.path), JsonPath.read(answer.error)
        label, score = JsonPath.read(answer.label), JsonPath.read(answer.score)
        self._kind = answer.form
        self._pair = lambda entry: (label.values(entry)[0], score.values(entry)[0])

    def encode(self, images_BCHW: Tensor) -> Query:
        body, headers = self._body(encode_images(images_BCHW, self._form, self._facts.spec))
        return Query("", body, headers)

    def decode(self, reply: Reply, batch: int) -> Tensor:
        values, classes = self._values(parse(reply.body), batch), self._facts.classes
        if self._kind == "number":
            return labels(values, len(classes))
        if self._kind == "name":
            return labels([classes.index(value) for value in values], len(classes))
        if self._kind == "scores":
            return settle(table(values, batch, len(classes)), self._facts.mode)
        rows = [classes.row(self._pairs(value)) for value in values]
        return settle(np.array(rows).reshape(batch, len(classes)), self._facts.mode)

    def most_bytes(self, batch: int) -> int:
        name = 0 if self._kind in ("scores", "number") else self._facts.classes.longest
        return ROOM + batch * len(self._facts.classes) * (NUMBER + name)

    def batch_limit(self, refused: bytes) -> int | Literal[False] | None:
        return False

    def _values(self, document: object, batch: int) -> list[object]:
        """The part of an answer that belongs to each image. Unusable, with the service's own words, if it has none."""
        error = self._error.first(document)
        if isinstance(error, str) and error.strip():
            raise Unusable(f"expected an answer, got the error {shown(error)}", "an error")
        values = self._path.values(document)
        if len(values) != batch:
            raise Unusable(f"expected answers to {batch} images, got {len(values)}", "wrong shape")
        return values

    def _pairs(self, value: object) -> Iterable[tuple[object, object]]:
        """Names and scores of one image."""
        expected = dict if self._kind == "mapping" else list
        if not isinstance(value, expected):
            what = "an object" if expected is dict else "a list of objects"
            raise Unusable(f"expected {what} with the scores of an image, got {shown(value)}", "no answer")
        return value.items() if isinstance(value, dict) else map(self._pair, value)
