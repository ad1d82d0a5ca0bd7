"""The web application around a model: connections, keys, routes, refusals, and its guard."""

import asyncio
import hmac
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from dfme.errors import Refused
from dfme.spec import Teacher
from dfme.teachers.arrays import Array
from dfme.teachers.json_text import HEADER_LENGTH
from dfme.teachers.open_inference import server as protocol
from dfme.teachers.open_inference.message import NamedTensor, pack, read_header_length, short
from dfme.teachers.owner.guard.accounts import require_once
from dfme.teachers.owner.guard.bodies import ASKED, FAILED, HttpBody, Rejected, refuse, rejected
from dfme.teachers.owner.guard.forms import V2Form
from dfme.teachers.owner.guard.gate import Model
from dfme.teachers.owner.guard.guard import PROMETHEUS, Guard
from dfme.teachers.owner.guard.meter import Meter
from dfme.version import __version__

# a client may take so long to send a request's head, to send its body, and to read the answer
REQUEST_SECONDS = 60.0
# for each one more, the one that has waited for its client for the longest is closed
MAX_CONNECTIONS = 128


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
            waiting = [
                other
                for other in self.connections
                if isinstance(other, Connection) and other.look()
            ]
            min(waiting, key=lambda other: other.since).transport.abort()

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


# Who may ask: the keys of a service, each of which is an account

KEY_HEADERS = ("authorization", "x-api-key")
PUBLIC_PATHS = ("/v2/health/live", "/v2/health/ready")  # paths that need no key


class Keys:
    """Require a key, ``Authorization: Bearer KEY`` or ``X-API-Key: KEY``: each is an account."""

    def __init__(self, app: ASGIApp, keys: Sequence[str], meter: Meter) -> None:
        self._app = app
        self._keys = {key: key.encode() for key in keys}
        self._meter = meter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        try:
            require_once(scope["headers"], KEY_HEADERS, "key given twice")
        except Rejected as refused:
            await refuse(self._meter, refused)(scope, receive, send)
            return
        accounts = self._accounts(dict(scope["headers"]))
        if accounts:
            await self._app({**scope, "account": accounts[0]}, receive, send)
        elif scope["path"] in PUBLIC_PATHS:
            await self._app(scope, receive, send)
        else:
            unknown = Rejected(
                401,
                "expected the API key of this service",
                "unauthorised",
                {"WWW-Authenticate": "Bearer"},
            )
            await refuse(self._meter, unknown)(scope, receive, send)

    def _accounts(self, headers: Mapping[bytes, bytes]) -> list[str]:
        """The account whose key is sent, if it is one's; all are compared, so that the time tells
        nothing.
        """
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        sent = token if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")
        return [name for name, key in self._keys.items() if hmac.compare_digest(sent.strip(), key)]


# Routes, and what they refuse

logger = logging.getLogger(__name__)


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
        server = {"name": "dfme", "version": __version__, "extensions": protocol.EXTENSIONS}
        index = [{"name": self._service.name, "version": protocol.VERSION, "state": "READY"}]
        return [
            *routes,
            Route("/v2", self._always(server)),
            Route("/v2/health/live", self._always({"live": True})),
            Route("/v2/health/ready", self._always({"ready": True})),
            Route("/v2/repository/index", self._always(index), methods=["POST"]),
            Route("/metrics", self.metrics),
        ]

    async def infer(self, request: Request) -> Response:
        """One batch that passed the gate, which reads these scores and sees to what is made of
        them.
        """
        self._require(request)
        if ASKED not in request.scope:  # the router took another spelling for this path
            path = short(request.url.path)
            raise Rejected(404, f"{path}: expected a path in its one spelling", "not found")
        images = request.scope[ASKED].question.images
        try:
            answers = await self._model.ask(images)
        except Refused as refused:
            raise rejected(refused) from None
        except Exception:  # whatever it is, it is the owner's and not for those who ask
            logger.exception("the teacher failed on a batch of %d images", len(images))
            return JSONResponse({"error": FAILED}, 500)  # which the guard counts
        content, length = pack({}, [NamedTensor("scores", answers)], "outputs", binary=True)
        return Response(content, headers={HEADER_LENGTH: str(length)})

    def _always(self, content: Any) -> Any:
        """An endpoint that always answers the same, where a model is named about this one alone."""

        async def answer(request: Request) -> Response:
            if "model" in request.path_params:
                self._require(request)
            return JSONResponse(content)

        return answer

    async def metrics(self, request: Request) -> Response:
        return Response(self._meter.exposition(self._service.name), media_type=PROMETHEUS)

    async def refuse(self, request: Request, error: Exception) -> Response:
        """The response to a request that was rejected, here or by the router."""
        if isinstance(error, Rejected):
            return refuse(self._meter, error)
        assert isinstance(error, HTTPException)
        what = f"{request.method} {short(request.url.path)}"
        return refuse(
            self._meter,
            Rejected(
                error.status_code,
                f"{what}: expected a path and method of the inference protocol v2",
                "not found",
                error.headers,
            ),
        )

    def _require(self, request: Request) -> None:
        """Rejected unless the path names this model and this version."""
        model = request.path_params["model"]
        version = request.path_params.get("version", protocol.VERSION)
        name = self._service.name
        if model != name:
            raise Rejected(404, f"unknown model {short(model)}: expected {name!r}", "not found")
        if version != protocol.VERSION:
            raise Rejected(
                404,
                f"unknown version {short(version)} of {model!r}: expected {protocol.VERSION!r}",
                "not found",
            )


class ServedForm(V2Form):
    """Requests that are read strictly, and answers in whatever form was asked for."""

    def __init__(self, service: protocol.Service) -> None:
        super().__init__(service.spec, service.num_classes)
        self._service = service

    def images(self, body: HttpBody, /) -> Array:
        try:
            encoding = body.headers.get("content-encoding", "identity")
            if encoding != "identity":
                raise ValueError(f"Content-Encoding: expected none, got {encoding!r}")
            question = protocol.read_question(self._service, body, read_header_length(body.headers))
        except protocol.BatchTooLargeError as error:
            raise Rejected(400, str(error), "batch too large") from None
        except ValueError as error:
            raise Rejected(400, str(error), "malformed") from None
        body.question = question
        return question.images

    def replace(self, answer: HttpBody, scores: Array, /) -> HttpBody:
        assert answer.request is not None
        content, length = protocol.write_answer(self._service, answer.request.question, scores)
        if length is None:
            return HttpBody.of(content, Headers({"Content-Type": "application/json"}))
        return HttpBody.of(
            content,
            Headers({"Content-Type": "application/octet-stream", HEADER_LENGTH: str(length)}),
        )


def make_app(service: protocol.Service, model: Model, teacher: Teacher, **options: Any) -> Guard:
    """The bare application, which asks ``model``, behind a guard that makes its answers the
    teacher's.
    """
    endpoints = Endpoints(service, model, options["meter"])
    handlers: Any = {Rejected: endpoints.refuse, HTTPException: endpoints.refuse}
    app = Starlette(routes=endpoints.routes(), exception_handlers=handlers)
    app.router.redirect_slashes = False
    path = f"/v2/models/{service.name}"
    paths = (f"{path}/infer", f"{path}/versions/{protocol.VERSION}/infer")
    limit_text = f"{service.most_bytes} bytes"
    if service.max_batch:
        limit_text = f"{service.max_batch} images ({limit_text})"
    return Guard(
        app,
        teacher=teacher,
        form=ServedForm(service),
        paths=lambda scope: scope["method"] == "POST" and scope["path"] in paths,
        account=lambda scope: scope.get("account", ""),
        errors=bytes,  # those of the app above, which have no scores
        limit=(service.most_bytes, limit_text),
        seconds=REQUEST_SECONDS,
        in_turn=True,
        **options,
    )
