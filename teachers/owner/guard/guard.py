"""``dfme.Guard``: what happens to one request, from its path to what goes out in its place."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeVar

import numpy as np
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from torch import Tensor

from dfme.errors import Refused, UserError
from dfme.spec import Teacher
from dfme.teachers.arrays import Array
from dfme.teachers.owner.guard.accounts import Account
from dfme.teachers.owner.guard.bodies import (
    MAX_HELD,
    BodyReaders,
    HttpBody,
    Rejected,
    ask_app,
    failure,
    is_phrase,
    receive_again,
    receive_body,
    refuse,
    rejected,
    respond,
)
from dfme.teachers.owner.guard.forms import AdapterForm, BodyForm, CustomForm, V2Form
from dfme.teachers.owner.guard.gate import Gate, make_guarded, one_thread
from dfme.teachers.owner.guard.meter import Meter
from dfme.teachers.owner.guard.paths import MAX_PATH, ChosenPaths, GuardedPaths
from dfme.teachers.owner.watch.record import account_tag

PROMETHEUS = "text/plain; version=0.0.4"
CONTENT_FREE = ("HEAD", "OPTIONS")  # methods whose answers are headers alone

Value = TypeVar("Value")
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
        teacher: Teacher | Callable[..., Any] | str,
        form: BodyForm | str | None = None,
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
        guarded = make_guarded(teacher, options, alarm_file)
        self._spec = guarded.spec
        self._form = _form_of(form, (images, scores, replace), guarded)
        if answers is None and isinstance(self._form, AdapterForm):
            answers = self._form.answers
        if answers is None and isinstance(teacher, str):
            answers = "probabilities"
        self._paths: GuardedPaths | ChosenPaths
        if paths is None or callable(paths):
            self._paths = ChosenPaths(paths or (lambda scope: True))
        else:
            self._paths = GuardedPaths(paths, app)
        self._strict = paths is not None
        self._account = Account(account)
        self._errors = errors
        self._metrics = metrics
        self._fail_open = fail_open
        self._limit = (limit, f"{limit} bytes") if isinstance(limit, int) else limit
        self._seconds = seconds
        self.meter = meter or Meter()
        self._gate = Gate(guarded, answers, self.meter, tell)
        self._turns = asyncio.Semaphore(1) if in_turn or self._gate.features else None
        self._worker = one_thread(threads)
        self._readers = BodyReaders()
        for line in self._paths.warnings:
            logger.warning(line)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"] == self._metrics:
            await PlainTextResponse(self.meter.exposition("model"), media_type=PROMETHEUS)(
                scope, receive, send
            )
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
        for task in rest:
            await task

    def close(self) -> None:
        """Defend nothing more; what is under way ends first."""
        self._worker.shutdown()
        self._readers.close()

    def _guards(self, scope: Scope) -> bool:
        """Whether a request may ask for scores. Rejected where its path does not let one tell."""
        length = len(scope.get("raw_path") or scope["path"])
        if length > MAX_PATH:
            raise Rejected(
                414, f"expected a path of at most {MAX_PATH} bytes, got {length}", "path too long"
            )
        return self._paths.guards(scope)

    def _checked(self, scope: Scope, receive: Receive, send: Send) -> Send:
        """``send`` of a request that is not guarded, unless the app's router takes it for one that
        is.
        """
        stopped = False

        async def checked(message: Message) -> None:
            nonlocal stopped
            if message["type"] == "http.response.start" and self._paths.slipped(scope):
                stopped = True
                logger.error(
                    "the app answers scores at a path that is not guarded: %r", scope["path"]
                )
                await refuse(self.meter, failure())(scope, receive, send)
            elif not stopped:
                await send(message)

        return checked

    async def _response(
        self, scope: Scope, receive: Receive, body: HttpBody, rest: list[asyncio.Future[None]]
    ) -> Response:
        """What goes out: the app's answer, defended, or fit to go out as it is. Rejected for all
        else.
        """
        count = 0
        answer = None
        try:
            account = account_tag(self._account(scope))
            content_free = scope["method"] in CONTENT_FREE
            images = None
            if not content_free:
                images = await self._readers.read_request(body, partial(self._images, body))
            count = 0 if images is None else len(images)
            with ExitStack() as turn:
                heard = await self._enter(turn, account, count)
                answer = await ask_app(self._app, scope, receive, body, rest)
                if content_free:
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
                raise failure() from error
            return respond(answer)

    async def _enter(self, turn: ExitStack, account: str, images: int) -> list[Tensor] | None:
        """Wait for a turn; what a watch hears in it. Rejected or Refused where none is to be
        had.
        """
        if not images:
            return None
        if seconds := self.meter.admit(images):
            raise Rejected(
                429,
                f"over the rate limit: expected the next request in {seconds} s at the earliest",
                "rate limit",
                {"Retry-After": str(seconds)},
            )
        if self._turns is not None:
            await self._turns.acquire()
            turn.callback(self._turns.release)
        self.meter.ask(images)
        await self._work(partial(self._gate.admit, account, images))
        turn.callback(self.meter.took, time.perf_counter())
        return turn.enter_context(self._gate.features.listening()) if self._gate.features else None

    async def _settled(
        self, answer: HttpBody, account: str, images: Array | None, heard: list[Tensor] | None
    ) -> Response:
        """The answer, defended. ValueError for one that might tell more than it is to."""
        scores = await self._readers.read(answer, partial(self._scores, answer))
        if answer.status >= 300 and scores is None:
            await self._work(self._gate.count_alarms)
            if answer.status < 500 and images is not None:
                self.meter.ask(-len(images), -1)
            self.meter.failed += answer.status >= 500
            return self._error(answer)
        if images is None or scores is None or answer.status >= 300:
            raise ValueError(
                f"expected images and scores that can be read, got status {answer.status}"
            )
        answers = await self._work(partial(self._gate.defend, account, images, scores, heard))
        content = await self._readers.read(answer, partial(self._form.replace, answer, answers))
        response = respond(answer, bytes(content))
        if isinstance(content, HttpBody):
            response.headers.update(content.headers)
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

    async def _work(self, call: Callable[[], Value]) -> Value:
        """In the one thread that knows the state."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, call)

    def _images(self, body: HttpBody) -> Array | None:
        """The images in a request's body, float32; None for what is none, or meant for another
        API.
        """
        try:
            images = np.array(self._form.images(body), np.float32)
            low, high = map(np.float32, self._spec.bounds)
            within = low <= images.min() and images.max() <= high
            return images if within and images.shape[1:] == self._spec.shape else None
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
            are_labels = scores.ndim == 1 and scores.dtype.kind in "iu"
            return scores.astype(np.int64 if are_labels else np.float32)
        except Exception:
            return None


def _form_of(
    form: BodyForm | str | None,
    callables: tuple[
        Callable[[HttpBody], Any] | None,
        Callable[[HttpBody], Any] | None,
        Callable[[HttpBody, Array], bytes] | None,
    ],
    teacher: Teacher,
) -> BodyForm:
    """Where images and scores are: by a form, or by all of three callables. UserError for both and
    for neither.
    """
    file = isinstance(form, str) and form.endswith((".yaml", ".yml"))
    unknown = isinstance(form, str) and form != "v2" and not file
    if unknown or (form is None) == (None in callables):
        raise UserError(
            "Guard: expected either form, v2, an adapter's YAML file or an object of yours, "
            f"or all of images, scores, replace; got form={form!r}"
        )
    if form is None:
        images, scores, replace = callables
        assert images is not None and scores is not None and replace is not None  # noqa: PT018
        return CustomForm(images, scores, replace)
    if not isinstance(form, str):
        return form
    return AdapterForm(form, teacher) if file else V2Form(teacher.spec, teacher.num_classes)
