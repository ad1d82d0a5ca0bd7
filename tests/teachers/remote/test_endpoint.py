"""One attempt at a request, against a server that does everything wrong, and what a status means."""

import gzip
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from itertools import chain, cycle

import pytest
from clients import KEY, PATIENT, endpoint, failed, post, post_once
from damage import refused
from hypothesis import given
from hypothesis import strategies as st
from service import Do, Request, Service, Step, http, then

import dfme
from dfme.errors import Unanswered, Unusable
from dfme.teachers.remote.secrets import Secrets
from dfme.teachers.remote.transport import quoted, retry_after

BRIEF = 0.3
"""Seconds of patience where it is meant to run out."""


@pytest.mark.integration
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


@pytest.mark.integration
@pytest.mark.parametrize(("base", "path", "target"), URLS)
def test_a_path_is_appended_to_the_url(base, path, target):
    with Service(http()) as server, endpoint(server.url + base) as service:
        service.post(path, b"", {}, 10)
        assert service.url == (server.url + base).rstrip("/")
    assert server.requests[0].line == f"POST {target} HTTP/1.1"
    assert server.requests[0].headers["content-length"] == "0"


@pytest.mark.integration
@pytest.mark.parametrize("header", ["Authorization", "authorization", "X-Api-Key"])
def test_the_key_goes_in_its_header(header):
    with Service(http()) as server:
        post(server.url, api_key_env="DFME_KEY", api_key_header=header)
    sent = KEY if header == "X-Api-Key" else f"Bearer {KEY}"
    assert server.requests[0].headers[header.lower()] == sent


@pytest.mark.integration
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


@pytest.mark.integration
def test_cookies_are_neither_kept_nor_sent():
    with Service(http(Set_Cookie="session=1; Path=/")) as server, endpoint(server.url) as service:
        for _ in range(2):
            service.post("/ask", b"", {}, 10)
    assert ["cookie" in request.headers for request in server.requests] == [False, False]


@pytest.mark.integration
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


@pytest.mark.integration
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


@pytest.mark.integration
def test_as_much_as_is_allowed_is_read():
    assert post_once(http(b"x" * 1000, Content_Encoding="identity")).body == b"x" * 1000


class Slow(Service):
    """Takes a question drop by drop, and never comes to its end."""

    def _talk(self, stream: socket.socket) -> None:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._open.add(stream)
        while stream.recv(65_536):
            time.sleep(BRIEF / 20)


@pytest.mark.integration
def test_a_server_that_takes_the_question_drop_by_drop_is_cut_off_too():
    with Slow() as server:
        before = time.monotonic()
        outcome = refused(
            "", post, server.url, body=b"x" * 50_000_000, timeout=BRIEF, error=Unanswered
        )
        assert time.monotonic() - before < BRIEF + 3
    assert outcome.reason == "timeout"


@pytest.mark.integration
@pytest.mark.parametrize(
    ("status", "retry"),
    [("429 Slow", True), ("503 Busy", True), ("408 Late", True), ("425 Early", True), ("400 Bad", False),
     ("401 Who", False), ("404 What", False), ("413 Big", False), ("422 No", False), ("304 Same", False)],
)  # fmt: skip
def test_a_refusal_says_whether_to_come_back(status, retry):
    body = b"" if status.startswith("304") else b"at most 8\x00\r\n images  \x1b[31m"
    refusal, _ = failed(http(body, status), "(at most 8 images [31m)" if body else status[:3])
    assert (refusal.reason, refusal.retry, refusal.body) == (status[:3], retry, body)
    assert str(refusal).isprintable()


@pytest.mark.integration
@pytest.mark.parametrize("status", ["500", "501", "502", "504", "599"])
def test_a_server_error_may_have_been_served(status):
    outcome, _ = failed(http(b"oops", f"{status} Oops"), status, Unanswered)
    assert (outcome.reason, type(outcome)) == (status, Unanswered)


@pytest.mark.integration
def test_a_long_refusal_is_cut():
    refusal, _ = failed(http(b"word " * 100_000, "400 Bad"))
    assert len(refusal.body) == 65_536
    assert len(str(refusal)) < 300
    refusal, _ = failed(then(http(b"part of it", "422 No", Content_Length="9999"), Do.CLOSE))
    assert refusal.body == b"part of it"


NOW = "Tue, 15 Nov 1994 08:12:31 GMT"


@pytest.mark.parametrize(
    ("wish", "date", "seconds"),
    [
        ("0", "", 0), ("17", "", 17), (" 2.5 ", "", 2.5), ("86401", "", 86_400), ("9" * 5000, "", 86_400),
        ("Tue, 15 Nov 1994 08:12:41 GMT", NOW, 10), ("Tuesday, 15-Nov-94 08:13:31 GMT", NOW, 60),
        ("Tue, 15 Nov 1994 10:12:32 +0200", NOW, 1), ("Tue, 15 Nov 2094 08:12:31 GMT", NOW, 86_400),
        ("Tue, 15 Nov 1994 08:12:30 GMT", NOW, None), ("-5", NOW, None), ("1e3", "", None), ("inf", "", None),
        ("nan", "", None), ("", "", None), ("soon", NOW, None), ("Tue, 99 Nov 1994 08:12:31 GMT", NOW, None),
        ("\u0661\u0662", "", None), ("Tue, 15 Nov 999999999 08:12:31 GMT", NOW, None),
    ],
)  # fmt: skip
def test_how_long_a_service_asks_to_wait(wish, date, seconds):
    assert retry_after({"retry-after": wish, "date": date}) == seconds


def test_a_date_without_the_services_clock_is_held_against_ours(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 1_000_000.0)
    assert retry_after({"retry-after": formatdate(1_000_100, usegmt=True)}) == 100


@given(st.text(max_size=40))
def test_no_wish_to_wait_is_out_of_bounds(wish):
    seconds = retry_after({"retry-after": wish, "date": wish})
    assert seconds is None or 0 <= seconds <= 86_400


@pytest.mark.parametrize("written", ["my  key", "my\t key", "m\0y  \x1bkey", "my\u200b  key"])
def test_a_secret_with_white_space_in_it_is_hidden_however_that_is_shown(written):
    assert (
        quoted(f"bad {written}, sorry", Secrets({"A": "my  key", "B": "my key"}))
        == " (bad ***, sorry)"
    )
    assert quoted("bad my  key", Secrets({"A": "my  key"})) == " (bad ***)"


def test_nothing_said_is_nothing_quoted():
    assert quoted(" \0\n", Secrets({})) == ""
    assert quoted("word " * 100, Secrets({})) == f" ({('word ' * 40)}...)"
