"""HTTP bodies: received within limits, read in threads, refused, held until they are whole."""

import asyncio
import json
import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from http import HTTPStatus
from typing import Any, TypeVar

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope

from dfme.errors import Refused
from dfme.teachers.json_text import HEADER_LENGTH, load_json, require_numbers
from dfme.teachers.owner.guard.meter import Meter

FAILED = "the model failed on this request; it has been counted"


class Rejected(Exception):  # noqa: N818 (an outcome, not an error of ours)
    """A request without an answer of the model: status, text, reason on the meter."""

    def __init__(
        self, status: int, text: str, reason: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(text)
        self.status = status
        self.reason = reason
        self.headers = headers


def failure() -> Rejected:
    """What a client is told where the owner's side fails: nothing about it."""
    return Rejected(500, FAILED, "failed")


def rejected(refused: Refused) -> Rejected:
    """What a client is told where a teacher, a defence or the watch refuses."""
    reason = refused.reason if refused.reason in ("quota", "watch") else "by the teacher"
    headers = {"Retry-After": str(math.ceil(refused.retry_after or 0))} if refused.retry else None
    return Rejected(429 if refused.retry else 403, f"refused: {reason}", reason, headers)


def refuse(meter: Meter, refused: Rejected) -> Response:
    """Words in place of an answer; counted."""
    if refused.status == 500:
        meter.failed += 1
    else:
        meter.refused[refused.reason] += 1
    return JSONResponse({"error": str(refused)}, refused.status, refused.headers)


# Bodies: received within limits, and handed on once they were read

MAX_HELD = 64 * 2**20  # bytes of a request or an answer


class HttpBody(bytes):
    """A body with its ``headers``; an answer's has the ``request`` and a ``status``.

    ``question``: what a form has read in a request's, for the app.
    """

    headers = Headers()
    request: "HttpBody | None" = None
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
        cls,
        content: bytes | bytearray,
        headers: Headers,
        request: "HttpBody | None" = None,
        status: int = 200,
    ) -> "HttpBody":
        body = cls(content)
        body.headers = headers
        body.request = request
        body.status = status
        return body


async def receive_body(request: Request, limit: int, limit_text: str, seconds: float) -> HttpBody:
    """A request's body. Rejected for one that is late, broken off or too long."""
    claimed = request.headers.get("content-length", "0")
    size = int(claimed) if claimed.isdecimal() else 0  # the server has refused what is no number
    content = bytearray()
    try:
        async with asyncio.timeout(seconds):
            chunks = request.stream()
            while size <= limit and (chunk := await anext(chunks, None)) is not None:
                content.extend(chunk)
                size = max(size, len(content))
    except TimeoutError:
        raise Rejected(
            408,
            f"expected the request's body within {seconds:g} s",
            "too slow",
            {"Connection": "close"},
        ) from None
    except (ClientDisconnect, asyncio.CancelledError):  # nobody reads it, or the server is to end
        raise Rejected(503, "not served: the request broke off", "broken off") from None
    if size > limit:
        raise Rejected(
            413,
            f"request of {size} bytes or more: expected at most {limit_text}",
            "body too large",
            {"Connection": "close"},
        )
    return HttpBody.of(content, request.headers)


def receive_again(body: bytes, receive: Receive) -> Receive:
    """Receive a body that was read, and then what comes after it."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def received() -> Message:
        return messages.pop() if messages else await receive()

    return received


# Threads in which bodies are read, so that the event loop serves others meanwhile

SMALL = 2**16  # bytes of a body that is read at once
LARGE = 2**20  # bytes of a body that waits for its turn
MAX_WAITING = 8  # requests with a large body that wait to be read

Value = TypeVar("Value")


class BodyReaders:
    """Large bodies have a thread of their own: however many come, others do not wait for them."""

    def __init__(self) -> None:
        self._threads = [
            ThreadPoolExecutor(1, thread_name_prefix=name) for name in ("bodies", "large bodies")
        ]
        self._waiting = 0

    async def read(self, body: bytes, call: Callable[[], Value]) -> Value:
        """What ``call`` makes of a body."""
        if len(body) <= SMALL:
            return call()
        thread = self._threads[len(body) > LARGE]
        return await asyncio.get_running_loop().run_in_executor(thread, copy_context().run, call)

    async def read_request(self, body: bytes, call: Callable[[], Value]) -> Value:
        """The same for a request's body. Rejected where too many large ones wait."""
        large = len(body) > LARGE
        if large and self._waiting >= MAX_WAITING:
            raise Rejected(
                503,
                f"expected at most {MAX_WAITING} large requests at a time; come again",
                "busy",
                {"Retry-After": "5"},
            )
        self._waiting += large
        try:
            return await self.read(body, call)
        finally:
            self._waiting -= large

    def close(self) -> None:
        for thread in self._threads:
            thread.shutdown()


# The app's answers: held until they are whole, and passed on without what tells of a body

ASKED = "dfme.asked"  # where an app finds, in its scope, the body that was read
OF_PART = (  # headers that are not passed on: an answer is to be whole and readable
    "accept-encoding",
    "range",
    "if-range",
)
OF_BODY = (  # headers that are not passed back: they tell of the answer as the app gave it
    "content-length",
    "transfer-encoding",
    "trailer",
    "etag",
    "last-modified",
    "accept-ranges",
    "digest",
    "content-md5",
    "content-digest",
    "repr-digest",
    HEADER_LENGTH.lower(),
)
MESSAGE_KEYS = ("detail", "error", "message")
MAX_MESSAGE = 200  # bytes of a message that may be a framework's own


class _Held:
    """What an app sends. ValueError, in the app, for more than one answer."""

    def __init__(self) -> None:
        self.start: Message | None = None
        self.content = bytearray()
        self.complete = asyncio.get_running_loop().create_future()

    async def send(self, message: Message) -> None:
        kind = message["type"]
        if self.complete.done() or kind != f"http.response.{'body' if self.start else 'start'}":
            raise ValueError(f"expected one start of an answer and its body, got {kind}")
        if self.start is None:
            self.start = message
            return
        self.content.extend(message.get("body", b""))
        if len(self.content) > MAX_HELD:
            raise ValueError(f"expected an answer of at most {MAX_HELD} bytes")
        if not message.get("more_body", False):
            self.complete.set_result(None)


async def ask_app(
    app: ASGIApp, scope: Scope, receive: Receive, body: HttpBody, rest: list[asyncio.Future[None]]
) -> HttpBody:
    """The app's whole answer; what it does after it goes to ``rest``. ValueError for half an
    answer.
    """
    headers = [
        (name, value)
        for name, value in scope["headers"]
        if name.decode("latin-1").lower() not in OF_PART
    ]
    inner = {
        **scope,
        "headers": headers,
        "extensions": {},
        ASKED: body,
    }
    held = _Held()
    task = asyncio.ensure_future(app(inner, receive_again(body, receive), held.send))
    await asyncio.wait({task, held.complete}, return_when=asyncio.FIRST_COMPLETED)
    if not held.complete.done() or held.start is None:
        raise task.exception() or ValueError("expected an answer, got none that is whole")
    rest.append(task)
    pairs = [(name.lower(), value) for name, value in held.start.get("headers", ())]
    return HttpBody.of(held.content, Headers(raw=pairs), body, held.start["status"])


def respond(answer: HttpBody, content: bytes | None = None) -> Response:
    """The answer as it is; or with another content, and nothing that tells of its own."""
    response = Response(bytes(answer) if content is None else content, answer.status)
    raw = answer.headers.raw
    if content is not None:
        others = [pair for pair in raw if pair[0].decode("latin-1") not in OF_BODY]
        raw = [*response.raw_headers, *others]
    response.raw_headers = raw
    return response


def is_phrase(answer: HttpBody) -> bool:
    """Whether an answer says no more than its status does, as frameworks say it of themselves."""
    if len(answer) > MAX_MESSAGE:
        return False
    text: Any = answer.decode("latin-1")
    try:
        pairs = json.loads(answer, object_pairs_hook=tuple)
    except (ValueError, RecursionError):
        pairs = None
    if isinstance(pairs, tuple) and len(pairs) == 1:
        ((key, value),) = pairs
        text = value if key in MESSAGE_KEYS else None
    try:
        phrase = HTTPStatus(answer.status).phrase
    except ValueError:
        phrase = ""
    return text in ("", phrase)
