"""A teacher behind the Open Inference Protocol v2: KServe, Triton, MLServer, ``run.py serve``.

Source: https://github.com/kserve/open-inference-protocol, with the extensions for binary tensor data and
classification as Triton describes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dfme.config.settings import TeacherConfig
from dfme.errors import BatchTooLarge, Refused, Unusable
from teachers.open_inference.answers import batch_limit, read_classes, read_scores
from teachers.open_inference.message import read_header_length, unpack
from teachers.open_inference.metadata import V2Model, read_model
from teachers.open_inference.requests import RequestWriter
from teachers.open_inference.tensors import short
from teachers.remote.endpoint import Endpoint, Reply
from teachers.remote.options import V2Options
from teachers.remote.secrets import Secrets
from teachers.remote.teacher import Query, RemoteTeacher, request_policy_of

NOT_UNDERSTOOD = ("400", "415", "422")
"""Statuses of a server that cannot read a request."""

SPARE = 1_000_000
"""Bytes of an answer besides the numbers that are asked for: its JSON, and outputs that nobody asked for."""

NUMBER = 64
CLASS = 1_024
"""Most bytes of a number, and of a class as text, in any encoding."""


def connect_v2(options: V2Options, config: TeacherConfig, device: torch.device) -> RemoteTeacher:
    """The model behind ``options``, after questions for its metadata, which serve no image.

    UserError where it is not ready, and where flags and metadata leave something open or contradict each other.
    """
    secrets = Secrets.from_environment([options.api_key_env])
    endpoint = Endpoint(options, options.url, secrets)
    try:
        return V2Teacher(endpoint, read_model(endpoint, options, config), options, config)
    except BaseException:
        endpoint.close()
        raise


class V2Teacher(RemoteTeacher):
    """A v2 model. It starts with binary tensors where the server announces them, or the user insists.

    A server that announces them, and then cannot read the first, is asked in JSON from there on.
    """

    def __init__(self, endpoint: Endpoint, model: V2Model, options: V2Options, config: TeacherConfig) -> None:
        self._model = model
        self._writer = RequestWriter(model, config)
        self._binary = model.binary if options.encoding == "auto" else options.encoding == "binary"
        self._may_fall_back = options.encoding == "auto"
        adapter, limits = V2Adapter(model, self._writer, self._binary, None), request_policy_of(options)
        super().__init__(endpoint, adapter, model.spec, model.num_classes, model.label_mode, model.max_batch, limits)

    def ask(self, images_BCHW: Tensor, key: str) -> Tensor:
        """As in RemoteTeacher; ``key`` is the request's id as well, and an answer with another id is Unusable."""
        binary = self._binary
        try:
            answers = self._attempt(V2Adapter(self._model, self._writer, binary, key), images_BCHW, key)
        except BatchTooLarge:
            raise
        except Refused as refused:
            if not (binary and self._may_fall_back and refused.reason in NOT_UNDERSTOOD):
                raise
            self._binary = False
            raise Refused(f"{refused}; from here on in JSON instead of binary", refused.reason, retry=True) from None
        if binary:
            self._may_fall_back = False
        return answers


@dataclass(frozen=True)
class V2Adapter:
    """A model's language, with tensors ``binary`` or in JSON; ``key`` is the request's id, None: of any request."""

    model: V2Model
    writer: RequestWriter
    binary: bool
    key: str | None

    def encode(self, images_BCHW: Tensor) -> Query:
        return self.writer.write(images_BCHW, self.key or "", self.binary)

    def decode(self, reply: Reply, batch: int) -> Tensor:
        try:
            header, tensors = unpack(reply.body, read_header_length(reply.headers), "outputs", len(reply.body))
        except ValueError as error:
            raise Unusable(f"the answer: {error}", "malformed") from None
        model = self.model
        for name, asked in (("model_name", model.name), ("model_version", model.version), ("id", self.key)):
            came = header.get(name)
            if asked is not None and came not in (None, "", asked):
                raise Unusable(f"the answer: expected {name} {asked!r}, got {short(came)}", "another's answer")
        outputs = [tensor for tensor in tensors if model.output.name in (None, tensor.name)]
        if len(outputs) != 1:
            came = short([tensor.name for tensor in tensors])
            raise Unusable(
                f"the answer: expected the output {model.output.name or '(only one)'}, got {came}", "wrong names"
            )
        if model.classification:
            return read_classes(outputs[0], batch, model.num_classes, model.classification, model.label_mode)
        return read_scores(outputs[0], batch, model.num_classes, model.label_mode)

    def most_bytes(self, batch: int) -> int:
        return SPARE + batch * (self.model.num_classes * NUMBER + self.model.classification * CLASS)

    def batch_limit(self, refused: bytes) -> int | Literal[False] | None:
        return batch_limit(refused)
