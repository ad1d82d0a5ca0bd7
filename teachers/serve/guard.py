"""Defences, watch, limits, alarms and counts before any ASGI app that answers images with scores."""

import asyncio
import json
import logging
import posixpath
import re
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import unquote

import numpy as np
import torch
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from torch import Tensor, nn

from dfme.compute import choose_device
from dfme.config.imports import name_of
from dfme.config.settings import TeacherConfig
from dfme.config.values import from_mapping
from dfme.errors import Refused
from dfme.spec import LabelMode, Teacher, TeacherInfo
from dfme.teachers.arrays import Array
from dfme.teachers.build import make_teacher
from dfme.teachers.defences.wrapper import Defended, behind
from dfme.teachers.label_modes import Wrapper
from dfme.teachers.open_inference.message import HEADER_LENGTH
from dfme.teachers.serve.forms import AdapterForm, HttpBody, form_of
from dfme.teachers.serve.model import Meter, Rejected, asked, one_thread, refuse, rejected
from dfme.teachers.serve.record import AlarmFile, account_tag

MAX_HELD = 64 * 2**20  # bytes of a request or an answer
ASKED = "dfme.asked"  # where an app finds, in its scope, the body that was read
FAILED = "the model failed on this request; it has been counted"
OF_PART = ("accept-encoding", "range", "if-range")  # not passed on: an answer is to be whole and readable
OF_BODY = (  # not passed back: they tell of the answer as the app gave it
    *("content-length", "transfer-encoding", "trailer", "etag", "last-modified", "accept-ranges"),
    *("digest", "content-md5", "content-digest", "repr-digest", HEADER_LENGTH.lower()),
)
PROMETHEUS = "text/plain; version=0.0.4"
CONTENT_FREE = ("HEAD", "OPTIONS")  # methods whose answers are headers alone

logger = logging.getLogger("dfme")


class Given(Wrapper):
    """A teacher whose scores an app has given.

    ``heard``: what its last layer was given meanwhile, for a watch that listens to it; None: none listens.
    """

    scores: Any = None
    heard: list[Tensor] | None = None

    def _answers(self, images: Tensor, ask: Callable[[Tensor], Tensor]) -> Tensor:
        if self.heard is not None and self.info.network is not None:
            last = [each for each in self.info.network.modules() if isinstance(each, nn.Linear)][-1]
            if sum(map(len, self.heard)) == len(images):
                for each in [*self.heard]:
                    last(each)
            else:  # the app has another network
                ask(images)
        scores: Tensor = self.scores
        return scores


class Guard:
    """ASGI middleware: the scores of ``app`` go out defended and watched, or a 500 does.

    ``teacher``, which calibrates the watch, is the model of the app: a callable images -> scores, or the
    path of a checkpoint. ``options`` are those of a teacher: ``defences``, ``watch``, ``benign``,
    ``on_alarm``, ``label_mode``, and ``shape``, ``num_classes``... where it does not say them. Without
    options a ``Teacher`` stays as it is. ``form``: ``v2``, the YAML file of an adapter, or what has the three
    callables. Those are called with bodies: ``images`` gives those of a request, (B, C, H, W) within the
    bounds; ``scores`` those of an answer, (B, K), or labels; either fails where there are none; ``replace``
    gives the answer with others, which tells nothing of its own. ``paths``, written as the app's routes are,
    answer scores; None: whatever a request with a body asks. They get an answer only if its scores were read
    and defended, or if it is an error without scores. ``answers``: ``logits`` or ``probabilities``, where
    those of the app are other than the teacher's; a checkpoint's are taken for probabilities. ``account``:
    of a scope, the text whose digest is the account. ``metrics``: the path of the counts. Alarms are lines
    of JSON in ``alarm_file``, or in the log; ``tell`` hears of each detector's first. ``fail_open``: where
    the guard fails, the app's answer goes out. A body takes ``seconds``, and ``limit`` bytes, which it has in
    words, too. ``in_turn``: one request after the other. UserError for what cannot work.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        teacher: Any,
        form: Any = None,
        images: Callable[[HttpBody], Any] | None = None,
        scores: Callable[[HttpBody], Any] | None = None,
        replace: Callable[[HttpBody, Array], bytes] | None = None,
        paths: Sequence[str] | Callable[[Scope], bool] | None = None,
        answers: str | None = None,
        account: Callable[[Scope], str] = lambda scope: "",
        metrics: str | None = None,
        alarm_file: str | None = None,
        fail_open: bool = False,
        meter: Meter | None = None,
        limit: tuple[int, str] = (MAX_HELD, f"{MAX_HELD} bytes"),
        seconds: float = 60.0,
        threads: int = 0,
        in_turn: bool = False,
        tell: Callable[[str], None] = lambda line: None,
        **options: Any,
    ) -> None:
        self._app = app
        self._teacher = _made(teacher, options, alarm_file)
        own = SimpleNamespace(images=images, scores=scores, replace=replace)
        self._form = form_of(form, own, self._teacher)
        if isinstance(self._form, AdapterForm):
            answers = answers or self._form.answers
        answers = answers or ("probabilities" if isinstance(teacher, str) else None)
        self._guarded = paths if callable(paths) else _matching(paths)
        self._strict = paths is not None
        self._account = account
        self._metrics = metrics
        self._fail_open = fail_open
        self._limit = limit
        self._seconds = seconds
        self._tell = tell
        self.meter = meter or Meter()
        self._watch: Any = self._teacher.info.watch
        self._defended: Defended | None = None
        if isinstance(self._teacher, Defended):
            self._given = Given(behind(self._teacher))  # the teacher as the app answers for it
            self._given.label_mode = LabelMode.parse(answers) if answers else self._given.label_mode
            self._defended = self._teacher.around(self._given)
        self._features = self._watch.features if self._defended and self._watch else None
        self._turns = asyncio.Semaphore(1) if in_turn or self._features else None
        self._worker = one_thread(threads)
        self.meter.alarms.update(dict.fromkeys(self._watch.names if self._watch else (), 0))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == self._metrics:
            page = PlainTextResponse(self.meter.exposition("model"), media_type=PROMETHEUS)
            await page(scope, receive, send)
            return
        if scope["type"] != "http" or not self._guarded(scope):
            await self._app(scope, receive, send)
            return
        rest: list[asyncio.Future[None]] = []
        try:
            body = await self._read(Request(scope, receive))
            if not body and not self._strict:
                await self._app(scope, _again(body, receive), send)
                return
            response = await self._response(scope, receive, body, rest)
        except Rejected as refused:
            response = refuse(self.meter, refused)
        await response(scope, receive, send)
        for each in rest:
            await each

    def close(self) -> None:
        """Defend nothing more; what is under way ends first."""
        self._worker.shutdown()

    async def _response(
        self, scope: Scope, receive: Receive, body: HttpBody, rest: list[asyncio.Future[None]]
    ) -> Response:
        """What goes out: the app's answer, defended, or fit to go out as it is. Rejected for all else."""
        free = scope["method"] in CONTENT_FREE
        images = None if free else self._images(body)
        count = 0 if images is None else len(images)
        account = account_tag(self._account(scope))
        answer = None
        try:
            with ExitStack() as turn:
                heard = await self._enter(turn, account, count)
                answer = await self._answer(scope, receive, body, rest)
                if free:
                    return _whole(answer, b"")
                return await self._settled(answer, account, images, heard)
        except Refused as refused:
            self.meter.ask(-count, -1)
            raise rejected(refused) from None
        except Rejected:
            raise
        except Exception as error:  # whatever it is, it is the owner's and not for those who ask
            logger.exception("there is no answer that can be defended")
            if answer is None or not self._fail_open:
                raise Rejected(500, FAILED, "failed") from error
            return _whole(answer)

    async def _enter(self, turn: ExitStack, account: str, images: int) -> list[Tensor] | None:
        """Wait for a turn; what a watch hears in it. Rejected or Refused where none is to be had."""
        if not images:
            return None
        if seconds := self.meter.admit(images):
            text = f"over the rate limit: expected the next request in {seconds} s at the earliest"
            raise Rejected(429, text, "rate limit", {"Retry-After": str(seconds)})
        if self._turns is not None:
            await self._turns.acquire()
            turn.callback(self._turns.release)
        self.meter.ask(images)
        await self._work(self._admit, account, images)
        turn.callback(self.meter.took, time.perf_counter())
        return turn.enter_context(self._features.listening()) if self._features else None

    async def _answer(
        self, scope: Scope, receive: Receive, body: HttpBody, rest: list[asyncio.Future[None]]
    ) -> HttpBody:
        """The app's whole answer; what it does after it goes to ``rest``. ValueError for half an answer."""
        content = bytearray()
        starts: list[Message] = []
        whole = asyncio.get_running_loop().create_future()

        async def hold(message: Message) -> None:
            kind = message["type"]
            if whole.done() or kind != f"http.response.{'body' if starts else 'start'}":
                raise ValueError(f"expected one start of an answer and its body, got {kind}")
            if kind == "http.response.start":
                starts.append(message)
                return
            content.extend(message.get("body", b""))
            if len(content) > MAX_HELD:
                raise ValueError(f"expected an answer of at most {MAX_HELD} bytes")
            if not message.get("more_body", False):
                whole.set_result(None)

        headers = [each for each in scope["headers"] if each[0].decode("latin-1").lower() not in OF_PART]
        inner = {**scope, "headers": headers, "extensions": {}, ASKED: body}
        task = asyncio.ensure_future(self._app(inner, _again(body, receive), hold))
        await asyncio.wait({task, whole}, return_when=asyncio.FIRST_COMPLETED)
        if not whole.done():
            raise task.exception() or ValueError("expected an answer, got none that is whole")
        rest.append(task)
        told = Headers(raw=[(name.lower(), value) for name, value in starts[0].get("headers", ())])
        return HttpBody.of(content, told, body, starts[0]["status"])

    async def _settled(
        self, answer: HttpBody, account: str, images: Array | None, heard: list[Tensor] | None
    ) -> Response:
        """The answer, defended. ValueError for one that might tell more than it is to."""
        scores = self._scores(answer)
        if answer.status >= 300 and scores is None:
            await self._work(self._hear)
            if answer.status < 500 and images is not None:
                self.meter.ask(-len(images), -1)
            self.meter.failed += answer.status >= 500
            return _whole(answer)
        if images is None or scores is None or answer.status >= 300:
            raise ValueError(f"expected images and scores that can be read, got status {answer.status}")
        new = self._form.replace(answer, await self._work(self._defend, account, images, scores, heard))
        response = _whole(answer, bytes(new))
        response.headers.update(getattr(new, "headers", {}))
        self.meter.answered += 1
        return response

    async def _work(self, call: Callable[..., Any], *given: Any) -> Any:
        """In the one thread that knows the state."""
        if self._watch is None and self._defended is None:
            return call(*given)
        return await asyncio.get_running_loop().run_in_executor(self._worker, call, *given)

    def _admit(self, account: str, images: int) -> None:
        """Refused where alarm or defence say so before the app is asked; nobody unknown has an alarm."""
        if self._watch is not None:
            self._watch.account = account
            if self._watch.knows:
                self._watch.admit()
        if self._defended is not None:
            self._defended.admit(images)

    def _defend(self, account: str, images: Array, scores: Array, heard: list[Tensor] | None) -> Array:
        """Answers in place of the scores. Refused where alarm or defence say so now."""
        try:
            if self._defended is None:
                return scores
            if self._watch is not None:
                self._watch.account = account
            self._given.scores = torch.from_numpy(scores)
            self._given.heard = heard
            return asked(self._defended, images)
        finally:
            self._hear()

    def _hear(self) -> None:
        """Count the watch's alarms since the last time."""
        for line in self._watch.drain() if self._watch is not None else ():
            if "alarm" in line:
                self.meter.alarm(line)
            if line.get("first"):
                number = f"image {line['images']:,} that it asked, evaluation images included"
                self._tell(f"ALARM: {line['alarm']}, account {self._watch.account}, {number}")

    def _images(self, body: HttpBody) -> Array | None:
        """The images in a request's body, float32; None for what is none, or meant for another API."""
        spec = self._teacher.spec
        try:
            images = np.array(self._form.images(body), np.float32)
            low, high = map(np.float32, spec.bounds)
            fits = images.shape[1:] == spec.shape and low <= images.min() and images.max() <= high
            return images if fits else None
        except Rejected:
            raise
        except Exception:
            return None

    def _scores(self, answer: HttpBody) -> Array | None:
        """The scores in an answer; None where there are none. ValueError where nobody can tell."""
        encoding = answer.headers.get("content-encoding", "identity")
        if encoding != "identity":
            raise ValueError(f"expected an answer without Content-Encoding, got {encoding!r}")
        try:
            scores = np.asarray(self._form.scores(answer))
            labels = scores.ndim == 1 and scores.dtype.kind in "iu"
            return scores.astype(np.int64 if labels else np.float32)
        except Exception:
            return None

    async def _read(self, request: Request) -> HttpBody:
        """The request's body. Rejected for one that is late, broken off or too long, or says that it is."""
        most, most_text = self._limit
        claimed = request.headers.get("content-length", "0")
        size = int(claimed) if claimed.isdecimal() else 0  # the server has refused what is no number
        content = bytearray()
        try:
            async with asyncio.timeout(self._seconds):
                chunks = request.stream()
                while size <= most and (chunk := await anext(chunks, None)) is not None:
                    content.extend(chunk)
                    size = max(size, len(content))
        except TimeoutError:
            text = f"expected the request's body within {self._seconds:g} s"
            raise Rejected(408, text, "too slow", {"Connection": "close"}) from None
        except (ClientDisconnect, asyncio.CancelledError):  # nobody reads it, or the server is to end
            raise Rejected(503, "not served: the request broke off", "broken off") from None
        if size > most:
            text = f"request of {size} bytes or more: expected at most {most_text}"
            raise Rejected(413, text, "body too large", {"Connection": "close"})
        return HttpBody.of(content, request.headers)


def _made(teacher: Any, options: dict[str, Any], alarm_file: str | None) -> Teacher:
    """The teacher behind defences and a watch, which has maybe no detectors, so that its label mode holds."""
    if isinstance(getattr(teacher, "info", None), TeacherInfo) and not options:
        return cast(Teacher, teacher)
    of_file = isinstance(teacher, str)
    config = from_mapping(TeacherConfig, {"kind": "torch" if of_file else name_of(teacher), **options})
    file = {"checkpoint": teacher} if of_file else {}
    bare = not (config.defences or config.watch)
    made = make_teacher(config, file, choose_device("auto"), bare, own=None if of_file else teacher)
    if made.info.watch:
        to_file = AlarmFile(Path(alarm_file), logger.warning) if alarm_file else None
        made.info.watch.alarmed = to_file or (lambda alarm: logger.warning("ALARM %s", json.dumps(alarm)))
    return made


def _matching(paths: Sequence[str] | None) -> Callable[[Scope], bool]:
    """Whether a path may be one of the routes, or the one, by the laxest of routers; None: any is."""
    routes = ["{all}"] if paths is None else [paths] if isinstance(paths, str) else paths
    forms = [".*".join(map(re.escape, re.split(r"\{[^}]*\}", _loose(each)))) for each in routes]
    pattern = re.compile(f".*({'|'.join(forms)})", re.DOTALL)
    spellings: Any = (str.lower, _loose)
    return lambda scope: any(pattern.fullmatch(each(scope["path"])) for each in spellings)


def _loose(path: str) -> str:
    """A path decoded, in lower case, without dots, doubles, parameters and blanks."""
    while (plain := unquote(path)) != path:
        path = plain
    path = re.sub(r";[^/]*|[\s\x00-\x1f]", "", path).replace("\\", "/")
    return posixpath.normpath("/" + path.lstrip("/")).lower()


def _whole(answer: HttpBody, content: bytes | None = None) -> Response:
    """The answer as it is; or with another content, and nothing that tells of its own."""
    response = Response(bytes(answer) if content is None else content, answer.status)
    raw = [each for each in answer.headers.raw if each[0].decode("latin-1") not in OF_BODY]
    response.raw_headers = answer.headers.raw if content is None else [*response.raw_headers, *raw]
    return response


def _again(body: bytes, receive: Receive) -> Receive:
    """Receive a body that was read, and then what comes after it."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def received() -> Message:
        return messages.pop() if messages else await receive()

    return received
