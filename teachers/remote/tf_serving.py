"""A teacher behind TensorFlow Serving's REST interface.

Written from its description ("RESTful API", TensorFlow Serving): status and metadata by GET, ``:predict`` by POST,
in rows (``instances`` and ``predictions``), or in columns (``inputs`` and ``outputs``) where an input is named.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote

import torch
from torch import Tensor

from dfme.config.settings import TeacherConfig
from dfme.errors import Unusable, UserError
from dfme.spec import ImageSpec, LabelMode
from dfme.teachers.arrays import as_float32
from dfme.teachers.label_modes import two_classes
from dfme.teachers.remote import json_bodies
from dfme.teachers.remote.endpoint import Endpoint, Reply
from dfme.teachers.remote.json_bodies import shown
from dfme.teachers.remote.options import TfServingOptions
from dfme.teachers.remote.outcomes import quoted
from dfme.teachers.remote.pictures import eight_bit
from dfme.teachers.remote.secrets import Secrets, read_secrets
from dfme.teachers.remote.teacher import Query, RemoteTeacher, answered_mode, request_policy_of
from dfme.teachers.remote.tf_signature import (
    INTEGERS,
    Signature,
    TensorInfo,
    image_axes,
    most_images,
    number_of_classes,
    pick,
    read_signature,
)

_LIMIT = re.compile(
    rb"larger than (?:the )?max(?:imum)?(?: input)?[ _]batch[ _]size[^0-9]{0,3}(\d{1,9})", re.IGNORECASE
)
_IF_OPEN = 1_000  # numbers for each image that an output whose size the model leaves open is allowed
_MAX_BYTES = 2**28  # whatever a model says of itself


def connect_tf_serving(options: TfServingOptions, config: TeacherConfig, device: torch.device) -> RemoteTeacher:
    """The model behind ``options``, after questions for its status and its signature, which serve no image.

    UserError where the signature leaves open what no flag gives, contradicts a flag, or takes what is no image.
    """
    secrets = read_secrets(vars(options), options.url)
    endpoint = Endpoint(options, options.url, secrets)
    try:
        path = f"/v1/models/{quote(options.model, safe='')}"
        path += f"/versions/{quote(options.version, safe='')}" if options.version else ""
        _require_available(endpoint, path, secrets)
        metadata = json_bodies.get_json(endpoint, f"{path}/metadata", "the model's metadata")
        signature = read_signature(metadata, options.signature, f"{endpoint.url}{path}/metadata")
        return _teacher(endpoint, path, signature, options, config)
    except BaseException:
        endpoint.close()
        raise


def _require_available(endpoint: Endpoint, path: str, secrets: Secrets) -> None:
    status = json_bodies.get_json(endpoint, path, "the model's status")
    versions = status.get("model_version_status") if isinstance(status, dict) else None
    known = versions if isinstance(versions, list) else []
    states = [str(version.get("state")) for version in known if isinstance(version, dict)]
    if "AVAILABLE" not in states:
        got = quoted(", ".join(states), secrets)
        raise UserError(
            f"{endpoint.url}{path}: expected a model that is AVAILABLE, got none{got}; is it still loading?"
        )


def _teacher(
    endpoint: Endpoint, path: str, signature: Signature, options: TfServingOptions, config: TeacherConfig
) -> RemoteTeacher:
    source = pick(signature.inputs, options.input, "--teacher.input")
    output = pick(signature.outputs, options.output, "--teacher.output")
    shape, axes = image_axes(source, options.layout, config.shape)
    classes = number_of_classes(output, config)
    mode = LabelMode("label") if output.dtype in INTEGERS else answered_mode(config)
    limits = [limit for limit in (config.max_batch, most_images(source)) if limit]
    eight = source.dtype == "DT_UINT8"
    if eight and config.levels not in (None, 256):
        raise UserError(f"--teacher.levels: got {config.levels}, but input {source.name} takes bytes: 256")
    adapter = TfServingAdapter(
        path=f"{path}:predict",
        signature=options.signature,
        column=options.input,
        output=output.name,
        layout=options.layout,
        axes=axes,
        spec=ImageSpec(shape, config.bounds or (0.0, 1.0), 256 if eight else config.levels),
        bytes_in=eight,
        classes=classes,
        mode=mode,
        binary=output.axes is not None and output.axes[1:] == (1,),
        numbers_out=sum(_size(each) for each in signature.outputs.values()),
    )
    batch = min(limits, default=None)
    return RemoteTeacher(endpoint, adapter, adapter.spec, classes, mode, batch, request_policy_of(options))


def _size(output: TensorInfo) -> int:
    """Numbers that an output gives for one image."""
    return _IF_OPEN if output.axes is None else math.prod(size if size > 0 else _IF_OPEN for size in output.axes[1:])


@dataclass(frozen=True)
class TfServingAdapter:
    """Writes predict requests to one signature of a model, and reads its answers.

    ``column``: name of the input if the request is in columns. ``axes``: of one image as the model takes it.
    ``bytes_in``: pixels are whole numbers to 255. ``binary``: one score per image, that of the second of two
    classes. ``numbers_out``: numbers of all outputs for one image, since an answer in rows has them all.
    """

    path: str
    signature: str | None
    column: str | None
    output: str
    layout: Literal["nhwc", "nchw"]
    axes: tuple[int, ...]
    spec: ImageSpec
    bytes_in: bool
    classes: int
    mode: LabelMode
    binary: bool
    numbers_out: int

    def encode(self, images_BCHW: Tensor) -> Query:
        if self.bytes_in:
            x_BHWC = eight_bit(images_BCHW, self.spec.bounds)
            x = x_BHWC if self.layout == "nhwc" else x_BHWC.transpose(0, 3, 1, 2)
        else:
            x_BCHW = as_float32(images_BCHW.detach().cpu().numpy())
            x = x_BCHW.transpose(0, 2, 3, 1) if self.layout == "nhwc" else x_BCHW
        rows = json_bodies.numbers(x.reshape(len(x), *self.axes))
        document: dict[str, object] = {"signature_name": self.signature} if self.signature else {}
        document |= {"inputs": {self.column: rows}} if self.column else {"instances": rows}
        return Query(self.path, json_bodies.dump(document), dict(json_bodies.HEADERS))

    def decode(self, reply: Reply, batch: int) -> Tensor:
        value = self._value(json_bodies.parse(reply.body), batch)
        if self.mode.kind == "label":
            return json_bodies.labels(json_bodies.listed(value, batch), self.classes)
        scores_BK = json_bodies.table(value, batch, 1 if self.binary else self.classes)
        scores = torch.from_numpy(as_float32(scores_BK))
        return two_classes(scores, self.mode) if self.binary else scores

    def most_bytes(self, batch: int) -> int:
        return min(json_bodies.ROOM + batch * json_bodies.NUMBER * max(self.numbers_out, self.classes), _MAX_BYTES)

    def batch_limit(self, refused: bytes) -> int | Literal[False] | None:
        """The limit in the words of the server: ``Task size 65 is larger than maximum input batch size 64``."""
        found = _LIMIT.search(refused)
        return int(found[1]) or None if found else False

    def _value(self, document: object, batch: int) -> object:
        """The output's part of an answer: alone, or by name in columns or in each row."""
        if isinstance(document, dict) and "predictions" in document:
            value = document["predictions"]
            if isinstance(value, list) and any(isinstance(row, dict) for row in value):
                return [self._named(row) for row in json_bodies.listed(value, batch)]
        elif isinstance(document, dict) and "outputs" in document:
            value = document["outputs"]
        else:
            what = shown(document.get("error")) if isinstance(document, dict) else shown(document)
            reason = "an error" if isinstance(document, dict) and "error" in document else "no answer"
            raise Unusable(f"expected predictions or outputs in the answer, got {what}", reason)
        return self._named(value) if isinstance(value, dict) else value

    def _named(self, value: object) -> object:
        if not isinstance(value, dict) or self.output not in value:
            raise Unusable(f"expected the output {self.output} in the answer, got {shown(value)}", "no answer")
        return value[self.output]
