"""A served teacher over real HTTP: its answers, its counts, and clients that send half of something."""

import contextlib
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import numpy as np
import pytest
import torch
from clients import question
from refusals import refusal
from torch import Tensor
from toys import LinearTeacher

from dfme.errors import UserError
from dfme.spec import ImageSpec, TeacherInfo
from dfme.teachers.owner.serve import app as connections
from dfme.teachers.owner.serve.app import MAX_CONNECTIONS
from dfme.teachers.owner.serve.server import Serving

pytestmark = pytest.mark.integration


SPEC = ImageSpec((1, 4, 4))
INFER = "/v2/models/toy/infer"
HEADER = "Inference-Header-Content-Length"


def images(batch: int, spec: ImageSpec = SPEC) -> Tensor:
    rng = torch.Generator().manual_seed(batch)
    return spec.quantise(torch.rand((batch, *spec.shape), generator=rng))


def post(url: str, batch: Tensor, path: str = INFER, **headers: str) -> httpx2.Response:
    """Raw bytes in, raw bytes out."""
    raw = batch.numpy().astype("<f4").tobytes()
    image = {"name": "image", "datatype": "FP32", "shape": list(batch.shape)}
    image["parameters"] = {"binary_data_size": len(raw)}
    text = json.dumps({"inputs": [image], "parameters": {"binary_data_output": True}}).encode()
    headers = {HEADER: str(len(text)), **headers}
    return httpx2.post(url + path, content=text + raw, headers=headers, timeout=20)


def raw_answers(response: httpx2.Response, dtype: str = "<f4") -> np.ndarray:
    assert response.status_code == 200, response.text
    length = int(response.headers[HEADER])
    (tensor,) = json.loads(response.content[:length])["outputs"]
    return np.frombuffer(response.content[length:], dtype).reshape(tensor["shape"])


def counts(url: str) -> dict[str, float]:
    """The values at /metrics, by name and labels."""
    lines = httpx2.get(url + "/metrics").text.splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


class Broken(LinearTeacher):
    """Fails as it is told to."""

    failure: object = None

    def __call__(self, images: Tensor, /) -> Tensor:
        super().__call__(images)
        if isinstance(self.failure, BaseException):
            raise self.failure
        return torch.full((len(images), 3), torch.nan)


class Gated(LinearTeacher):
    """Answers when the gate opens, and knows how many callers are inside at once."""

    def __init__(self) -> None:
        super().__init__(SPEC)
        self.entered, self.gate = threading.Event(), threading.Event()
        self.most, self._inside = 0, 0

    def __call__(self, images: Tensor, /) -> Tensor:
        self._inside += 1
        self.most = max(self.most, self._inside)
        self.entered.set()
        assert self.gate.wait(20)
        self._inside -= 1
        return super().__call__(images)


@pytest.fixture
def toy() -> Iterator[tuple[str, LinearTeacher]]:
    teacher = LinearTeacher(SPEC)
    with Serving(teacher, "toy") as serving:
        yield serving.url, teacher


def test_every_path_of_the_protocol_answers(toy: tuple[str, LinearTeacher]) -> None:
    url, _ = toy
    for model in ("/v2/models/toy", "/v2/models/toy/versions/1"):
        assert httpx2.get(f"{url}{model}").json()["inputs"][0]["shape"] == [-1, 1, 4, 4]
        assert httpx2.get(f"{url}{model}/ready").json() == {"name": "toy", "ready": True}
        assert httpx2.get(f"{url}{model}/config").json()["max_batch_size"] == 0
        assert post(url, images(1), f"{model}/infer").status_code == 200
    for path, word in (
        ("/v2/models/other/infer", "unknown model"),
        ("/v2/models/toy/versions/2/infer", "unknown version"),
        ("/v1/models/toy:predict", "expected a path and method"),
    ):
        response = post(url, images(2), path)
        assert (response.status_code, word in response.json()["error"]) == (404, True)
    assert httpx2.get(f"{url}{INFER}").status_code == 405


def test_the_batch_limit_is_the_smaller_one_and_is_said() -> None:
    teacher = LinearTeacher(SPEC)
    teacher.info = TeacherInfo(max_batch=64)
    for option, limit in ((None, 64), (32, 32), (100, 64)):
        with Serving(teacher, "toy", max_batch=option) as serving:
            response = post(serving.url, images(256))
            assert response.status_code == 400
            assert response.json() == {
                "error": f"batch of 256 images: expected at most {limit} images"
            }
            assert len(raw_answers(post(serving.url, images(limit)))) == limit
            config = httpx2.get(f"{serving.url}/v2/models/toy/config").json()
            assert (config["max_batch_size"], config["input"][0]["dims"]) == (limit, [1, 4, 4])
            assert serving.meter.images == limit


def test_a_malformed_request_is_400_and_costs_nothing(toy: tuple[str, LinearTeacher]) -> None:
    url, teacher = toy
    answers = [
        post(url, torch.full((1, 1, 4, 4), 1.5)),
        post(url, torch.full((1, 1, 4, 4), torch.nan)),
        post(url, images(1), **{HEADER: "many"}),
        post(url, images(1), **{HEADER: str(10**9)}),
        post(url, images(1), **{"Content-Encoding": "gzip"}),
        httpx2.post(url + INFER, content=b"\x80garbage"),
    ]
    assert [answer.status_code for answer in answers] == [400] * 6
    assert all("expected" in answer.json()["error"] for answer in answers)
    assert teacher.images == 0
    seen = counts(url)
    assert seen['dfme_images_served_total{model="toy"}'] == 0
    assert seen['dfme_requests_refused_total{model="toy",reason="malformed"}'] == 6


def test_a_body_that_is_or_says_it_is_too_long_is_413_at_once_and_half_a_one_counts_nothing(caplog):
    with Serving(LinearTeacher(SPEC), "toy", max_batch=2) as serving:
        host, port = serving.url.removeprefix("http://").split(":")
        # a terabyte of which nothing comes
        with socket.create_connection((host, int(port)), timeout=20) as leaving:
            leaving.sendall(
                f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{".encode()
            )
        with socket.create_connection((host, int(port)), timeout=20) as claimed:
            claimed.sendall(
                f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {10**12}\r\n\r\n".encode()
            )
            assert claimed.recv(4096).startswith(b"HTTP/1.1 413 ")
        response = httpx2.post(serving.url + INFER, content=(bytes(2**16) for _ in range(1000)))
        assert response.status_code == 413
        assert "expected at most 2 images" in response.json()["error"]
        assert (serving.meter.refused["body too large"], serving.meter.images) == (2, 0)
    assert caplog.records == []


def test_only_the_key_opens_and_it_is_shown_nowhere():
    key = "s3cret-Key"
    with Serving(LinearTeacher(SPEC), "toy", key=key) as serving:
        url = serving.url
        assert httpx2.get(f"{url}/v2/health/ready").status_code == 200
        for headers in ({}, {"Authorization": f"Basic {key}"}, {"X-API-Key": key + "x"}):
            refused = post(url, images(2), **headers)
            assert (refused.status_code, key in refused.text) == (401, False)
        assert httpx2.get(f"{url}/metrics").status_code == 401
        for headers in ({"Authorization": f"Bearer {key}"}, {"X-API-Key": key}):
            assert post(url, images(2), **headers).status_code == 200
        page = httpx2.get(f"{url}/metrics", headers={"X-API-Key": key}).text
        assert 'reason="unauthorised"} 4' in page
        assert key not in page
        assert serving.meter.images == 4


@pytest.mark.parametrize("limit", [{"images_per_second": 2.0}, {"requests_per_second": 0.25}])
def test_over_the_rate_is_429_with_whole_seconds(limit: dict[str, float]) -> None:
    teacher = LinearTeacher(SPEC)
    with Serving(teacher, "toy", **limit) as serving:  # type: ignore[arg-type]
        assert post(serving.url, images(10)).status_code == 200
        refused = post(serving.url, images(10))
        assert refused.status_code == 429
        assert (
            3 <= int(refused.headers["Retry-After"]) <= 5
        )  # (10 - 2 + 2) / 2 images, or 1 request / 0.25
        assert serving.meter.refused == {"rate limit": 1}
        assert serving.meter.images == teacher.images == 10


@pytest.mark.parametrize(
    "failure", [RuntimeError("the weights lie in a vault"), SystemExit(1), "no numbers"]
)
def test_a_failure_is_500_without_a_word_of_it_and_counts(failure: object, caplog: Any) -> None:
    teacher = Broken(SPEC, mode="top_k:1")
    teacher.failure = failure
    with caplog.at_level(logging.ERROR), Serving(teacher, "toy") as serving:
        response = post(serving.url, images(4))
        seen = counts(serving.url)
    assert response.status_code == 500
    assert response.json() == {"error": "the model failed on this request; it has been counted"}
    assert seen['dfme_images_served_total{model="toy"}'] == teacher.images == 4
    assert seen['dfme_requests_failed_total{model="toy"}'] == 1
    assert any(record.exc_info for record in caplog.records)


def test_health_and_metrics_answer_while_the_model_works_on_one_batch_at_a_time():
    teacher = Gated()
    with Serving(teacher, "toy") as serving, ThreadPoolExecutor(4) as pool:
        requests = [pool.submit(post, serving.url, images(2 + number)) for number in range(4)]
        assert teacher.entered.wait(20)
        assert httpx2.get(f"{serving.url}/v2/health/ready").status_code == 200
        assert counts(serving.url)['dfme_requests_answered_total{model="toy"}'] == 0
        teacher.gate.set()
        assert [len(raw_answers(request.result())) for request in requests] == [2, 3, 4, 5]
        assert serving.meter.images == teacher.images == 14
    assert teacher.most == 1


def test_an_address_that_cannot_be_had_is_one_line(toy: tuple[str, LinearTeacher]) -> None:
    port = int(toy[0].rpartition(":")[2])
    with pytest.raises(
        UserError, match=rf"--port {port}: cannot listen there: .*; give another --port"
    ):
        Serving(LinearTeacher(SPEC), port=port)
    with pytest.raises(UserError, match=r"--host 203\.0\.113\.1"):
        Serving(LinearTeacher(SPEC), host="203.0.113.1")


HEAD = "POST /v2/models/{}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 90000\r\n\r\n"
HALVES = {
    "nothing": "",
    "half a head": "POST /v2/models/toy/infer HTTP/1.1\r\nX-Slow: ",
    "half a body": HEAD.format("toy") + "{",
    "half a body that nobody reads": HEAD.format("nobody") + "{",
}


def opened(port: int, text: str) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=20)
    connection.sendall(text.encode())
    return connection


def ended(connection: socket.socket, drip: bytes, seconds: float = 10) -> bytes:
    """What came before the other side hung up, while a byte went there now and then."""
    came, until = b"", time.monotonic() + seconds
    connection.settimeout(0.05)
    with contextlib.suppress(ConnectionError):
        while time.monotonic() < until:
            with contextlib.suppress(TimeoutError):
                data = connection.recv(100_000)
                if not data:
                    return came
                came += data
            connection.send(drip)
        raise TimeoutError
    return came


def honest(url: str) -> int:
    return httpx2.post(
        f"{url}/v2/models/toy/infer", json=question(torch.full((2, 1, 4, 4), 0.5)), timeout=20
    ).status_code


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.5)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("half", "drip"),
    # that is idle: 120 s
    [(half, drip) for half in HALVES for drip in (b"", b"a") if drip or "nobody" not in half],
)
def test_what_comes_too_slowly_is_left(half: str, drip: bytes) -> None:
    with Serving(LinearTeacher(SPEC), "toy") as serving:
        with opened(serving.port, HALVES[half]) as slow:
            came = ended(slow, drip)
        assert honest(serving.url) == 200
        assert serving.meter.images == 2
        assert serving.meter.refused["too slow"] == (half == "half a body")
    statuses = {"half a body": b"HTTP/1.1 408 ", "half a body that nobody reads": b"HTTP/1.1 404 "}
    assert came[:13] == statuses.get(half, b"")


def test_of_many_that_wait_the_oldest_go_first_and_none_that_is_served() -> None:
    with Serving(LinearTeacher(SPEC), "toy") as serving, contextlib.ExitStack() as stack:
        first = stack.enter_context(opened(serving.port, ""))
        for text in 50 * list(HALVES.values()):
            stack.enter_context(opened(serving.port, text))
        started = time.monotonic()
        assert honest(serving.url) == 200
        assert time.monotonic() - started < 2
        assert len(serving._server.server_state.connections) <= MAX_CONNECTIONS
        assert ended(first, b"") == b""
        last = stack.enter_context(opened(serving.port, ""))
        refusal("", ended, last, b"", 0.5, error=TimeoutError)
