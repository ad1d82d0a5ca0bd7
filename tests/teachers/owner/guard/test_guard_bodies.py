"""What goes out in place of an error, and how long others wait while a body is read."""

import asyncio
import json
import math
import threading
import time
from functools import partial
from http import HTTPStatus
from typing import Any

import numpy as np
import pytest
import torch
from clients import question
from defended import digits, queries
from guarded_apps import BODY, SECRETS, SHAPE, X, answered, answering, ask, guard, model, scope_of
from refusals import refusal
from starlette.datastructures import Headers

import dfme
from dfme.teachers import json_text
from dfme.teachers.json_text import LARGE, load_json, require_numbers
from dfme.teachers.open_inference.message import NamedTensor, pack, unpack
from dfme.teachers.open_inference.server import Service
from dfme.teachers.owner.guard.bodies import MAX_WAITING, SMALL, HttpBody
from dfme.teachers.owner.guard.gate import Model
from dfme.teachers.owner.guard.meter import Meter
from dfme.teachers.owner.serve.app import Keys, make_app

HIDDEN: dict[str, bytes] = {
    "another name": json.dumps({"logits": model(X).tolist()}).encode(),
    "a text": f"the scores are {SECRETS}".encode(),
    "a detail": json.dumps({"detail": f"cat with 0.{SECRETS[0]}"}).encode(),
    "a class": b'{"detail": "cat"}',
    "percents": " ".join([f"{100 * float(f'0.{score}'):.1f}" for score in SECRETS]).encode(),
    "bytes": model(X).numpy().tobytes(),
    "a phrase and more": b'{"detail": "Not Found", "label": 3}',
    "a phrase of another status": b'{"detail": "Conflict"}',
    "a phrase twice": b'{"detail": "cat", "detail": "Not Found"}',
    "a list of a phrase": b'[["detail", "Not Found"]]',
    "deep": b"[" * 100_000,
    "a page": b"<h1>Not Found</h1><!-- %s -->" % SECRETS[0].encode(),
}


@pytest.mark.parametrize("status", [300, 307, 404, 418, 422, 500, 503, 599])
def test_an_error_that_the_form_cannot_read_goes_out_without_its_body(status: int) -> None:
    for name, body in HIDDEN.items():
        headers = {"ETag": SECRETS[0], "Content_Type": "application/json", "X_Kept": "yes"}
        for open_too in (False, True):
            app = guard(answering(body, status, **headers), paths=["/predict"], fail_open=open_too)
            answer_status, out_headers, content = ask(app)
            assert (answer_status, content, out_headers["x-kept"]) == (status, b"", "yes"), name
            assert "etag" not in out_headers
            assert out_headers["content-length"] == "0"
            assert app.meter.answered == 0
            assert app.meter.failed == (status >= 500)


@pytest.mark.parametrize("status", [401, 404, 405, 422, 500, 503])
def test_what_a_framework_says_of_a_status_stays_readable(status: int) -> None:
    phrase = HTTPStatus(status).phrase
    for body in (
        phrase.encode(),
        json.dumps({"detail": phrase}).encode(),
        b'{ "error":"%s"}' % phrase.encode(),
    ):
        bare = answering(body, status, WWW_Authenticate="Bearer")
        assert ask(guard(bare, paths=["/predict"])) == ask(bare)


def test_an_owner_says_what_is_told_of_an_error() -> None:
    detail = {"detail": [{"loc": ["images"], "msg": "a list", "input": model(X).tolist()}]}

    def errors(body: Any) -> bytes:
        assert (body.status, body.request) == (422, BODY)
        return json.dumps([each["msg"] for each in body.json()["detail"]]).encode()

    app = answering(json.dumps(detail).encode(), 422)
    status, _, content = ask(guard(app, errors=errors))
    assert (status, json.loads(content)) == (422, ["a list"])
    assert ask(guard(answering(b"junk", 422), errors=errors))[0] == 500


def test_fastapi_errors_of_a_guarded_route_have_their_status_alone() -> None:
    fastapi = pytest.importorskip("fastapi")
    app = fastapi.FastAPI()

    @app.post("/predict")
    async def predict(document: dict[str, list[Any]]) -> Any:
        raise fastapi.HTTPException(
            409, {"scores of it": model(torch.tensor(document["images"])).tolist()}
        )

    before = guard(app, paths=["/predict"])
    json_type = {"Content_Type": "application/json"}
    assert b"scores of it" in ask(app, **json_type)[2]
    assert ask(before, **json_type)[::2] == (409, b"")
    assert ask(before, body=b'{"images": "0.5"}', **json_type)[::2] == (422, b"")
    assert ask(before, "GET", body=b"")[::2] == (405, b'{"detail":"Method Not Allowed"}')


def served_digits() -> tuple[Any, Meter]:
    """``serve`` as it is, behind two keys, without a socket."""
    teacher = digits()
    meter = Meter()
    service = Service("digits", teacher.spec, teacher.num_classes, teacher.label_mode, 64)
    app = make_app(service, Model(teacher, 1), teacher, meter=meter)
    return Keys(app, ["alice", "bob"], meter), meter


def test_serve_answers_a_path_in_another_spelling_with_a_counted_404() -> None:
    app, meter = served_digits()
    body = json.dumps(question(queries()[:2])).encode()
    infer = "/v2/models/digits/infer"
    assert ask(app, path=infer, body=body, X_API_Key="bob")[0] == 200
    odd = [
        f"{infer}%0A",
        f"{infer}%0a",
        "/v2/models/digits/versions/1/infer%0A",
        "/v2/models/digits%0A/infer",
    ]
    for path in [
        *odd,
        f"{infer}/",
        f"/{infer}",
        "/v2/models/digits;x/infer",
        f"{infer}%20",
        "/v2/models/./infer",
    ]:
        status, _, content = ask(app, path=path, body=body, X_API_Key="bob")
        assert (status, [*json.loads(content)]) == (404, ["error"]), path
    assert meter.refused == {"not found": 9}
    assert (meter.images, meter.failed) == (2, 0)
    assert ask(app, path="/x" * 9_000, body=body, X_API_Key="bob")[0] == 414


def test_serve_refuses_a_key_that_comes_twice() -> None:
    app, meter = served_digits()
    body = json.dumps(question(queries()[:2])).encode()
    for name in ("x-api-key", "authorization"):
        for first, second in (
            ("alice", "bob"),
            ("alice", "alice"),
            ("junk", "alice"),
            ("alice", "junk"),
        ):
            scheme = b"Bearer " if name == "authorization" else b""
            scope = scope_of("POST", "/v2/models/digits/infer", {})
            for other in (name, name.upper(), name.replace("-", "_")):
                pair = [(name, first), (other, second)]
                scope["headers"] = [
                    (header.encode(), scheme + value.encode()) for header, value in pair
                ]
                assert asyncio.run(_status(app, scope, body)) == 400, (name, other, first, second)
    assert meter.refused == {"key given twice": 24}
    assert meter.images == 0


async def _status(app: Any, scope: dict[str, Any], body: bytes) -> int:
    return (await answered(app, scope, body))[0]


async def quiet(scope: Any, receive: Any, send: Any) -> None:
    """An app that reads nothing, and whose ``/health`` answers at once."""
    await answering(b"", 200 if scope["path"] == "/health" else 404)(scope, receive, send)


async def wait_of_health(app: Any, path: str, body: bytes) -> tuple[int, float]:
    """The status of a request with a body, and the longest wait of ``/health`` meanwhile."""
    task = asyncio.ensure_future(_status(app, scope_of("POST", path, {}), body))
    longest = 0.0
    while not task.done():
        started = time.perf_counter()
        await asyncio.sleep(0.001)
        assert await _status(app, scope_of("GET", "/health", {}), b"") == 200
        longest = max(longest, time.perf_counter() - started)
    return task.result(), longest


class Reading:
    """Reads images; large bodies once the gate is open, and knows how many of them at once."""

    def __init__(self) -> None:
        self.gate, self.entered = threading.Event(), threading.Event()
        self.most, self._inside = 0, 0

    def __call__(self, body: Any) -> Any:
        if len(body) > LARGE:
            self._inside += 1
            self.most = max(self.most, self._inside)
            self.entered.set()
            assert self.gate.wait(60)
            self._inside -= 1
        return json.loads(body[: len(BODY)])["images"]


def large_ones(app: Any, count: int) -> list[asyncio.Future[int]]:
    scope = scope_of("POST", "/predict", {})
    return [
        asyncio.ensure_future(_status(app, {**scope}, BODY + b" " * LARGE)) for _ in range(count)
    ]


def test_a_body_is_read_beside_the_event_loop_and_large_ones_do_not_hold_up_others() -> None:
    reading = Reading()
    app = guard(quiet, images=reading, paths=["/predict"])

    async def others() -> None:
        large = large_ones(app, 3)
        while not reading.entered.is_set():
            await asyncio.sleep(0.001)
        assert await _status(app, scope_of("GET", "/health", {}), b"") == 200
        assert await _status(app, scope_of("POST", "/predict", {}), BODY + b" " * SMALL) == 404
        assert not any(task.done() for task in large)
        reading.gate.set()
        assert await asyncio.gather(*large) == [404] * 3

    asyncio.run(others())


def test_few_large_bodies_wait_to_be_read_and_the_others_are_refused() -> None:
    reading = Reading()
    app = guard(quiet, images=reading, paths=["/predict"])
    threads = threading.active_count()

    async def more_than_may_wait() -> list[int]:
        large = large_ones(app, MAX_WAITING + 5)
        while sum(task.done() for task in large) < 5:  # none is read as long as the gate is shut
            await asyncio.sleep(0.001)
        reading.gate.set()
        return await asyncio.gather(*large)

    assert sorted(asyncio.run(more_than_may_wait())) == [404] * MAX_WAITING + [503] * 5
    assert (reading.most, app.meter.refused) == (1, {"busy": 5})
    assert threading.active_count() < threads + MAX_WAITING // 2, "a thread for each that waits"


@pytest.mark.exhaustive
def test_health_answers_while_twenty_megabytes_are_read() -> None:
    """Of numbers with a point and without, flat and nested; and of what is no number at all."""
    numbers = b"[%s0.5]" % (b"0.123456," * 2_200_000)
    integers = b"[%s0]" % (b"255," * 5_000_000)
    options: dict[str, Any] = {"teacher": model, "shape": SHAPE, "num_classes": 5, "form": "v2"}
    guarded = dfme.Guard(quiet, paths=["/v2/models/{m}/infer"], **options)
    for data in (
        numbers,
        integers,
        b"[" + b"[]," * 6_700_000 + b"[]]",
        b"[" + b'"",' * 6_700_000 + b'""]',
    ):
        body = b'{"inputs":[{"name":"image","datatype":"FP32","shape":[1,1,8,8],"data":%s}]}' % data
        status, longest = asyncio.run(wait_of_health(guarded, "/v2/models/m/infer", body))
        assert status == 404
        assert longest < 1.5, data[:20]


def test_a_large_document_is_read_as_a_small_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (
        ("LARGE", 100),
        ("PIECE", 1_000),
        ("MAX_FILLERS", 100),
        ("MAX_LISTS", 1_000),
    ):
        monkeypatch.setattr(json_text, name, size)
    values = [
        0.1,
        -1e-30,
        5,
        -7,
        2**70,
        True,
        None,
        "t\u00e9xt",
        {"a": [], "b": {}},
        [[1.5]],
        1e308,
        math.inf,
    ]
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-32"):
        body = json.dumps([values, " " * 200]).encode(encoding)
        assert load_json(body) == json.loads(body)
    body = b'{"a": 1, "a": 2, "x": [%s]}' % (b"0," * 10_000 + b"0")
    assert load_json(body) == json.loads(body)
    for filler in (b"[]", b"[ ]", b'""', b"null", b"true", b"[\n\t]"):
        for encoding in ("utf-8", "utf-16-le"):
            many = (b"[%s0]" % ((filler + b",") * 120)).decode().encode(encoding)
            refusal(
                r"expected at most 100 texts, nulls and empty lists, got [12]",
                require_numbers,
                many,
                error=ValueError,
            )
    refusal(
        "expected at most 1000 lists, got 1002; send smaller batches",
        require_numbers,
        b"[%s[1]]" % (b"[1]," * 1_000),
        error=ValueError,
    )
    refusal(
        "expected numbers of at most 1000 characters, got 2000",
        load_json,
        b"[0.%s]" % (b"1" * 1_998),
        error=ValueError,
    )
    texts = b'{"labels": [%s"x"]}' % (b'"x",' * 200)
    answer = HttpBody.of(texts, Headers(), request=HttpBody(b"asked"))
    assert (
        answer.json() == load_json(texts) == json.loads(texts)
    )  # many labels are an honest answer
    for read in (HttpBody(texts).json, partial(unpack, texts, None, "inputs", 10)):
        refusal("expected at most 100 texts", read, error=ValueError)
    raw = np.full((1, 40, 40), 34, np.uint8)  # whose bytes are quotation marks
    body, length = pack({}, [NamedTensor("x", raw)], "inputs", binary=True)
    assert (unpack(body, length, "inputs", 2_000)[1][0].array == raw).all()
