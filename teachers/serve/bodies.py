"""Bodies: received within limits, read beside the event loop, handed on and replaced."""

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from http import HTTPStatus
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive

from dfme.teachers.json_text import HEADER_LENGTH
from dfme.teachers.serve.forms import HttpBody
from dfme.teachers.serve.model import Rejected

MAX_HELD = 64 * 2**20  # bytes of a request or an answer
SMALL = 2**16  # bytes of a body that is read at once
LARGE = 2**20  # bytes of a body that waits for its turn
MAX_WAITING = 8  # requests with a large body that wait to be read
OF_BODY = (  # not passed back: they tell of the answer as the app gave it
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


class BodyReaders:
    """Threads in which bodies are read, so that the event loop goes on meanwhile.

    Large bodies have a thread of their own: however many come, others do not wait for them.
    """

    def __init__(self) -> None:
        self._threads = [
            ThreadPoolExecutor(1, thread_name_prefix=name) for name in ("bodies", "large bodies")
        ]
        self._waiting = 0

    async def read(self, body: bytes, call: Callable[..., Any], *given: Any) -> Any:
        """What ``call`` makes of a body."""
        if len(body) <= SMALL:
            return call(*given)
        thread = self._threads[len(body) > LARGE]
        run = copy_context().run
        return await asyncio.get_running_loop().run_in_executor(thread, run, call, *given)

    async def read_request(self, body: bytes, call: Callable[..., Any], *given: Any) -> Any:
        """The same for a request's body. Rejected where too many large ones wait."""
        large = len(body) > LARGE
        if large and self._waiting >= MAX_WAITING:
            text = f"expected at most {MAX_WAITING} large requests at a time; come again"
            raise Rejected(503, text, "busy", {"Retry-After": "5"})
        self._waiting += large
        try:
            return await self.read(body, call, *given)
        finally:
            self._waiting -= large

    def close(self) -> None:
        for thread in self._threads:
            thread.shutdown()


async def receive_body(request: Request, most: int, most_text: str, seconds: float) -> HttpBody:
    """A request's body. Rejected for one that is late, broken off or too long."""
    claimed = request.headers.get("content-length", "0")
    size = int(claimed) if claimed.isdecimal() else 0  # the server has refused what is no number
    content = bytearray()
    try:
        async with asyncio.timeout(seconds):
            chunks = request.stream()
            while size <= most and (chunk := await anext(chunks, None)) is not None:
                content.extend(chunk)
                size = max(size, len(content))
    except TimeoutError:
        text = f"expected the request's body within {seconds:g} s"
        raise Rejected(408, text, "too slow", {"Connection": "close"}) from None
    except (ClientDisconnect, asyncio.CancelledError):  # nobody reads it, or the server is to end
        raise Rejected(503, "not served: the request broke off", "broken off") from None
    if size > most:
        text = f"request of {size} bytes or more: expected at most {most_text}"
        raise Rejected(413, text, "body too large", {"Connection": "close"})
    return HttpBody.of(content, request.headers)


def receive_again(body: bytes, receive: Receive) -> Receive:
    """Receive a body that was read, and then what comes after it."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def received() -> Message:
        return messages.pop() if messages else await receive()

    return received


def respond(answer: HttpBody, content: bytes | None = None) -> Response:
    """The answer as it is; or with another content, and nothing that tells of its own."""
    response = Response(bytes(answer) if content is None else content, answer.status)
    raw = [each for each in answer.headers.raw if each[0].decode("latin-1") not in OF_BODY]
    response.raw_headers = answer.headers.raw if content is None else [*response.raw_headers, *raw]
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
