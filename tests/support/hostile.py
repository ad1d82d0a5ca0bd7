"""A service that does to its clients whatever real services do, with a model of arithmetic.

In a thread (``with Hostile({3: "status:429/0"}) as server``) or as a process, whose meter is a
file::

    python tests/support/hostile.py PORT served.jsonl slow:0.003

``plan`` says, for the number of a question (from 1, in the order in which their heads came), what
is done to it: a name of ``FAULTS``, with ``:argument`` for those that take one; nothing: it is
answered truly.
"""

import io
import json
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from faults import FAULTS
from protocols import (
    CLASSES,
    LENGTH,
    PIXELS,
    SHAPE,
    V2,
    Asked,
    Packed,
    code,
    packed,
    read,
    tensor,
    truth,
)
from service import Reply, Request, Service, Step, http, steps

NAMES = [f"class {number}" for number in range(CLASSES)]


@dataclass(frozen=True)
class Dialect:
    """``options`` are those of the teacher, besides its URL.

    ``only``: names of faults that are words of this language alone.
    """

    kind: str
    path: str
    pages: Callable[[dict[str, object]], Callable[[Request], Reply]]
    read: Callable[[Request], Asked]
    packed: Callable[..., Packed]
    options: dict[str, Any]
    config: dict[str, Any]
    only: frozenset[str] = frozenset()


def _v2_pages(pages: dict[str, object]) -> V2:
    image, scores = tensor("x", "FP32", [-1, *SHAPE]), tensor("y", "FP32", [-1, CLASSES])
    return V2([image], [scores], ["binary_tensor_data"], pages=pages)


def _v2_read(request: Request) -> Asked:
    asked = read(request)
    if asked.message["inputs"][0]["name"] != "x":
        raise ValueError(f"{asked.message['inputs']}")
    return asked


def _no_pages(pages: dict[str, object]) -> Callable[[Request], Reply]:
    return lambda request: http(b"", 404)


def _rows_read(request: Request) -> Asked:
    pixels = np.array(request.json["instances"], np.float64).astype(np.float32)
    return Asked(request, {}, pixels.reshape(len(pixels), *SHAPE), False)


def _rows_packed(
    asked: Asked, array: np.ndarray, binary: bool | None = None, **changes: Any
) -> Packed:
    body = json.dumps({"predictions": array.astype(float).tolist()})
    return body.encode(), {"Content-Type": "application/json"}


def _picture_read(request: Request) -> Asked:
    from PIL import Image

    pixels = np.asarray(Image.open(io.BytesIO(request.body))).astype(np.float32) / np.float32(255)
    return Asked(request, {}, pixels.reshape(1, *SHAPE), False)


def _pairs_packed(
    asked: Asked, array: np.ndarray, binary: bool | None = None, **changes: Any
) -> Packed:
    names = [*NAMES, "one more"]
    pairs = [
        {"label": names[k], "score": float(score)} for row in array for k, score in enumerate(row)
    ]
    return json.dumps(pairs[::-1]).encode(), {"Content-Type": "application/json"}


WORDS_OF_V2 = frozenset({"other_name", "other_type", "short_header", "swapped", "no_outputs"})
V2_ = Dialect(
    "v2", "/v2/models/m/infer", _v2_pages, _v2_read, packed, {"model": "m"}, {}, WORDS_OF_V2
)
SHAPED: dict[str, Any] = {"shape": SHAPE, "num_classes": CLASSES}
TF = Dialect("tf-serving", "/", _no_pages, _rows_read, _rows_packed, {}, SHAPED)
NAMED: dict[str, Any] = {"classes": tuple(NAMES)}
HF = Dialect("hf-api", "/", _no_pages, _picture_read, _pairs_packed, NAMED, {"shape": SHAPE})


def images_unread(request: Request) -> int | None:
    """How many images a binary question of v2 holds, by its head alone; None for every other
    question.
    """
    head = request.headers.get(LENGTH.lower())
    return (
        None
        if head is None
        else (int(request.headers["content-length"]) - int(head)) // (4 * PIXELS)
    )


INFER = V2_.path
Plan = Mapping[int, str] | Callable[[int], str | None]


def every(step: int, faults: Iterable[str]) -> Callable[[int], str | None]:
    """On each ``step``-th question the next of ``faults``, round and round."""
    names = list(faults)
    return lambda number: names[(number // step - 1) % len(names)] if number % step == 0 else None


class Served(NamedTuple):
    """One entry of the meter: written when the answer is computed, before it is sent."""

    number: int
    images: int
    queries: list[str]
    answers: list[str]
    key: str


class Hostile(Service):
    """The service.

    ``pages``: what GET gives, by path, in protocol v2; ``dialect``: another language.
    ``max_batch``: larger questions get a 400, as from Triton. ``when_served`` gets each question's
    number before the answer is sent.
    """

    def __init__(
        self,
        plan: Plan | None = None,
        *,
        pages: dict[str, object] | None = None,
        max_batch: int | None = None,
        tls: ssl.SSLContext | None = None,
        dialect: Dialect = V2_,
    ) -> None:
        super().__init__(dialect.pages(pages or {}), tls)
        self.dialect = dialect
        self.plan: Plan = plan or {}
        self.max_batch = max_batch
        self.served: list[Served] = []
        self.dropped = self.questions = self.most_at_once = self._at_once = 0
        self.when_served: Callable[[int], object] = int

    @property
    def images(self) -> int:
        """Images served, by the service's own count."""
        return sum(entry.images for entry in self.served)

    def reply(self, request: Request) -> Reply:
        return self._infer(request) if request.method == "POST" else super().reply(request)

    def _infer(self, request: Request) -> Iterator[Step]:
        with self._lock:
            self.questions += 1
            self._at_once += 1
            number, self.most_at_once = self.questions, max(self.most_at_once, self._at_once)
        try:
            planned = self.plan(number) if callable(self.plan) else self.plan.get(number)
            name, _, argument = (planned or "honest").partition(":")
            yield from steps(FAULTS[name](Call(self, request, number, argument)))
        finally:
            with self._lock:
                self._at_once -= 1

    def meter(self, entry: Served) -> None:
        """Count a question as served."""
        with self._lock:
            self.served.append(entry)
        self.when_served(entry.number)


@dataclass
class Call:
    """A question to the hostile service: what a fault gets."""

    server: Hostile
    request: Request
    number: int
    argument: str

    def read(self) -> Asked:
        """The question, which is not counted by that."""
        return self.server.dialect.read(self.request)

    def packed(
        self, asked: Asked, scores: Any, binary: bool | None = None, **changes: Any
    ) -> Packed:
        """An answer, which may be wrong."""
        return self.server.dialect.packed(asked, scores, binary, **changes)

    def serve(self) -> Asked:
        """Compute the answer, and count it. ValueError for what cannot be answered, which is not
        counted.
        """
        asked = self.read()
        if (self.request.path, asked.pixels.shape[1:]) != (self.server.dialect.path, SHAPE):
            raise ValueError(f"{self.request.path} {asked.pixels.shape}")
        if self.server.max_batch is not None and len(asked.pixels) > self.server.max_batch:
            raise ValueError(
                f"inference request batch-size must be <= {self.server.max_batch} for 'm'"
            )
        digests = [code(x) for x in asked.pixels], [code(y) for y in truth(asked.pixels)]
        key = self.request.headers.get("idempotency-key", "")
        self.server.meter(Served(self.number, len(asked.pixels), *digests, key))
        return asked

    def true(
        self,
        change: Callable[[bytes], bytes] = bytes,
        said: bool = True,
        binary: bool | None = None,
        **headers: str,
    ) -> bytes:
        """Serve; the true answer, or another body with its Content-Length if that is to be
        ``said``.
        """
        asked = self.serve()
        body, own = self.packed(asked, truth(asked.pixels), binary)
        length = {"Content_Length": str(len(body))} if said else {}
        return http(change(body), **(own | length | headers))

    def drop(self) -> None:
        """Count what the question holds, without reading it where it is binary, and go no
        further.
        """
        images = images_unread(self.request)
        with self.server._lock:
            self.server.dropped += len(self.read().pixels) if images is None else images

    def go(self) -> None:
        """Nobody is at home from here on; back after ``argument`` seconds, or never."""
        self.server.down(float(self.argument) if self.argument else None)
