"""Clients that send or read half of something, and as many as a process has room for."""

import contextlib
import socket
import time

import httpx2
import pytest
import torch
from clients import question
from toys import LinearTeacher

from dfme.spec import ImageSpec

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from dfme.teachers.owner.serve import app
from dfme.teachers.owner.serve.server import Serving

pytestmark = pytest.mark.integration

SPEC = ImageSpec((1, 4, 4))
QUESTION = question(torch.full((2, 1, 4, 4), 0.5))
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
    return httpx2.post(f"{url}/v2/models/toy/infer", json=QUESTION, timeout=20).status_code


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "REQUEST_SECONDS", 0.5)


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
        assert len(serving._server.server_state.connections) <= app.MAX_CONNECTIONS
        assert ended(first, b"") == b""
        last = stack.enter_context(opened(serving.port, ""))
        with pytest.raises(TimeoutError):
            ended(last, b"", 0.5)
