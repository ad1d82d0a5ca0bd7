"""``dfme.Guard`` before apps of others, also such that fail: what passes, and what goes out defended."""

import asyncio
import gzip
import json
import re
import socket
from pathlib import Path
from typing import Any

import brotli
import numpy as np
import pytest
import torch
from clients import question
from defended import WEIGHTS, digits, pairs, queries
from guarded_apps import (
    BODY,
    SECRETS,
    TRUTH,
    Answer,
    X,
    answering,
    ask,
    exchange,
    guard,
    lax,
    leaks,
    model,
    read,
    scope_of,
    served,
)
from processes import PROJECT
from torch import Tensor

import dfme
from dfme.teachers.open_inference.message import NamedTensor, pack, unpack
from dfme.teachers.owner.watch.record import account_tag


def test_the_example_of_the_docs_answers_defended_scores_and_its_other_routes_as_before() -> None:
    page = (PROJECT / "docs/watch.md").read_text()
    (code,) = re.findall(r"^    import json\n(?:(?:    .*)?\n)*?    \)\n", page, re.MULTILINE)
    assert code.count("\n") < 25
    space: dict[str, Any] = {}
    exec(compile(re.sub("^    ", "", code, flags=re.MULTILINE), "docs/watch.md", "exec"), space)
    app = space["app"]
    body = json.dumps({"images": queries()[:7].tolist()}).encode()
    status, _, content = ask(app, body=body)
    scores = np.array(json.loads(content)["scores"])
    truth = space["model"](queries()[:7]).detach().numpy()
    assert status == 200
    assert np.allclose(scores * 10, (scores * 10).round(), atol=1e-5)
    assert (scores.argmax(1) == truth.argmax(1)).all()
    assert not np.allclose(scores, truth, atol=1e-3)
    assert json.loads(ask(app, "GET", "/openapi.json", b"")[2])["paths"].keys() == {"/predict"}
    assert ask(app, body=b"junk")[0] >= 400
    assert (
        'dfme_images_served_total{model="model"} 7\n'
        in ask(app, "GET", "/metrics", b"")[2].decode()
    )


def asked_in_v2(app: Any, batch: Tensor, binary: bool, **outputs: Any) -> Answer:
    image = NamedTensor("x", batch.numpy())
    body, length = pack(
        {"parameters": {"binary_data_output": binary}, **outputs}, [image], "inputs", binary
    )
    headers = {"Inference_Header_Content_Length": str(length)} if length else {}
    return ask(app, path="/v2/models/m/infer", body=body, **headers)


async def other_v2(scope: Any, receive: Any, send: Any) -> None:
    """Somebody's server of the protocol, with names of its own."""
    lengths = [
        int(value) for name, value in scope["headers"] if name == b"inference-header-content-length"
    ]
    header, (image,) = unpack(await read(receive), lengths[0] if lengths else None, "inputs", 10**6)
    answers = digits()(torch.from_numpy(image.array.copy())).numpy()
    if "outputs" in header:
        answers = np.array([[f"{row.max()}:{row.argmax()}".encode()] for row in answers], object)
    header = {"model_name": "m", "by": "them"}
    body, length = pack(header, [NamedTensor("probs", answers)], "outputs", bool(lengths))
    headers = [(b"inference-header-content-length", str(length).encode())] if length else []
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def test_a_server_of_the_protocol_v2_answers_as_the_defended_teacher_and_alarms_count(
    tmp_path: Path,
) -> None:
    watch: dict[str, Any] = {"watch": "pairs,sequential", "benign": "digits", "on_alarm": "refuse"}
    watch["account"] = lambda scope: dict(scope["headers"]).get(b"x-key", b"").decode()
    alarms = tmp_path / "alarms.jsonl"
    pages: dict[str, Any] = {
        "paths": ["/v2/models/{name}/infer"],
        "metrics": "/metrics",
        "form": "v2",
    }
    pages["alarm_file"] = str(alarms)
    app = dfme.Guard(other_v2, teacher=WEIGHTS, defences="lattice:n=8", **pages, **watch)
    truth = digits("lattice:n=8")(queries()[:20]).numpy()
    for binary in (True, False):
        status, headers, body = asked_in_v2(app, queries()[:20], binary)
        length = headers.get("inference-header-content-length")
        header, (tensor,) = unpack(body, int(length) if length else None, "outputs", 10**6)
        assert (status, header, tensor.name) == (200, {"model_name": "m"}, "probs")
        assert np.array_equal(tensor.array, truth)
    texts = [{"name": "probs", "parameters": {"classification": 1}}]
    assert asked_in_v2(app, queries()[:2], False, outputs=texts)[0] == 500
    body = json.dumps(question(pairs()[:100])).encode()
    assert [ask(app, path="/v2/models/m/infer", body=body, X_Key="eve")[0] for _ in range(2)] == [
        200,
        403,
    ]
    assert asked_in_v2(app, queries()[:5], True)[0] == 200
    lines = [json.loads(line) for line in alarms.read_text().splitlines()]
    assert {line["account"] for line in lines} == {account_tag("eve")}
    assert [*lines[0]] == ["at", "account", "detector", "statistic", "threshold", "image"]
    page = ask(app, "GET", "/metrics", b"")[2].decode()
    for name in ("pairs", "sequential"):
        count = sum(line["detector"] == name for line in lines)
        assert count > 0
        assert f'dfme_watch_alarms_total{{model="model",detector="{name}"}} {count}\n' in page
    assert app.meter.images == 147  # with the two of the texts, which failed
    assert (app.meter.refused, app.meter.failed) == ({"watch": 1}, 1)


SPELLINGS = (
    "/predict/ //predict /predict// /%70redict /%2570redict /PREDICT /x/../predict /./predict"
).split()
SPELLINGS += "/predict;v=1 /predict%00 /predict%20 /api/predict /%5cpredict /predict%2f".split()
TRIES: dict[str, dict[str, Any]] = {
    **{
        f"method {each}": {"method": each}
        for each in "GET PUT PATCH DELETE HEAD OPTIONS BREW post".split()
    },
    **{f"path {each}": {"path": each} for each in SPELLINGS},
    **{
        f"answer in {each}": {"Accept_Encoding": each}
        for each in ("gzip", "br", "br;q=1, gzip;q=.5", "*")
    },
    "question in gzip": {"body": gzip.compress(BODY), "Content_Encoding": "gzip"},
    "question in br": {"body": brotli.compress(BODY), "Content_Encoding": "br"},
    "a range": {"Range": "bytes=20-"},
    "a range of what is packed": {
        "Range": "bytes=20-",
        "If_Range": SECRETS[0],
        "Accept_Encoding": "br",
    },
    "a form": {"Content_Type": "multipart/form-data", "Accept": "text/html"},
    "chunks": {"step": 7},
    "chunks of one path": {"step": 1, "path": "/predict/"},
    "other JSON": {"body": BODY.decode().encode("utf-16")},
    "pixels out of bounds": {"body": json.dumps({"images": (X + 9).tolist()}).encode()},
    "an image too large": {
        "body": json.dumps({"images": torch.rand(1, 1, 8, 2).tolist()}).encode()
    },
}


@pytest.mark.parametrize("paths", [["/predict"], "/predict", None])
def test_no_question_gets_an_undefended_answer(paths: list[str] | str | None) -> None:
    app = guard(lax, paths=paths)
    for name, request in TRIES.items():
        assert leaks(ask(lax, **request)) or name in (
            "pixels out of bounds",
            "an image too large",
        ), name
        answer = ask(app, **request)
        assert not leaks(answer), name
        status, headers, body = answer
        assert status in (200, 400, 500), name
        if status == 200 and body:
            assert (np.array(json.loads(body)["scores"]) * 4 % 1 == 0).all(), name
            assert headers["x-kept"] == "yes"
            assert headers["content-length"] == str(len(body))
    for name in (
        "chunks",
        "a range",
        "answer in br",
        "path /%2570redict",
        "method PUT",
        "other JSON",
    ):
        assert ask(app, **TRIES[name])[0] == 200, name
    every = guard(lax, paths=["/predict/{rest}"])
    assert not any(
        leaks(ask(every, path=path))
        for path in ("/predict/../x", "/predict/a;/../..", "/predict/%2e%2e")
    )


async def others(scope: Any, receive: Any, send: Any) -> None:
    """Streams, upgrades and a lifespan: what it is told, it tells."""
    await receive()
    kind = "http.response.start" if scope["type"] == "http" else f"{scope['type']}.told"
    await send(
        {"type": kind, "status": 200, "headers": [*scope.get("headers", ())], "of": id(scope)}
    )
    for event in [b"data: 1\n\n", b"", b"data: 2\n\n"] if scope["type"] == "http" else ():
        await send({"type": "http.response.body", "body": event, "more_body": True})
    await send({"type": "http.response.body", "body": b"%r" % scope.get("extensions")})


def test_what_asks_no_scores_passes_message_by_message() -> None:
    packed = {"Accept-Encoding": "gzip, br", "Range": "bytes=3-"}
    for paths, method, body in ((["/predict"], "POST", BODY), (None, "GET", b"")):
        http = scope_of(method, "/events", packed)
        for scope in (http, {"type": "websocket", "path": "/predict"}, {"type": "lifespan"}):
            received = {"type": f"{scope['type']}.request", "body": body}
            sent = [
                asyncio.run(exchange(app, scope, [received]))
                for app in (others, guard(others, paths=paths))
            ]
            assert sent[0] == sent[1]
    feedback = answering(b'{"thanks": 1}', 201, Content_Type="application/json", Set_Cookie="a=b")
    assert ask(guard(feedback, paths=["/predict"]), path="/feedback") == ask(feedback)
    refusal = answering(b'{"detail": "Unauthorized"}', 401, WWW_Authenticate="Bearer")
    closed = guard(refusal)
    assert ask(closed) == ask(refusal)
    assert closed.meter.images == 0


@pytest.mark.integration
def test_neither_a_pipeline_nor_a_connection_that_ends_early_gets_an_undefended_answer() -> None:
    app = guard(lax, paths=["/predict"])
    head = (
        f"POST {{}} HTTP/1.1\r\nHost: x\r\nAccept-Encoding: br\r\nContent-Length: "
        f"{len(BODY)}\r\n\r\n"
    )
    chunked = b"POST /predict HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunked += b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
    requests = [
        head.format(path).encode() + BODY
        for path in ("/predict", "/health", "//predict/", "/predict")
    ]
    with served(app) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as pipeline:
            end = b"GET /end HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            pipeline.sendall(b"".join([*requests, chunked, end]))
            came = b"".join(iter(lambda: pipeline.recv(65_536), b""))
        assert re.findall(rb"HTTP/1.1 (\d+)", came) == [
            b"200",
            b"404",
            b"400",
            b"200",
            b"200",
            b"404",
        ]
        assert not leaks((200, {}, came))
        assert came.count(b'{"scores": [[') == 3
        for cut in (requests[0][:-9], requests[0], chunked[:-5], requests[0][:40]):
            with socket.create_connection(("127.0.0.1", port), timeout=20) as leaving:
                leaving.sendall(cut)
                leaving.shutdown(socket.SHUT_WR)
                came = b"".join(iter(lambda: leaving.recv(65_536), b""))
            assert not leaks((200, {}, came)), came
            assert not re.search(rb"HTTP/1.1 200", came) or b'{"scores": [[' in came
    assert app.meter.refused["broken off"] >= 1


async def half(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": TRUTH, "more_body": True})
    if scope["path"].endswith("raise"):
        raise RuntimeError(TRUTH)


async def by_file(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.pathsend", "path": __file__})


def failing(*arguments: Any) -> Any:
    raise RuntimeError(SECRETS[0])


FAILURES: dict[str, tuple[Any, dict[str, Any]]] = {
    "scores that are not found": (answering(TRUTH.replace(b"scores", b"logits")), {}),
    "scores in an error": (answering(status=404), {}),
    "scores in a redirect": (answering(status=307, Location="/elsewhere"), {}),
    "a packing that nobody asked for": (
        answering(brotli.compress(TRUTH), Content_Encoding="br"),
        {},
    ),
    "an error in a packing": (answering(gzip.compress(TRUTH), 400, Content_Encoding="gzip"), {}),
    "a part": (answering(TRUTH[20:], 206, Content_Range="bytes 20-/999"), {}),
    "scores of fewer images": (
        answering(json.dumps({"scores": model(X[:2]).tolist()}).encode()),
        {},
    ),
    "scores that are none": (answering(TRUTH.replace(b"0.", b"7.")), {}),
    "scores that cannot be read": (answering(), {"scores": failing}),
    "scores that cannot be replaced": (answering(), {"replace": failing}),
    "images that cannot be read": (answering(), {"images": failing}),
    "a defence that fails": (answering(), {"defences": f"{__name__}:Broken"}),
    "half an answer": (half, {}),
    "half an answer and a crash": (half, {"paths": ["/predict/raise"]}),
    "a file": (by_file, {}),
}


class Broken:
    """A defence that works once, when it is tried."""

    tried = 0

    def answer(self, p_BK: Tensor, images_BCHW: Tensor) -> Tensor:
        Broken.tried += 1
        return p_BK if Broken.tried < 2 else failing()


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_is_a_500_that_tells_nothing_unless_its_owner_wants_the_answer(name: str) -> None:
    app, options = FAILURES[name]
    Broken.tried = 0
    path = options.get("paths", ["/predict"])[0]
    closed = guard(app, **options)
    answer = ask(closed, path=path)
    assert (answer[0], leaks(answer)) == (500, False)
    assert json.loads(answer[2]) == {
        "error": "the model failed on this request; it has been counted"
    }
    assert (closed.meter.failed, closed.meter.answered) == (1, 0)
    Broken.tried = 0
    complete = "half" not in name and name != "a file"
    assert ask(guard(app, fail_open=True, **options), path=path)[2] == (
        ask(app)[2] if complete else answer[2]
    )


def test_a_quota_is_refused_before_the_app_is_asked_even_where_failures_are_open() -> None:
    calls = list[int]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        calls.append(1)
        await lax(scope, receive, send)

    closed = guard(app, defences="quota:images=5", fail_open=True)
    assert [ask(closed)[0] for _ in range(3)] == [200, 403, 403]
    assert (len(calls), closed.meter.images, closed.meter.refused) == (1, 3, {"quota": 2})
