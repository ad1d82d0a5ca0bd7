"""Bodies: received within limits, and handed on once they were read."""

import asyncio
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive

from dfme.teachers.json_text import load_json, require_numbers
from dfme.teachers.owner.guard.refusals import Rejected

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
        text = f"expected the request's body within {seconds:g} s"
        raise Rejected(408, text, "too slow", {"Connection": "close"}) from None
    except (ClientDisconnect, asyncio.CancelledError):  # nobody reads it, or the server is to end
        raise Rejected(503, "not served: the request broke off", "broken off") from None
    if size > limit:
        text = f"request of {size} bytes or more: expected at most {limit_text}"
        raise Rejected(413, text, "body too large", {"Connection": "close"})
    return HttpBody.of(content, request.headers)


def receive_again(body: bytes, receive: Receive) -> Receive:
    """Receive a body that was read, and then what comes after it."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def received() -> Message:
        return messages.pop() if messages else await receive()

    return received
