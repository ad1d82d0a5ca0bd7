"""One attempt at a request, against a server that does everything wrong; each outcome is the one that it should be."""

from __future__ import annotations

import gzip
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, cycle

import pytest
from clients import KEY, PATIENT, endpoint, post, post_once
from service import Do, Request, Service, Step, http, then

import dfme
from dfme.errors import Unanswered, Unusable, UserError

pytestmark = pytest.mark.integration

BRIEF = 0.3
"""Seconds of patience where it is meant to run out."""

# What is sent


def test_what_is_sent_is_what_was_given_and_says_who_asks():
    with Service(http(b"yes", X_Twice="a")) as server:
        reply = post(server.url, body=b"\0\xffquestion")
    assert (reply.status, reply.body, reply.headers["x-twice"]) == (200, b"yes", "a")
    (request,) = server.requests
    assert (request.line, request.body) == ("POST /ask HTTP/1.1", b"\0\xffquestion")
    assert request.headers["user-agent"].startswith(f"dfme/{dfme.__version__} (data-free model extraction")
    assert request.headers["accept-encoding"] == "identity"
    assert request.headers["host"] == f"127.0.0.1:{server.port}"
    assert request.headers["idempotency-key"] == "k1"
    assert "authorization" not in request.headers


@pytest.mark.parametrize(
    ("base", "path", "target"),
    [("", "/v2/x", "/v2/x"), ("/", "/v2/x", "/v2/x"), ("/a/", "/v2", "/a/v2"), ("/a/", "", "/a/"),
     ("/a?b=c", "", "/a?b=c")],
)  # fmt: skip
def test_a_path_is_appended_to_the_url(base, path, target):
    with Service(http()) as server, endpoint(server.url + base) as service:
        service.post(path, b"", {}, 10)
        assert service.url == (server.url + base).rstrip("/")
    assert server.requests[0].line == f"POST {target} HTTP/1.1"
    assert server.requests[0].headers["content-length"] == "0"


@pytest.mark.parametrize(
    ("header", "sent"), [("Authorization", f"Bearer {KEY}"), ("authorization", f"Bearer {KEY}"), ("X-Api-Key", KEY)]
)
def test_the_key_goes_in_its_header(header, sent):
    with Service(http()) as server:
        post(server.url, api_key_env="DFME_KEY", api_key_header=header)
    assert server.requests[0].headers[header.lower()] == sent


def test_connections_are_kept_and_as_many_requests_are_in_flight_as_there_are_threads():
    together = threading.Barrier(4)

    def meet(request: Request) -> bytes:
        together.wait(PATIENT)  # passes only if four requests are in the server's hands at once
        return http(request.body)

    with Service(meet) as server, endpoint(server.url, in_flight=4) as service, ThreadPoolExecutor(4) as threads:
        replies = list(threads.map(lambda i: service.post("/ask", b"%d" % i, {}, 10), range(40)))
    assert [reply.body for reply in replies] == [b"%d" % i for i in range(40)]
    assert server.connections == 4


def test_cookies_are_neither_kept_nor_sent():
    with Service(http(Set_Cookie="session=1; Path=/")) as server, endpoint(server.url) as service:
        for _ in range(2):
            service.post("/ask", b"", {}, 10)
        assert len(service._client.cookies) == 0
    assert ["cookie" in request.headers for request in server.requests] == [False, False]


def test_no_proxy_sees_this_machine_and_one_that_is_named_sees_the_rest(monkeypatch):
    with Service(http(b"from the proxy")) as proxy, Service(http(b"direct")) as server:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        assert post(server.url).body == b"direct"
        assert proxy.requests == []
        assert post("http://192.0.2.1:9", authorised_by="these tests").body == b"from the proxy"
    assert proxy.requests[0].line == "POST http://192.0.2.1:9/ask HTTP/1.1"


# Answers that are none


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
PART = http(b"ten bytes.", Content_Length="100")


@pytest.mark.parametrize(
    "what",
    [then(PART, Do.CLOSE), then(PART, Do.RESET), then(CHUNKED + b"8\r\nhal", Do.CLOSE), then(Do.CLOSE), then(Do.RESET),
     b"garbage, no HTTP\r\n\r\n",
     http(Content_Length="x"), http(Content_Length="-1"), http(Content_Length="9" * 5000)],
)  # fmt: skip
def test_a_connection_that_breaks_may_have_been_served(what):
    with pytest.raises(Unanswered) as outcome:
        post_once(what)
    assert outcome.value.reason == "reset"
    assert not isinstance(outcome.value, Unusable)


def test_an_answer_that_announces_too_much_is_not_read():
    with Service(then(http(b"x", Content_Length=str(10**12)), Do.SILENT)) as server:
        before = time.monotonic()
        with pytest.raises(Unusable) as outcome:
            post(server.url)
        assert time.monotonic() - before < PATIENT / 2
    assert outcome.value.reason == "too long"
    assert post_once(http(b"x" * 1000)).body == b"x" * 1000
    with pytest.raises(Unusable):
        post_once(http(b"x" * 1001))


def test_an_answer_without_an_end_is_cut_off():
    sent = []

    def flood(_: Request) -> Iterator[Step]:
        yield CHUNKED
        while True:
            yield b"400\r\n" + b"x" * 1024 + b"\r\n"
            sent.append(1024)

    with pytest.raises(Unusable) as outcome:
        post_once(flood, most=5000)
    assert outcome.value.reason == "too long"
    assert sum(sent) < 50_000_000  # what the sockets between hold


@pytest.mark.parametrize("encoding", ["gzip", "br", "GZIP", "identity, gzip", "unheard-of"])
def test_a_compressed_answer_is_not_unpacked(encoding):
    bomb = gzip.compress(b"\0" * 10_000_000)
    with pytest.raises(Unusable) as outcome:
        post_once(http(bomb, Content_Encoding=encoding), most=1_000_000)
    assert outcome.value.reason == "compressed"
    assert post_once(http(b"plain", Content_Encoding="identity")).body == b"plain"


def drip(beginning: bytes, piece: bytes) -> Callable[[Request], Iterator[Step]]:
    """A server that is never silent for long, and never done."""
    return lambda request: chain([beginning], cycle([BRIEF / 20, piece]))


@pytest.mark.parametrize(
    "what",
    [
        drip(b"", b"H"), drip(b"HTTP/1.1 200 OK\r\nX: ", b"x"), drip(http(Content_Length="9999"), b"x"),
        drip(CHUNKED, b"1\r\nx\r\n"),
        drip(b"", b"HTTP/1.1 100 Go\r\n\r\n"),
        then(Do.SILENT), then(http(b"x", Content_Length="10"), Do.SILENT),
    ],
)  # fmt: skip
def test_the_time_for_a_request_is_for_all_of_it(what):
    before = time.monotonic()
    with pytest.raises(Unanswered, match=r"timeout.*--teacher\.timeout") as outcome:
        post_once(what, most=10_000, timeout=BRIEF)
    assert outcome.value.reason == "timeout"
    assert BRIEF * 0.9 < time.monotonic() - before < BRIEF + 3


def test_a_server_that_takes_the_question_drop_by_drop_is_cut_off_too():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        hung_up = threading.Event()

        def take() -> None:
            connection, _ = listener.accept()
            with connection:
                while not hung_up.wait(BRIEF / 20):
                    connection.recv(65_536)

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        before = time.monotonic()
        with pytest.raises(Unanswered) as outcome:
            post(f"http://127.0.0.1:{listener.getsockname()[1]}", body=b"x" * 50_000_000, timeout=BRIEF)
        hung_up.set()
        thread.join()
    assert outcome.value.reason == "timeout"
    assert time.monotonic() - before < BRIEF + 3


def test_nobody_gets_past_the_consent_by_making_an_endpoint_of_their_own():
    with pytest.raises(UserError, match=r"192\.0\.2\.1 is not this machine; expected your own"):
        post("http://192.0.2.1:9")
