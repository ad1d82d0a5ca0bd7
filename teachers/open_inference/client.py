"""A teacher behind the Open Inference Protocol v2: KServe, Triton, MLServer, ``run.py serve``.

Source: https://github.com/kserve/open-inference-protocol, with the extension for binary tensor
data.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from dfme.answers.reading import PartialAnswers
from dfme.config.settings import TeacherConfig
from dfme.config.values import narrowed
from dfme.errors import BatchTooLarge, Refused, Text, Unusable, UserError, say
from dfme.spec import LabelMode, RequestPolicy
from dfme.teachers.arrays import Array, as_float32
from dfme.teachers.json_text import HEADER_LENGTH
from dfme.teachers.local.pytorch import Normalise
from dfme.teachers.open_inference.message import (
    DATATYPES,
    NamedTensor,
    datatype_of,
    pack,
    read_header_length,
    short,
    unpack,
)
from dfme.teachers.open_inference.metadata import V2Model, read_model
from dfme.teachers.options import V2Options
from dfme.teachers.remote.endpoint import Endpoint, Reply
from dfme.teachers.remote.json_bodies import NUMBER, ROOM, two_columns
from dfme.teachers.remote.secrets import read_secrets
from dfme.teachers.remote.teacher import Adapter, Query, RemoteTeacher

UNREADABLE_STATUSES = ("400", "415", "422")  # statuses of a server that cannot read a request


def connect_v2(options: V2Options, config: TeacherConfig, device: torch.device) -> RemoteTeacher:
    """The model behind ``options``, after questions for its metadata, which serve no image.

    UserError where it is not ready, and where flags and metadata leave something open or contradict
    each other.
    """
    endpoint = Endpoint(options, options.url, read_secrets(vars(options), options.url))
    try:
        return V2Teacher(endpoint, read_model(endpoint, options, config), options, config)
    except BaseException:
        endpoint.close()
        raise


class V2Teacher(RemoteTeacher):
    """A v2 model. It starts with binary tensors where the server announces them, or the user
    insists.

    A server that announces them, and then cannot read the first, is asked in JSON from there on.
    UserError for a normalisation of bytes.
    """

    def __init__(
        self, endpoint: Endpoint, model: V2Model, options: V2Options, config: TeacherConfig
    ) -> None:
        if config.mean is not None and model.input.datatype == "UINT8":
            raise UserError(
                say(
                    "{teacher.mean} and {teacher.std}: the input {} takes bytes; leave them out",
                    model.input,
                )
            )
        binary = model.binary if options.encoding == "auto" else options.encoding == "binary"
        self._may_fall_back = options.encoding == "auto"
        self._v2 = V2Adapter(model, Normalise(config.mean, config.std, model.spec.shape[0]), binary)
        super().__init__(
            endpoint,
            self._v2,
            model.spec,
            model.num_classes,
            model.label_mode,
            model.max_batch,
            narrowed(RequestPolicy, options),
        )

    def ask(self, images_BCHW: Tensor, key: str) -> Tensor | PartialAnswers:
        """Like RemoteTeacher's; ``key`` is also the request's id, and another id is Unusable."""
        adapter = replace(self._v2, key=key)
        try:
            answers = self._attempt(adapter, images_BCHW, key)
        except BatchTooLarge:
            raise
        except Refused as refused:
            if self._v2.model.layout.batch_axis == "open" and refused.reason in UNREADABLE_STATUSES:
                raise self._without_axis(refused, len(images_BCHW)) from None
            if not (
                adapter.binary and self._may_fall_back and refused.reason in UNREADABLE_STATUSES
            ):
                raise
            self._v2 = replace(self._v2, binary=False)
            raise Refused(
                f"{refused}; from here on in JSON instead of binary", refused.reason, retry=True
            ) from None
        if adapter.binary:
            self._may_fall_back = False
        if adapter.model.layout.batch_axis == "open":
            self._v2 = self._v2.with_batch_axis("yes")
        return answers

    def _without_axis(self, refused: Refused, batch: int) -> Refused:
        """Send images without a batch axis from here on, one by one; how the refused ones are sent
        again.
        """
        self._v2 = self._v2.with_batch_axis("no")
        text = f"{refused}; from here on one by one, without an axis for the batch"
        return BatchTooLarge(text, 1) if batch > 1 else Refused(text, refused.reason, retry=True)


@dataclass(frozen=True)
class V2Adapter(Adapter):
    """A model's language, tensors ``binary`` or JSON; ``key``: the request's id."""

    model: V2Model
    normalise: Normalise
    binary: bool
    key: str = ""

    def with_batch_axis(self, axis: Literal["yes", "no"]) -> V2Adapter:
        """The same with requests that have an axis for the batch, or none."""
        return replace(
            self, model=replace(self.model, layout=replace(self.model.layout, batch_axis=axis))
        )

    def encode(self, images_BCHW: Tensor) -> Query:
        """The request for images float32 on the CPU; a binary body is their only copy."""
        model = self.model
        header: dict[str, Any] = {"id": self.key}
        wish: dict[str, Any] = {}
        if self.binary:
            header["parameters"] = {"binary_data_output": True}
            wish = {"parameters": {"binary_data": True}}
        if model.output.name is not None:
            header["outputs"] = [{"name": model.output.name, **wish}]
        pixels = NamedTensor(str(model.input.name), self._pixels(images_BCHW))
        body, length = pack(header, [pixels], "inputs", self.binary)
        binary = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(length)}
        headers = binary if self.binary else {"Content-Type": "application/json"}
        return Query(f"{model.path}/infer", body, headers)

    def _pixels(self, images_BCHW: Tensor) -> Array:
        model = self.model
        if model.input.datatype == "UINT8":
            array: Array = model.spec.encode(images_BCHW).numpy()
        else:
            array = (
                self.normalise(images_BCHW)
                .numpy()
                .astype(DATATYPES[model.input.datatype], copy=False)
            )
        if model.layout.order == "nhwc":
            array = array.transpose(0, 2, 3, 1)
        axis = () if model.layout.batch_axis == "no" else (len(array),)
        return array.reshape(*axis, *model.layout.sent)

    def decode(self, reply: Reply, batch: int) -> Tensor:
        try:
            header, tensors = unpack(
                reply.body, read_header_length(reply.headers), "outputs", len(reply.body)
            )
        except ValueError as error:
            raise Unusable(f"the answer: {error}", "malformed") from None
        model = self.model
        for name, expected in (
            ("model_name", model.name),
            ("model_version", model.version),
            ("id", self.key),
        ):
            came = header.get(name)
            if expected and came not in (None, "", expected):
                raise Unusable(
                    f"the answer: expected {name} {expected!r}, got {short(came)}",
                    "another's answer",
                )
        outputs = [tensor for tensor in tensors if model.output.name in (None, tensor.name)]
        if len(outputs) != 1:
            came = short([tensor.name for tensor in tensors])
            raise Unusable(
                f"the answer: expected the output {model.output.name or '(only one)'}, got {came}",
                "wrong names",
            )
        return read_scores(outputs[0], batch, model.num_classes, model.label_mode)

    def most_bytes(self, batch: int) -> int:
        return ROOM + batch * self.model.num_classes * NUMBER

    @staticmethod
    def batch_limit(refused: bytes) -> int | Literal[False] | None:
        """Batch limit in a server's words; None: fewer; False: another complaint."""
        for pattern in LIMITS:
            if match := pattern.search(refused):
                return int(match[1])
        shapes = SHAPES.search(refused)
        if shapes and shapes[2] == shapes[4] and len(shapes[1]) < 9 and len(shapes[3]) < 9:
            return int(shapes[1])
        return None if TOO_LARGE.search(refused) else False


LIMITS = tuple(
    re.compile(pattern, re.IGNORECASE | re.DOTALL)
    for pattern in (
        rb"batch[- _]?size must be <= ?(\d{1,9})",  # Triton
        rb"batch.{0,80}at most (\d{1,9})",  # run.py serve
        rb"max(?:imum)?[- _](?:allowed )?batch[- _]?size\D{0,20}(\d{1,9})",
        rb"index: 0 Got: \d+ Expected: (\d{1,9})",  # ONNX Runtime, a model with a fixed batch axis
    )
)
SHAPES = re.compile(rb"Expected \[(\d+),([-\d, ]+)\], got \[(\d+),([-\d, ]+)\]", re.IGNORECASE)
"""Triton, of a model with a fixed batch axis."""

TOO_LARGE = re.compile(
    rb"batch.{0,40}(too (large|big|many)|exceed)|too many images", re.IGNORECASE | re.DOTALL
)


def read_scores(tensor: NamedTensor, batch: int, classes: int, mode: LabelMode) -> Tensor:
    """Scores (B, K) float32, or labels (B,) int64 under the label mode label; Unusable for anything
    else.

    Axes of size 1 are ignored; a lone score is that of the second of two classes.
    """
    array = tensor.array
    kind = array.dtype.kind
    # an answer to one image may lack the axis of the batch
    without_axis = batch == 1 and array.shape[:1] != (1,)
    images = (1,) if without_axis else array.shape[:1]
    sizes = tuple(size for size in array.shape[0 if without_axis else 1 :] if size != 1)
    if mode.kind == "label":
        if (images, sizes) != ((batch,), ()) or kind not in "iu":
            raise _unusable(tensor, f"labels [{batch}] as whole numbers")
        return torch.from_numpy(array.reshape(batch).astype(np.int64))
    if (images, sizes) == ((batch,), ()) and kind == "f" and classes == 2:
        try:
            scores = two_columns(array.reshape(batch).astype(np.float64), mode.kind == "logits")
        except Unusable as error:
            raise Unusable(
                say("output {}: {}", short(tensor.name), error.message), error.reason
            ) from None
        return torch.from_numpy(as_float32(scores))
    if (images, sizes) != ((batch,), (classes,)) or kind not in "iuf":
        hint: Text = ""
        if kind in "iu":
            hint = say("; if these are labels, say so with {teacher.label_mode:label}")
        elif sizes == ():
            hint = say("; a binary model's one score wants {teacher.num_classes:2}")
        raise _unusable(tensor, f"scores [{batch}, {classes}]", hint)
    return torch.from_numpy(as_float32(array.reshape(batch, classes)))


def _unusable(tensor: NamedTensor, expected: str, hint: Text = "") -> Unusable:
    text = say(
        "output {}: expected {}, got {}{}",
        short(tensor.name),
        expected,
        f"{datatype_of(tensor.array)} {list(tensor.array.shape)}",
        hint,
    )
    return Unusable(text, "wrong shape")
