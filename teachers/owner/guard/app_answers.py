"""The app's answers: held until they are whole, and passed on without what tells of a body."""

import asyncio
import json
from http import HTTPStatus
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope

from dfme.teachers.json_text import HEADER_LENGTH
from dfme.teachers.owner.guard.bodies import MAX_HELD, HttpBody, receive_again

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
