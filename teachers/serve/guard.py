"""Defences, watch, limits, alarms and counts before any ASGI app that answers images with
scores.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from torch import Tensor

from dfme.errors import Refused
from dfme.spec import LabelMode
from dfme.teachers.arrays import Array
from dfme.teachers.defences.wrapper import Defended, behind
from dfme.teachers.serve.accounts import Account
from dfme.teachers.serve.bodies import (
    MAX_HELD,
    BodyReaders,
    is_phrase,
    receive_again,
    receive_body,
    respond,
)
from dfme.teachers.serve.forms import AdapterForm, HttpBody, form_of
from dfme.teachers.serve.guarded_teacher import Given, make_guarded
from dfme.teachers.serve.model import Meter, Rejected, asked, one_thread, refuse, rejected
from dfme.teachers.serve.paths import MAX_PATH, GuardedPaths
from dfme.teachers.serve.record import account_tag

ASKED = "dfme.asked"  # where an app finds, in its scope, the body that was read
FAILED = "the model failed on this request; it has been counted"
OF_PART = (
    "accept-encoding",
    "range",
    "if-range",
)  # not passed on: an answer is to be whole and readable
PROMETHEUS = "text/plain; version=0.0.4"
CONTENT_FREE = ("HEAD", "OPTIONS")  # methods whose answers are headers alone

logger = logging.getLogger("dfme")


class Guard:
    """ASGI middleware: the scores of ``app`` go out defended and watched, or a 500 does.

    ``teacher``, which calibrates the watch, is the model of the app: a callable images -> scores,
    or the path of a checkpoint. ``options`` are those of a teacher: ``defences``, ``watch``,
    ``benign``, ``on_alarm``, ``label_mode``, and ``shape``, ``num_classes``... where it does not
    say them. Without options a ``Teacher`` stays as it is. ``form``: ``v2``, the YAML file of an
    adapter, or what has the three callables. Those are called with bodies: ``images`` gives those
    of a request, (B, C, H, W) within the bounds; ``scores`` those of an answer, (B, K), or labels;
    either fails where there are none; ``replace`` gives the answer with others, which tells nothing
    of its own. ``paths``, written as the app's routes are, answer scores; None: whatever a request
    with a body asks. They get an answer only if its scores were read and defended, or if it is an
    error without scores, whose body is left out unless it is a framework's own phrase; ``errors``
    gives another in its place, of an answer's body. ``answers``: ``logits`` or ``probabilities``,
    where those of the app are other than the teacher's; a checkpoint's are taken for probabilities.
    ``account``: the name of the header that says who asks, or of a scope the text whose digest is
    the account. ``metrics``: the path of the counts. Alarms are lines of JSON in ``alarm_file``, or
    in the log; ``tell`` hears of each detector's first. ``fail_open``: where the guard fails, the
    app's answer goes out. A body takes ``seconds``, and ``limit`` bytes, maybe with the words for
    it. ``in_turn``: one request after the other. UserError for what cannot work.
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
        account: str | Callable[[Scope], str] = lambda scope: "",
        errors: Callable[[HttpBody], bytes] | None = None,
        metrics: str | None = None,
        alarm_file: str | None = None,
        fail_open: bool = False,
        meter: Meter | None = None,
        limit: int | tuple[int, str] = MAX_HELD,
        seconds: float = 60.0,
        threads: int = 0,
        in_turn: bool = False,
        tell: Callable[[str], None] = lambda line: None,
        **options: Any,
    ) -> None:
        self._app = app
        self._teacher = make_guarded(teacher, options, alarm_file)
        own = SimpleNamespace(images=images, scores=scores, replace=replace)
        self._form = form_of(form, own, self._teacher)
        if isinstance(self._form, AdapterForm):
            answers = answers or self._form.answers
        answers = answers or ("probabilities" if isinstance(teacher, str) else None)
        self._paths = None if paths is None or callable(paths) else GuardedPaths(paths, app)
        self._chosen = paths if callable(paths) else None
        self._strict = paths is not None
        self._account = Account(account)
        self._errors = errors
        self._metrics = metrics
        self._fail_open = fail_open
        self._limit = (limit, f"{limit} bytes") if isinstance(limit, int) else limit
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
        self._readers = BodyReaders()
        self.meter.alarms.update(dict.fromkeys(self._watch.names if self._watch else (), 0))
        for line in self._paths.warnings if self._paths else ():
            logger.warning(line)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"] == self._metrics:
            page = PlainTextResponse(self.meter.exposition("model"), media_type=PROMETHEUS)
            await page(scope, receive, send)
            return
        rest: list[asyncio.Future[None]] = []
        try:
            response = None
            if self._guards(scope):
                body = await receive_body(Request(scope, receive), *self._limit, self._seconds)
                if body or self._strict:
                    response = await self._response(scope, receive, body, rest)
                else:
                    receive = receive_again(body, receive)
        except Rejected as refused:
            response = refuse(self.meter, refused)
        if response is None:
            await self._app(scope, receive, self._checked(scope, receive, send))
            return
        await response(scope, receive, send)
        for each in rest:
            await each

    def close(self) -> None:
        """Defend nothing more; what is under way ends first."""
        self._worker.shutdown()
        self._readers.close()

    def _guards(self, scope: Scope) -> bool:
        """Whether a request may ask for scores. Rejected where its path does not let one tell."""
        length = len(scope.get("raw_path") or scope["path"])
        if length > MAX_PATH:
            text = f"expected a path of at most {MAX_PATH} bytes, got {length}"
            raise Rejected(414, text, "path too long")
        if self._paths is not None:
            return self._paths.guards(scope)
        return self._chosen is None or self._chosen(scope)

    def _checked(self, scope: Scope, receive: Receive, send: Send) -> Send:
        """``send`` of a request that is not guarded, unless the app's router takes it for one that
        is.
        """
        if self._paths is None:
            return send
        paths = self._paths
        stopped = False

        async def checked(message: Message) -> None:
            nonlocal stopped
            if message["type"] == "http.response.start" and paths.slipped(scope):
                stopped = True
                logger.error(
                    "the app answers scores at a path that is not guarded: %r", scope["path"]
                )
                response = refuse(self.meter, Rejected(500, FAILED, "failed"))
                await response(scope, receive, send)
            elif not stopped:
                await send(message)

        return checked

    async def _response(
        self, scope: Scope, receive: Receive, body: HttpBody, rest: list[asyncio.Future[None]]
    ) -> Response:
        """What goes out: the app's answer, defended, or fit to go out as it is. Rejected for all
        else.
        """
        account = self._account_of(scope)
        free = scope["method"] in CONTENT_FREE
        images = None if free else await self._readers.read_request(body, self._images, body)
        count = 0 if images is None else len(images)
        answer = None
        try:
            with ExitStack() as turn:
                heard = await self._enter(turn, account, count)
                answer = await self._answer(scope, receive, body, rest)
                if free:
                    return respond(answer, b"")
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
            return respond(answer)

    def _account_of(self, scope: Scope) -> str:
        """The digest of the account. Rejected where it is not clear, or cannot be read."""
        try:
            return account_tag(self._account(scope))
        except Rejected:
            raise
        except Exception as error:
            logger.exception("there is no account that can be read")
            raise Rejected(500, FAILED, "failed") from error

    async def _enter(self, turn: ExitStack, account: str, images: int) -> list[Tensor] | None:
        """Wait for a turn; what a watch hears in it. Rejected or Refused where none is to be
        had.
        """
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
        """The app's whole answer; what it does after it goes to ``rest``. ValueError for half an
        answer.
        """
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

        headers = [
            each for each in scope["headers"] if each[0].decode("latin-1").lower() not in OF_PART
        ]
        inner = {
            **scope,
            "headers": headers,
            "extensions": {},
            ASKED: body,
        }
        task = asyncio.ensure_future(self._app(inner, receive_again(body, receive), hold))
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
        scores = await self._readers.read(answer, self._scores, answer)
        if answer.status >= 300 and scores is None:
            await self._work(self._hear)
            if answer.status < 500 and images is not None:
                self.meter.ask(-len(images), -1)
            self.meter.failed += answer.status >= 500
            return self._error(answer)
        if images is None or scores is None or answer.status >= 300:
            raise ValueError(
                f"expected images and scores that can be read, got status {answer.status}"
            )
        answers = await self._work(self._defend, account, images, scores, heard)
        new = await self._readers.read(answer, self._form.replace, answer, answers)
        response = respond(answer, bytes(new))
        response.headers.update(getattr(new, "headers", {}))
        self.meter.answered += 1
        return response

    def _error(self, answer: HttpBody) -> Response:
        """An error or a redirect without any part that might be scores under another name, or in
        words.
        """
        if self._errors is not None:
            return respond(answer, bytes(self._errors(answer)))
        if is_phrase(answer):
            return respond(answer)
        logger.info("left out the %d bytes of an answer with status %d", len(answer), answer.status)
        return respond(answer, b"")

    async def _work(self, call: Callable[..., Any], *given: Any) -> Any:
        """In the one thread that knows the state."""
        if self._watch is None and self._defended is None:
            return call(*given)
        return await asyncio.get_running_loop().run_in_executor(self._worker, call, *given)

    def _admit(self, account: str, images: int) -> None:
        """Refused where alarm or defence say so before the app is asked; nobody unknown has an
        alarm.
        """
        if self._watch is not None:
            self._watch.account = account
            if self._watch.knows:
                self._watch.admit()
        if self._defended is not None:
            self._defended.admit(images)

    def _defend(
        self, account: str, images: Array, scores: Array, heard: list[Tensor] | None
    ) -> Array:
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
        """The images in a request's body, float32; None for what is none, or meant for another
        API.
        """
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
