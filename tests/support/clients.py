"""What tests ask a service with: an endpoint, an adapter that reads one body."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import torch
from damage import refused
from protocols import V2
from service import Reply as Said
from service import Service
from torch import Tensor

from dfme.config.settings import TeacherConfig
from dfme.errors import Refused, Unusable
from dfme.teachers.open_inference.client import connect_v2
from dfme.teachers.options import ServiceOptions, V2Options
from dfme.teachers.remote.endpoint import Endpoint, Reply
from dfme.teachers.remote.secrets import Secrets
from dfme.teachers.remote.teacher import Adapter, RemoteTeacher

KEY = "s3cr3t/k+y-of-mine"
"""What DFME_KEY holds for every endpoint."""

PATIENT = 30.0
"""Seconds that nothing here should take."""

SHAPE, K = (3, 4, 5), 3
"""Images and classes of the JSON API that ``described`` describes."""


def question(images: Tensor) -> dict[str, Any]:
    """Images as the inference protocol v2 has them in JSON."""
    data = images.flatten().tolist()
    return {
        "inputs": [{"name": "image", "datatype": "FP32", "shape": [*images.shape], "data": data}]
    }


def endpoint(url: str, timeout: float = PATIENT, **options: Any) -> closing[Endpoint]:
    """An endpoint that knows one secret, DFME_KEY; closed at the end of the block."""
    given = ServiceOptions(url=url, timeout=timeout, **options)
    return closing(Endpoint(given, url, Secrets({"DFME_KEY": KEY})))


def post(
    url: str, path: str = "/ask", body: bytes = b"question", most: int = 1000, **options: Any
) -> Reply:
    """The answer to one post."""
    with endpoint(url, **options) as service:
        return service.post(path, body, {"Idempotency-Key": "k1"}, most)


def get(url: str, path: str, most: int = 1000) -> Reply:
    """The answer to one question before the run."""
    with endpoint(url) as service:
        return service.get(path, most)


def post_once(what: Said, **options: Any) -> Reply:
    """The answer to one post to a service that answers so."""
    with Service(what) as service:
        return post(service.url, **options)


def failed(
    what: Said, words: str = "", kind: type[Exception] = Refused, tls: Any = None, **options: Any
) -> tuple[Any, Service]:
    """How a post to a service that answers so fails, and the service."""
    with Service(what, tls) as service:
        return refused(words, post, service.url, error=kind, **options), service


def described(**changes: Any) -> dict[str, Any]:
    """A description that works, with changes by dotted key; None takes a key away."""
    paper: dict[str, Any] = {
        "image": {"encoding": "png_base64"},
        "request": {"json": {"image": "${image}"}},
        "answer": {"path": "scores"},
        "teacher": {"shape": list(SHAPE), "num_classes": K},
    }
    for key, value in changes.items():
        *sections, leaf = key.split("__")
        place = paper
        for section in sections:
            place = place.setdefault(section, {})
        place[leaf] = value
        if value is None:
            del place[leaf]
    return paper


def answer_or_unusable(adapter: Adapter, body: bytes, batch: int) -> Tensor | None:
    """What an adapter reads in a body; None if it calls it unusable."""
    try:
        return adapter.decode(Reply(200, {}, body), batch)
    except Unusable as error:
        words = str(error)
    assert "\n" not in words
    assert words.isprintable()
    assert len(words) < 500
    return None


IMAGES = torch.arange(24).reshape(2, 3, 2, 2).float() / 32  # exact in FP16 too
GREY = IMAGES[:, :1].contiguous()


@contextmanager
def v2_teacher(
    script: V2, config: dict[str, Any] | None = None, **options: Any
) -> Iterator[RemoteTeacher]:
    """A client of the script's model."""
    with Service(script) as service:
        given = V2Options(url=service.url, model="m", **options)
        made = connect_v2(given, TeacherConfig(**config or {}), torch.device("cpu"))
        try:
            yield made
        finally:
            made.close()
