"""One attempt at a request, against a server that does everything wrong."""

import gzip
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, cycle

import pytest
from clients import KEY, PATIENT, endpoint, failed, post, post_once
from damage import refused
from service import Do, Request, Service, Step, http, then

import dfme
from dfme.errors import Unanswered, Unusable

pytestmark = pytest.mark.integration

BRIEF = 0.3
"""Seconds of patience where it is meant to run out."""


def test_what_is_sent_is_what_was_given_and_says_who_asks():
    with Service(http(b"yes", X_Twice="a")) as server:
        reply = post(server.url, body=b"\0\xffquestion")
    assert (reply.status, reply.body, reply.headers["x-twice"]) == (200, b"yes", "a")
    (request,) = server.requests
    assert (request.line, request.body) == ("POST /ask HTTP/1.1", b"\0\xffquestion")
    assert request.headers["user-agent"].startswith(
        f"dfme/{dfme.__version__} (data-free model extraction"
    )
    assert request.headers["accept-encoding"] == "identity"
    assert request.headers["host"] == f"127.0.0.1:{server.port}"
    assert request.headers["idempotency-key"] == "k1"
    assert "authorization" not in request.headers


URLS = [("", "/v2/x", "/v2/x"), ("/", "/v2/x", "/v2/x"), ("/a/", "/v2", "/a/v2")]
URLS += [("/a/", "", "/a/"), ("/a?b=c", "", "/a?b=c")]


@pytest.mark.parametrize(("base", "path", "target"), URLS)
def test_a_path_is_appended_to_the_url(base, path, target):
    with Service(http()) as server, endpoint(server.url + base) as service:
        service.post(path, b"", {}, 10)
        assert service.url == (server.url + base).rstrip("/")
    assert server.requests[0].line == f"POST {target} HTTP/1.1"
    assert server.requests[0].headers["content-length"] == "0"


@pytest.mark.parametrize("header", ["Authorization", "authorization", "X-Api-Key"])
def test_the_key_goes_in_its_header(header):
    with Service(http()) as server:
        post(server.url, api_key_env="DFME_KEY", api_key_header=header)
    sent = KEY if header == "X-Api-Key" else f"Bearer {KEY}"
    assert server.requests[0].headers[header.lower()] == sent


def test_connections_are_kept_and_as_many_requests_are_in_flight_as_there_are_threads():
    together = threading.Barrier(4)

    def meet(request: Request) -> bytes:
        together.wait(PATIENT)  # passes only if four requests are in the server's hands at once
        return http(request.body)

    with (
        Service(meet) as server,
        endpoint(server.url, in_flight=4) as service,
        ThreadPoolExecutor(4) as threads,
    ):
        replies = list(threads.map(lambda i: service.post("/ask", b"%d" % i, {}, 10), range(40)))
    assert [reply.body for reply in replies] == [b"%d" % i for i in range(40)]
    assert server.connections == 4


def test_cookies_are_neither_kept_nor_sent():
    with Service(http(Set_Cookie="session=1; Path=/")) as server, endpoint(server.url) as service:
        for _ in range(2):
            service.post("/ask", b"", {}, 10)
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


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
PART = http(b"ten bytes.", Content_Length="100")


BOMB = gzip.compress(b"\0" * 10_000_000)


def flood(_: Request) -> Iterator[Step]:
    """Fifty megabytes, more than the sockets between can hold."""
    yield CHUNKED
    for _ in range(50_000):
        yield b"400\r\n" + b"x" * 1024 + b"\r\n"
    raise AssertionError("all of it was read")


def drip(beginning: bytes, piece: bytes) -> Callable[[Request], Iterator[Step]]:
    """A server that is never silent for long, and never done."""
    return lambda request: chain([beginning], cycle([BRIEF / 20, piece]))


NO_ANSWERS = {
    "reset": [
        *(then(PART, Do.CLOSE), then(PART, Do.RESET), then(CHUNKED + b"8\r\nhal", Do.CLOSE)),
        *(then(Do.CLOSE), then(Do.RESET), b"garbage, no HTTP\r\n\r\n"),
        *(http(Content_Length="x"), http(Content_Length="-1"), http(Content_Length="9" * 5000)),
    ],
    "too long": [then(http(b"x", Content_Length=str(10**12)), Do.SILENT), http(b"x" * 1001), flood],
    "compressed": [
        http(BOMB, Content_Encoding=name)
        for name in ("gzip", "br", "GZIP", "identity, gzip", "unheard-of")
    ],
    "timeout": [
        *(drip(b"", b"H"), drip(b"HTTP/1.1 200 OK\r\nX: ", b"x"), drip(PART, b"x")),
        *(drip(CHUNKED, b"1\r\nx\r\n"), drip(b"", b"HTTP/1.1 100 Go\r\n\r\n")),
        *(then(Do.SILENT), then(http(b"x", Content_Length="10"), Do.SILENT)),
    ],
}


@pytest.mark.parametrize(
    ("reason", "what"), [(reason, what) for reason in NO_ANSWERS for what in NO_ANSWERS[reason]]
)
def test_what_is_no_answer_says_why_in_time(reason, what):
    late = reason == "timeout"
    kind = Unusable if reason in ("too long", "compressed") else Unanswered
    options = (
        {"timeout": BRIEF, "most": 10_000}
        if late
        else {"most": 10**6}
        if reason == "compressed"
        else {}
    )
    before = time.monotonic()
    outcome, _ = failed(what, "--teacher.timeout" if late else "", kind, **options)
    assert (outcome.reason, type(outcome)) == (reason, kind)
    assert BRIEF * 0.9 * late < time.monotonic() - before < (BRIEF + 3 if late else PATIENT / 2)


def test_as_much_as_is_allowed_is_read():
    assert post_once(http(b"x" * 1000, Content_Encoding="identity")).body == b"x" * 1000


class Slow(Service):
    """Takes a question drop by drop, and never comes to its end."""

    def _talk(self, stream: socket.socket) -> None:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._open.add(stream)
        while stream.recv(65_536):
            time.sleep(BRIEF / 20)


def test_a_server_that_takes_the_question_drop_by_drop_is_cut_off_too():
    with Slow() as server:
        before = time.monotonic()
        outcome = refused(
            "", post, server.url, body=b"x" * 50_000_000, timeout=BRIEF, error=Unanswered
        )
        assert time.monotonic() - before < BRIEF + 3
    assert outcome.reason == "timeout"


def test_nobody_gets_past_the_consent_by_making_an_endpoint_of_their_own():
    refused("192.0.2.1 is not this machine; expected", post, "http://192.0.2.1:9")
