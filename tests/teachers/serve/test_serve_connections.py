"""Clients that send or read half of something, and as many as a process has room for: an honest one is still served."""

from __future__ import annotations

import contextlib
import json
import re
import resource
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
import torch
from processes import Bench
from toys import LinearTeacher

from dfme.spec import ImageSpec

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from dfme.teachers.serve import app, connections
from dfme.teachers.serve.server import Serving

pytestmark = pytest.mark.integration

SPEC = ImageSpec((1, 4, 4))
STAYING = httpx2.Limits(keepalive_expiry=60)
QUESTION = {"name": "image", "datatype": "FP32", "shape": [2, 1, 4, 4], "data": [0.5] * 32}
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
    """What came before the other side hung up, while a byte went there now and then; TimeoutError if it does not."""
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


def honest(url: str, model: str = "toy") -> int:
    return httpx2.post(f"{url}/v2/models/{model}/infer", json={"inputs": [QUESTION]}, timeout=20).status_code


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (app, connections):
        monkeypatch.setattr(module, "REQUEST_SECONDS", 0.5)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("half", "drip"),
    [(half, drip) for half in HALVES for drip in (b"", b"a") if drip or "nobody" not in half],  # that is idle: 120 s
)
def test_what_comes_too_slowly_is_left(half: str, drip: bytes) -> None:
    with Serving(LinearTeacher(SPEC), "toy") as serving:
        with opened(serving.server.port, HALVES[half]) as slow:
            came = ended(slow, drip)
        assert honest(serving.url) == 200
        assert serving.meter.images == 2
        assert serving.meter.refused["too slow"] == (half == "half a body")
    status = {"half a body": b"HTTP/1.1 408 ", "half a body that nobody reads": b"HTTP/1.1 404 "}.get(half, b"")
    assert came[:13] == status


def becomes(serving: Serving, connected: int) -> None:
    """Wait until so many are connected."""
    until = time.monotonic() + 20
    while len(serving.server._server.server_state.connections) != connected:
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.usefixtures("impatient")
def test_who_does_not_read_the_answer_is_left_and_who_idles_is_not() -> None:
    body = json.dumps({"inputs": [QUESTION]})
    question = (HEAD.format("toy").replace("90000", str(len(body))) + body).encode()
    with Serving(LinearTeacher(SPEC, num_classes=20_000), "toy") as serving, httpx2.Client(limits=STAYING) as idle:
        assert idle.get(f"{serving.url}/v2").status_code == 200
        with opened(serving.server.port, "") as lazy:
            becomes(serving, 2)
            with contextlib.suppress(OSError):  # a hundred answers to come, of which none is read
                for _ in range(100):
                    lazy.sendall(question)
            becomes(serving, 1)
        assert idle.get(f"{serving.url}/v2").status_code == 200
        becomes(serving, 1)  # the same


def test_of_many_that_wait_the_oldest_go_first_and_none_that_is_served() -> None:
    with Serving(LinearTeacher(SPEC), "toy") as serving, contextlib.ExitStack() as stack:
        first = stack.enter_context(opened(serving.server.port, ""))
        for text in 50 * list(HALVES.values()):
            stack.enter_context(opened(serving.server.port, text))
        started = time.monotonic()
        assert honest(serving.url) == 200
        assert time.monotonic() - started < 2
        assert len(serving.server._server.server_state.connections) <= connections.MAX_CONNECTIONS
        assert ended(first, b"") == b""
        last = stack.enter_context(opened(serving.server.port, ""))
        with pytest.raises(TimeoutError):
            ended(last, b"", 0.5)


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """A teacher that is served by a process that may open 300 files; its URL and port."""
    limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))  # noqa: E731
    process = Bench(tmp_path).start(["serve", "--port", "0"], preexec_fn=limit)
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
    assert found, line
    yield found[0], int(found[1])
    process.send_signal(signal.SIGKILL)
    _, err = process.communicate(timeout=20)
    assert err == ""


def test_more_clients_than_a_process_has_room_for(narrow: tuple[str, int]) -> None:
    url, port = narrow
    question = {"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": [0.5] * 64}
    with contextlib.ExitStack() as stack:
        for text in 150 * list(HALVES.values()):
            with contextlib.suppress(OSError):  # those that were closed already
                stack.enter_context(opened(port, text))
        started = time.monotonic()
        answer = httpx2.post(f"{url}/v2/models/digits/infer", json={"inputs": [question]}, timeout=20)
        assert answer.status_code == 200
        assert time.monotonic() - started < 5
        assert torch.tensor(answer.json()["outputs"][0]["data"]).sum() == pytest.approx(1, abs=1e-5)
