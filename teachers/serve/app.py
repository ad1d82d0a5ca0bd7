"""The web application around a model: routes, keys, limits, messages of refusals, and connections."""

import asyncio
import hmac
import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from dfme.errors import Refused
from dfme.teachers.open_inference import server as protocol
from dfme.teachers.open_inference.message import HEADER_LENGTH, read_header_length
from dfme.teachers.open_inference.tensors import short
from dfme.teachers.serve.model import Meter, Model
from dfme.teachers.serve.record import account_tag

REQUEST_SECONDS = 60.0  # a client may take to send a request's head, to send its body, and to read the answer
MAX_CONNECTIONS = 128  # for each one more, the one that has waited for its client for the longest is closed
PUBLIC_PATHS = ("/v2/health/live", "/v2/health/ready")  # paths that need no key
NO_KEY = account_tag("")  # the one account of all who ask a service without keys

logger = logging.getLogger(__name__)


class Rejected(Exception):  # noqa: N818 (an outcome, not an error of ours)
    """A request refused before the model is asked: status, text, reason on the meter."""

    def __init__(self, status: int, text: str, reason: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.reason = reason
        self.headers = headers


class Endpoints:
    """Handlers of the routes."""

    def __init__(self, service: protocol.Service, model: Model, meter: Meter) -> None:
        self._service = service
        self._model = model
        self._meter = meter

    def routes(self) -> list[Route]:
        routes: list[Route] = []  # tried in order, so those of inference come first
        for model in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
            routes += [
                Route(f"{model}/infer", self.infer, methods=["POST"]),
                Route(f"{model}/ready", self._always({"name": self._service.name, "ready": True})),
                Route(f"{model}/config", self._always(protocol.model_config(self._service))),
                Route(model, self._always(protocol.model_metadata(self._service))),
            ]
        index = [{"name": self._service.name, "version": protocol.VERSION, "state": "READY"}]
        return [
            *routes,
            Route("/v2", self._always(protocol.server_metadata())),
            Route("/v2/health/live", self._always({"live": True})),
            Route("/v2/health/ready", self._always({"ready": True})),
            Route("/v2/repository/index", self._always(index), methods=["POST"]),
            Route("/metrics", self.metrics),
        ]

    async def infer(self, request: Request) -> Response:
        """One batch: refused in words, or the model's answers."""
        self._require(request)
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                body = await _body(request, self._service.most_bytes, self._service.max_batch)
        except TimeoutError:
            text = f"expected the request's body within {REQUEST_SECONDS:g} s"
            raise Rejected(408, text, "too slow", {"Connection": "close"}) from None
        except (ClientDisconnect, asyncio.CancelledError):  # nobody reads it, or the server is to end
            self._meter.refused["broken off"] += 1
            return _error(503, "not served: the request broke off")
        question = self._question(request, body)
        seconds = self._meter.admit(len(question.images))
        if seconds:
            text = f"over the rate limit: expected the next request in {seconds} s at the earliest"
            raise Rejected(429, text, "rate limit", {"Retry-After": str(seconds)})
        try:
            answers = await self._model.ask(question.images, request.scope.get("account", NO_KEY))
            content, length = protocol.write_answer(self._service, question, answers)
        except Refused as refused:
            reason = refused.reason if refused.reason in ("quota", "watch") else "by the teacher"
            headers = {"Retry-After": str(math.ceil(refused.retry_after or 0))} if refused.retry else None
            raise Rejected(429 if refused.retry else 403, f"refused: {reason}", reason, headers) from None
        except Exception:  # whatever it is, it is the owner's and not for those who ask
            logger.exception("the teacher failed on a batch of %d images", len(question.images))
            self._meter.failed += 1
            return _error(500, "the model failed on this request; it has been counted")
        self._meter.answered += 1
        if length is None:
            return Response(content, media_type="application/json")
        return Response(content, media_type="application/octet-stream", headers={HEADER_LENGTH: str(length)})

    def _always(self, content: Any) -> Any:
        """An endpoint that always answers the same, where a model is named about this one alone."""

        async def answer(request: Request) -> Response:
            if "model" in request.path_params:
                self._require(request)
            return JSONResponse(content)

        return answer

    async def metrics(self, request: Request) -> Response:
        return Response(self._meter.exposition(self._service.name), media_type="text/plain; version=0.0.4")

    async def refuse(self, request: Request, error: Exception) -> Response:
        """The response to a request that was rejected, here or by the router."""
        if isinstance(error, Rejected):
            self._meter.refused[error.reason] += 1
            return _error(error.status, str(error), error.headers)
        assert isinstance(error, HTTPException)
        self._meter.refused["not found"] += 1
        what = f"{request.method} {short(request.url.path)}"
        text = f"{what}: expected a path and method of the inference protocol v2"
        return _error(error.status_code, text, error.headers)

    def _require(self, request: Request) -> None:
        """Rejected unless the path names this model and this version."""
        model = request.path_params["model"]
        version = request.path_params.get("version", protocol.VERSION)
        expected = f"unknown model {short(model)}: expected {self._service.name!r}"
        if model == self._service.name:
            expected = f"unknown version {short(version)} of {model!r}: expected {protocol.VERSION!r}"
        if (model, version) != (self._service.name, protocol.VERSION):
            raise Rejected(404, expected, "not found")

    def _question(self, request: Request, body: bytes) -> protocol.Question:
        try:
            encoding = request.headers.get("content-encoding", "identity")
            if encoding != "identity":
                raise ValueError(f"Content-Encoding: expected none, got {encoding!r}")
            return protocol.read_question(self._service, body, read_header_length(request.headers))
        except protocol.BatchTooLargeError as error:
            raise Rejected(400, str(error), "batch too large") from None
        except ValueError as error:
            raise Rejected(400, str(error), "malformed") from None


class Guard:
    """Require a key, ``Authorization: Bearer KEY`` or ``X-API-Key: KEY``: each is an account."""

    def __init__(self, app: ASGIApp, keys: Sequence[str], meter: Meter) -> None:
        self._app = app
        self._keys = {account_tag(key): key.encode() for key in keys}
        self._meter = meter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        known = [] if scope["type"] == "lifespan" else self._accounts(dict(scope["headers"]))
        if scope["type"] == "lifespan" or scope["path"] in PUBLIC_PATHS or known:
            await self._app({**scope, "account": known[0]} if known else scope, receive, send)
            return
        self._meter.refused["unauthorised"] += 1
        response = _error(401, "expected the API key of this service", {"WWW-Authenticate": "Bearer"})
        await response(scope, receive, send)

    def _accounts(self, headers: Mapping[bytes, bytes]) -> list[str]:
        """The account whose key is sent, if it is one's; all are compared, so that the time tells nothing."""
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        given = token if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")
        return [tag for tag, key in self._keys.items() if hmac.compare_digest(given.strip(), key)]


class Connection(H11Protocol):
    """A connection, closed where it is late or one of too many; uvicorn bounds idle ones.

    ``waits``: for what of its client, ``since`` when; empty while answering.
    """

    waits = ""
    since = 0.0
    request: object = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.watch()
        if len(self.connections) > MAX_CONNECTIONS:
            waiting = [each for each in self.connections if isinstance(each, Connection) and each.look()]
            min(waiting, key=lambda each: each.since).transport.abort()

    def watch(self) -> None:
        """Once a second, until it is closed: late is late, however much has come meanwhile."""
        if self.look() and self.waits != "idle" and time.monotonic() - self.since > REQUEST_SECONDS:
            self.transport.abort()
        elif not self.transport.is_closing():
            self.loop.call_later(1.0, self.watch)

    def look(self) -> bool:
        """Note for what, and in which request, it waits; whether for anything."""
        cycle = self.cycle
        waits = ""
        if self.transport.get_write_buffer_size():
            waits = "reader"
        elif cycle is None or cycle.response_complete:
            waits = "head" if self.timeout_keep_alive_task is None else "idle"
        elif cycle.more_body:
            waits = "body"
        if (waits, cycle) != (self.waits, self.request):
            self.waits = waits
            self.request = cycle
            self.since = time.monotonic()
        return bool(waits) and not self.transport.is_closing()


def make_app(service: protocol.Service, model: Model, meter: Meter, keys: Sequence[str] = ()) -> Starlette:
    """The application; with ``keys``, everything but the server's health needs one of them."""
    endpoints = Endpoints(service, model, meter)
    guards = [Middleware(Guard, keys=keys, meter=meter)] if keys else []
    handlers: Any = {Rejected: endpoints.refuse, HTTPException: endpoints.refuse}
    app = Starlette(routes=endpoints.routes(), middleware=guards, exception_handlers=handlers)
    app.router.redirect_slashes = False
    return app


async def _body(request: Request, most: int, most_images: int | None) -> bytes:
    """The request's body. Rejected as soon as it is, or says it is, longer than ``most`` bytes."""
    claimed = request.headers.get("content-length", "0")
    size = int(claimed) if claimed.isdecimal() else 0  # the server has refused what is no number
    chunks: list[bytes] = []
    if size <= most:
        size = 0
        async for chunk in request.stream():
            chunks.append(chunk)
            size += len(chunk)
            if size > most:
                break
    if size > most:
        images = f"{most_images} images ({most} bytes)" if most_images else f"{most} bytes"
        text = f"request of {size} bytes or more: expected at most {images}"
        raise Rejected(413, text, "body too large", {"Connection": "close"})
    return b"".join(chunks)


def _error(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse({"error": text}, status, headers)
