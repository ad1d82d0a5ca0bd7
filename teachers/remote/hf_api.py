"""A teacher in the style of Hugging Face's image classification: one picture in, a list of labels and scores out.

Written from the task's description ("Image Classification", API specification of Inference Providers): the picture's
bytes are the body, or base64 in JSON where parameters go along; the answer is ``[{"label": ..., "score": ...}, ...]``.
A model that is being loaded is refused with 503 and ``{"error": ..., "estimated_time": SECONDS}``.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dfme.config.settings import TeacherConfig
from dfme.errors import Refused, Unusable, UserError
from dfme.spec import ImageSpec, LabelMode
from dfme.teachers.remote.class_names import ClassNames, read_class_names
from dfme.teachers.remote.endpoint import Endpoint, Reply
from dfme.teachers.remote.json_bodies import HEADERS, NUMBER, ROOM, dump, native_mode, parse, settle, shown
from dfme.teachers.remote.options import HfApiOptions
from dfme.teachers.remote.outcomes import MAX_WAIT
from dfme.teachers.remote.pictures import eight_bit, png, require_picture
from dfme.teachers.remote.secrets import read_secrets
from dfme.teachers.remote.teacher import Adapter, Query, RemoteTeacher, request_policy_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_PICTURE = {"Content-Type": "image/png", "Accept": "application/json"}


def connect_hf_api(options: HfApiOptions, config: TeacherConfig, device: torch.device) -> RemoteTeacher:
    """The classifier at ``options.url``, one 8-bit picture a request; nothing is asked here.

    UserError for class names that cannot be read or do not fit the flags, and for images that no PNG can be.
    """
    names = read_class_names(options.classes, "--teacher.classes")
    spec = _spec(config)
    if config.num_classes not in (None, len(names)):
        got = f"got {config.num_classes}, but --teacher.classes has {len(names)} names"
        raise UserError(f"--teacher.num-classes: {got}")
    secrets = read_secrets(vars(options), options.url)
    adapter = HfApiAdapter(names, spec, _mode(options.top_k, len(names), config), options.top_k)
    endpoint = Endpoint(options, options.url, secrets)
    teacher = HfApiTeacher(endpoint, adapter, spec, len(names), adapter.mode, 1, request_policy_of(options))
    teacher.class_names = names.names
    return teacher


def _spec(config: TeacherConfig) -> ImageSpec:
    if config.shape is None:
        raise UserError("--teacher.shape: the service does not tell the shape of an image; give it as C,H,W")
    require_picture(config.shape)
    if config.levels not in (None, 256):
        raise UserError(f"--teacher.levels: got {config.levels}, but pictures are sent with 256")
    return ImageSpec(config.shape, config.bounds or (0.0, 1.0), 256)


def _mode(top_k: int, classes: int, config: TeacherConfig) -> LabelMode:
    """What the answers reveal: what the flags say, but no more than the labels that are asked for."""
    mode = native_mode(LabelMode.parse(config.label_mode) if config.label_mode else None)
    if 0 < top_k < classes and (mode.kind == "probabilities" or (mode.k or 0) > top_k):
        return LabelMode("top_k", k=top_k)
    return mode


class HfApiTeacher(RemoteTeacher):
    """A remote teacher whose service says in the body of a refusal how long a model takes to load."""

    def ask(self, images_BCHW: Tensor, key: str) -> Tensor:
        try:
            return super().ask(images_BCHW, key)
        except Refused as refused:
            if refused.retry and refused.retry_after is None:
                refused.retry_after = estimated_time(refused.body)
            raise


def estimated_time(body: bytes) -> float | None:
    """Seconds that a model takes to load, at most a day, by the body of a refusal; None where it does not say."""
    try:
        document = parse(body)
    except Unusable:
        return None
    seconds = document.get("estimated_time") if isinstance(document, dict) else None
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 <= seconds < math.inf:
        return None
    return float(min(seconds, MAX_WAIT))


@dataclass(frozen=True)
class HfApiAdapter(Adapter):
    """Writes pictures into requests, reads lists of labels and scores. ``top_k``: labels to ask for; 0: not said."""

    names: ClassNames
    spec: ImageSpec
    mode: LabelMode
    top_k: int

    def encode(self, images_BCHW: Tensor) -> Query:
        """The one image as a PNG: the body itself, or base64 beside the parameters."""
        (x_HWC,) = eight_bit(images_BCHW, self.spec.bounds)
        picture = png(x_HWC)
        if not self.top_k:
            return Query("", picture, dict(_PICTURE))
        document = {"inputs": base64.b64encode(picture).decode(), "parameters": {"top_k": self.top_k}}
        return Query("", dump(document), dict(HEADERS))

    def decode(self, reply: Reply, batch: int) -> Tensor:
        return settle(np.array([self.names.row(_pairs(parse(reply.body)))]), self.mode)

    def most_bytes(self, batch: int) -> int:
        return ROOM + len(self.names) * (NUMBER + self.names.longest)


def _pairs(document: object) -> Iterator[tuple[object, object]]:
    """The labels with their scores."""
    if isinstance(document, list) and len(document) == 1 and isinstance(document[0], list):
        document = document[0]  # some services answer as if to several images
    if not isinstance(document, list):
        what = shown(document.get("error", document)) if isinstance(document, dict) else shown(document)
        failed = isinstance(document, dict) and "error" in document
        raise Unusable(f"expected a list of labels and scores, got {what}", "an error" if failed else "no answer")
    for entry in document:
        if not isinstance(entry, dict) or "label" not in entry or "score" not in entry:
            raise Unusable(f"expected a label and a score in each entry, got {shown(entry)}", "no answer")
        yield entry["label"], entry["score"]
