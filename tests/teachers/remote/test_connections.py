"""Who is asked: certificates, connections, and redirects on the same host alone."""

import itertools
import shutil
import socket
import ssl
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from clients import KEY, endpoint, failed, get, post, v2_teacher
from damage import refused
from hypothesis import given
from hypothesis import strategies as st
from protocols import V2, answer, read, scores
from service import Do, Service, http, then

from dfme.errors import Refused, Unanswered, Unusable
from dfme.oracle.ledger import Ledger
from dfme.oracle.oracle import Oracle
from dfme.teachers.remote.endpoint import Endpoint, Reply, address_of, origin, redirected
from dfme.teachers.remote.json_bodies import parse
from dfme.teachers.remote.secrets import Secrets

trustme = pytest.importorskip("trustme")

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


def context(authority, name: str = "127.0.0.1", **dates: datetime) -> ssl.SSLContext:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name, **dates).configure_cert(tls)
    return tls


@pytest.fixture
def ca_file(authority, tmp_path: Path) -> str:
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    return str(tmp_path / "ca.pem")


def self_signed(folder: Path) -> ssl.SSLContext:
    """As ``openssl req -x509`` makes it: with no authority at all."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the program openssl")
    words = (
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -addext "
        "subjectAltName=IP:127.0.0.1"
    )
    out = ["-keyout", str(folder / "own.key"), "-out", str(folder / "own.pem")]
    subprocess.run(["openssl", *words.split(), *out], check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(folder / "own.pem", folder / "own.key")
    return tls


def test_a_certificate_of_an_authority_that_is_named_is_taken(authority, ca_file, tmp_path):
    with Service(http(b"safe"), context(authority)) as server:
        assert post(server.url, ca_file=ca_file).body == b"safe"
    with Service(http(b"safe"), self_signed(tmp_path)) as server:
        assert post(server.url, ca_file=str(tmp_path / "own.pem")).body == b"safe"


PAST = {
    "not_before": datetime(2020, 1, 1, tzinfo=UTC),
    "not_after": datetime(2020, 1, 9, tzinfo=UTC),
}
WRONG = {
    "unknown": lambda authority, folder: context(authority),
    "another host's": lambda authority, folder: context(authority, "example.com"),
    "expired": lambda authority, folder: context(authority, **PAST),
    "self-signed": lambda authority, folder: self_signed(folder),
}


@pytest.mark.parametrize("whose", WRONG)
def test_any_other_certificate_is_refused_before_anything_is_sent(
    authority, ca_file, whose, tmp_path
):
    ours = None if whose == "unknown" else ca_file
    refusal, server = failed(
        http(b"unsafe"), "certificate (", tls=WRONG[whose](authority, tmp_path), ca_file=ours
    )
    assert (refusal.reason, refusal.retry, server.requests) == ("certificate", False, [])


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
@pytest.mark.parametrize("version", ["TLSv1", "TLSv1_1"])
def test_a_service_with_an_old_tls_alone_is_not_talked_to(authority, ca_file, version):
    old = context(authority)
    old.set_ciphers("ALL:@SECLEVEL=0")
    old.minimum_version = old.maximum_version = ssl.TLSVersion[version]
    _, server = failed(http(b"unsafe"), "no connection (", tls=old, ca_file=ca_file)
    assert server.requests == []


@pytest.mark.parametrize("end", [Do.RESET, Do.CLOSE])
@pytest.mark.parametrize("said", ["20", ""], ids=["of a length", "until the end"])
def test_a_body_that_breaks_off_without_the_farewell_of_tls_is_no_answer(
    authority, ca_file, end, said
):
    """Neither end says close_notify. Only a body that says how long it is can be known to lack
    something.
    """
    cut = http(b"[[0.25, 0.7", Content_Length=said, Connection="close")
    with Service(then(cut, end), context(authority)) as server:
        with pytest.raises(Unanswered if said else (Unanswered, Unusable)):
            parse(post(server.url, ca_file=ca_file).body)
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    "content", [None, "", "no", "-----BEGIN CERTIFICATE-----\nA\n-----END CERTIFICATE-----"]
)
@pytest.mark.parametrize("url", ["https://127.0.0.1:9", "http://127.0.0.1:9"])
def test_a_file_without_certificates_is_no_authority(tmp_path, content, url):
    if content is not None:
        (tmp_path / "ca.pem").write_text(content)
    refused(
        "--teacher.ca-file: expected certificates", endpoint, url, ca_file=str(tmp_path / "ca.pem")
    )


def not_connected(url: str, words: str = "", **options: Any) -> None:
    refusal = refused(f"no connection ({words}", post, url, error=Refused, **options)
    assert (refusal.reason, refusal.retry) == ("no connection", True)


def test_a_service_that_is_not_there_was_not_asked(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    not_connected(url)

    def unknown(*_: object, **__: object) -> list[object]:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    not_connected("http://nowhere.example", "[Errno -2] Name", authorised_by="these tests")


def test_a_connection_that_is_not_accepted_in_time_was_not_made():
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = listener.getsockname()
        waiting = [socket.socket() for _ in range(8)]
        for item in waiting:  # more than the queue holds: the next one is kept waiting
            item.setblocking(False)
            item.connect_ex(address)
        not_connected(f"http://127.0.0.1:{address[1]}", timeout=0.3)
        for item in waiting:
            item.close()


def test_a_service_without_tls_is_no_https_service():
    with Service(then(http(b"", "400 Bad"), Do.CLOSE)) as server:
        not_connected(server.url.replace("http", "https"), timeout=2.0)


def test_a_question_before_the_run_gets_its_answer_and_follows_redirects():
    pages = {"/a": http(b"", "307 T", Location="/b"), "/b": http(b"b")}
    with Service(lambda request: pages[request.path]) as server:
        assert get(server.url, "/a").body == b"b"
    assert server.requests[1].line == "GET /b HTTP/1.1"
    assert "content-length" not in server.requests[1].headers


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (http(b"who are you", "401 Who"), "401 (who are you); check the key"),
        (http(b"", "403 No"), "403; check the key that --teacher.api-key-env"),
        (http(b"", "404 What"), "404; check --teacher.url"),
        (http(b"", "500 Oops"), "500; is the service ready"),
        (http(b"", "429 Slow"), "429; is the service ready"),
        (http(b"x" * 11), "at most 10 bytes, got more; is the service ready"),
        (http(b"", "307 Away", Location="http://192.0.2.1/"), "name it in --teacher.url"),
        (then(Do.CLOSE), "; is the service ready"),
    ],
)
def test_a_set_up_that_fails_says_what_to_do(what, words):
    with Service(what) as server:
        problem = refused(words, get, server.url, "/v2", most=10)
    assert str(problem).startswith(f"GET {server.url}/v2: ")
    assert str(problem).isprintable()
    assert problem.__context__ is None
    refused("is the server running", get, server.url, "/v2")


@pytest.mark.parametrize(
    "url",
    [
        *(f"http://{host}" for host in ["127.0.0.1:8080?x=1", "user:pw@127.0.0.1", "\uff11.0.0.1"]),
        "ftp://127.0.0.1",
    ],
)
def test_a_url_that_cannot_be_asked_is_said_at_once(url):
    assert "pw" not in str(refused("--teacher.url: expected", post, url))


@pytest.mark.parametrize("name", ["X Key", "", "X:Key", "X\nKey", "\u043a"])
def test_a_header_that_cannot_be_sent_is_said_at_once(name):
    problem = refused(
        "header", endpoint, "http://127.0.0.1:1", api_key_env="DFME_KEY", api_key_header=name
    )
    assert KEY not in str(problem)


def reply_to(service: Endpoint, path: str = "/ask") -> Reply:
    """The answer to one question, made again as often as its refusals allow."""
    while True:
        try:
            return service.post(path, b"question", {"Idempotency-Key": "k1"}, 1000)
        except Refused as refusal:
            if not refusal.retry:
                raise


@pytest.mark.parametrize("status", ["307 Temporary", "308 Permanent"])
def test_after_a_redirect_on_the_same_host_the_same_request_is_one_of_its_own(status):
    def move(request):
        if request.line.startswith("POST /ask "):
            return http(b"moved", status, Location="there?x=1")
        return http(request.body)

    with Service(move) as server, endpoint(server.url, api_key_env="DFME_KEY") as service:
        sent = ("/ask", b"question", {"Idempotency-Key": "k1"}, 1000)
        refusal = refused("redirect (http", service.post, *sent, error=Refused)
        assert (refusal.reason, refusal.retry, refusal.retry_after) == ("redirect", True, None)
        assert len(server.requests) == 1
        assert reply_to(service).body == b"question"
        assert reply_to(service).body == b"question"  # who was told once asks there at once
    first, second, third = server.requests
    assert second.line == third.line == "POST /there?x=1 HTTP/1.1"
    assert (second.headers, second.body) == (first.headers, first.body)
    assert server.connections == 1


def test_an_address_that_is_good_for_a_while_only_is_asked_for_anew():
    """As where each redirect leads to a session that expires after two questions."""
    good = [f"/session{number}" for number in range(4) for _ in range(2)]

    def move(request):
        if request.path == "/ask":
            return http(b"", "307 T", Location=good[0])
        return http(good.pop(0).encode()) if good and request.path == good[0] else http(b"", 404)

    expected = [path.encode() for path in good]
    with Service(move) as server, endpoint(server.url) as service:
        assert [reply_to(service).body for _ in expected] == expected
        good.append("/nowhere")
        good[0] = "/ask"
        refused("redirect", reply_to, service, error=Refused)
    assert len(server.requests) == 8 + 4 + 3 + 2


def test_an_address_that_is_gone_is_forgotten_though_another_request_was_just_led_there():
    """The first of two requests learns that it is gone once the second was led there anew,
    unanswered yet.
    """
    number = itertools.count()
    arrived, led, anew = (threading.Event() for _ in range(3))

    def move(request):
        if request.path == "/ask":
            if led.is_set():
                anew.set()
            return http(b"", "307 T", Location="/old")
        match next(number):
            case 1:  # the first request
                arrived.set()
                led.wait(10)
                return http(b"", 404)
            case 2:
                return http(b"", 404)
            case 3:  # the second one, led there anew
                led.set()
                anew.wait(10)
        return http(b"good")

    with (
        Service(move) as server,
        endpoint(server.url, in_flight=2) as service,
        ThreadPoolExecutor() as pool,
    ):
        assert reply_to(service).body == b"good"
        first = pool.submit(reply_to, service)
        arrived.wait(10)
        assert reply_to(service).body == b"good"
        assert first.result(10).body == b"good"
        assert anew.is_set()


@pytest.mark.parametrize(("path", "sends"), [("/ask", 1), ("/round/0", 2), ("/on/0", 4)])
def test_redirects_that_never_end_are_left(path, sends):
    """To itself, round, and on and on: no request is sent twice to one address."""

    def move(request):
        *way, last = request.path.split("/")
        following = {"round": 1 - int(last), "on": int(last) + 1}[way[1]] if len(way) > 1 else last
        return http(b"", "307 Again", Location=f"{'/'.join(way)}/{following}")

    with Service(move) as server, endpoint(server.url) as service:
        refusal = refused("circle", reply_to, service, path, error=Refused)
    assert (refusal.reason, refusal.retry) == ("redirect", False)
    assert len(server.requests) == sends


@pytest.mark.parametrize("most", [1, 5])
@pytest.mark.parametrize("gone", [False, True])
def test_each_image_that_was_sent_was_charged_or_given_back(gone, most):
    """By the service's own count, with several requests at once."""
    moves = itertools.count()
    where, received = [0], []

    def move(request):
        number = (
            int(request.path[1:].removesuffix("infer") or 0) if request.path[1:2].isdigit() else 0
        )
        received.append(len(read(request).pixels))
        if next(moves) % 7 == 6:
            where[0] += 1
        if number != where[0]:
            return (
                http(b"", 404) if gone and number else http(b"", 307, Location=f"/{where[0]}infer")
            )
        return answer(read(request), scores(read(request).pixels))

    images = torch.rand(60, 1, 2, 2)
    model = V2(infer=lambda reply_to: move(reply_to.request))
    with v2_teacher(model, {"label_mode": "logits"}, in_flight=4) as teacher:
        ledger = Ledger(1000)
        teacher.info = replace(teacher.info, max_batch=most)
        oracle = Oracle(teacher, ledger)
        np.testing.assert_allclose(oracle(images).numpy(), scores(images.numpy()), rtol=1e-6)
        oracle.close()
    assert (ledger.spent, ledger.failed) == (60, 0)
    assert sum(received) == ledger.spent + ledger.refused > 60


@pytest.mark.parametrize("status", ["301 M", "302 F", "303 S", "307 T", "308 P"])
def test_no_other_host_is_asked(status):
    with Service(http(b"gotcha")) as other:
        for host in ("http://127.0.0.1", "http://localhost", "//127.0.0.1"):
            is_not_followed(
                status, f"{host}:{other.port}/ask", f":{other.port}, which is not followed"
            )
    assert other.requests == []


def is_not_followed(status: str, location: str, words: str) -> None:
    refusal, server = failed(http(b"", status, Location=location), words)
    assert (refusal.reason, refusal.retry, len(server.requests)) == ("redirect", False, 1)
    assert server.url in str(refusal)
    assert "pw" not in str(refusal)


def test_no_other_scheme_no_password_no_nonsense_and_no_other_question():
    for target in (
        "https://127.0.0.1:9/ask",
        "http://me:pw@127.0.0.1:9/ask",
        "http://[::1/x",
        "ftp:x",
    ):
        is_not_followed("307 T", target, "which is not followed")
    for status in ("301 M", "302 F", "303 S"):
        is_not_followed(status, "/there", status[:3])


@given(st.text() | st.builds("{}://{}:{}/{}".format, st.text(), st.text(), st.text(), st.text()))
def test_a_redirect_is_an_address_or_none(location):
    address = address_of("http://127.0.0.1:8080/v2", Secrets({"DFME_KEY": KEY}))
    target = redirected(address, location)
    assert target is None or origin(target)
