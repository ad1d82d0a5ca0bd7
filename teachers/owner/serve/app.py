"""The web application around a model: its routes, what they refuse, and its guard."""

import logging
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dfme.errors import Refused
from dfme.spec import Teacher
from dfme.teachers.arrays import Array
from dfme.teachers.json_text import HEADER_LENGTH
from dfme.teachers.open_inference import server as protocol
from dfme.teachers.open_inference.message import pack, read_header_length
from dfme.teachers.open_inference.tensors import NamedTensor, short
from dfme.teachers.owner.guard.app_answers import ASKED
from dfme.teachers.owner.guard.asking import Model
from dfme.teachers.owner.guard.bodies import HttpBody
from dfme.teachers.owner.guard.forms import V2Form
from dfme.teachers.owner.guard.guard import PROMETHEUS, Guard
from dfme.teachers.owner.guard.meter import Meter
from dfme.teachers.owner.guard.refusals import FAILED, Rejected, refuse, rejected
from dfme.teachers.owner.serve import connections
from dfme.version import __version__

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
        text = f"{what}: expected a path and method of the inference protocol v2"
        return refuse(self._meter, Rejected(error.status_code, text, "not found", error.headers))

    def _require(self, request: Request) -> None:
        """Rejected unless the path names this model and this version."""
        model = request.path_params["model"]
        version = request.path_params.get("version", protocol.VERSION)
        name = self._service.name
        if model != name:
            raise Rejected(404, f"unknown model {short(model)}: expected {name!r}", "not found")
        if version != protocol.VERSION:
            text = f"unknown version {short(version)} of {model!r}: expected {protocol.VERSION!r}"
            raise Rejected(404, text, "not found")


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
        headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(length)}
        return HttpBody.of(content, Headers(headers))


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
        seconds=connections.REQUEST_SECONDS,
        in_turn=True,
        **options,
    )
