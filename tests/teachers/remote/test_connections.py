"""Who is asked, and what is said where no connection comes about: certificates, connections, set-up questions."""

from __future__ import annotations

import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from clients import KEY, endpoint, get, post
from service import Do, Service, http, then

from dfme.errors import Refused, UserError

trustme = pytest.importorskip("trustme")

pytestmark = pytest.mark.integration

# Certificates


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


def serving(authority, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context


@pytest.fixture
def ca_file(authority, tmp_path: Path) -> str:
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    return str(tmp_path / "ca.pem")


def test_a_certificate_of_an_authority_that_is_named_is_taken(authority, ca_file):
    with Service(http(b"safe"), serving(authority, "127.0.0.1")) as server:
        assert post(server.url, ca_file=ca_file).body == b"safe"


@pytest.mark.parametrize(("name", "known"), [("127.0.0.1", False), ("example.com", True)])
def test_any_other_certificate_is_refused_before_anything_is_sent(authority, ca_file, name, known):
    server = Service(http(b"unsafe"), serving(authority, name))
    with server, pytest.raises(Refused, match="certificate") as refusal:
        post(server.url, ca_file=ca_file if known else None)
    assert (refusal.value.reason, refusal.value.retry, server.requests) == ("certificate", False, [])


@pytest.mark.parametrize(
    "content", [None, "", "no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"]
)
@pytest.mark.parametrize("url", ["https://127.0.0.1:9", "http://127.0.0.1:9"])
def test_a_file_without_certificates_is_no_authority(tmp_path, content, url):
    if content is not None:
        (tmp_path / "ca.pem").write_text(content)
    with pytest.raises(UserError, match=r"--teacher\.ca-file: expected certificates \(PEM\), got .*ca\.pem: \w+"):
        endpoint(url, ca_file=str(tmp_path / "ca.pem"))


# Connections


def test_a_service_that_is_not_there_was_not_asked(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(Refused, match=r"no connection.*refused") as refusal:
        post(url)
    assert (refusal.value.reason, refusal.value.retry) == ("no connection", True)

    def unknown(*_: object, **__: object) -> list[object]:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(Refused, match="Name or service not known") as refusal:
        post("http://nowhere.example", authorised_by="these tests")
    assert (refusal.value.reason, refusal.value.retry) == ("no connection", True)


def test_a_connection_that_is_not_accepted_in_time_was_not_made():
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = listener.getsockname()
        waiting = [socket.socket() for _ in range(8)]
        for each in waiting:  # more than the queue holds: the next one is kept waiting
            each.setblocking(False)
            each.connect_ex(address)
        with pytest.raises(Refused, match="no connection") as refusal:
            post(f"http://127.0.0.1:{address[1]}", timeout=0.3)
        for each in waiting:
            each.close()
    assert refusal.value.retry


def talk_plainly(listener: socket.socket) -> None:
    with listener.accept()[0] as connection:
        connection.sendall(http(b"", "400 Bad"))


def test_a_service_without_tls_is_no_https_service():
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as thread:
        thread.submit(talk_plainly, listener)
        with pytest.raises(Refused, match=r"no connection \(.*SSL") as refusal:
            post(f"https://127.0.0.1:{listener.getsockname()[1]}")
    assert refusal.value.retry


# Questions before the run


def test_a_question_before_the_run_gets_its_answer():
    with Service(http(b"{}")) as server:
        assert get(server.url, "/v2/models/x").body == b"{}"
    assert server.requests[0].line == "GET /v2/models/x HTTP/1.1"
    assert "content-length" not in server.requests[0].headers


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (http(b"who are you", "401 Who"), r"401 \(who are you\); .*--teacher\.api-key-env"),
        (http(b"", "403 No"), r"403; .*--teacher\.api-key-env"),
        (http(b"", "404 What"), r"404; check --teacher\.url and the model's name"),
        (http(b"", "500 Oops"), r"500; is the service ready"),
        (http(b"", "429 Slow"), r"429; is the service ready"),
        (http(b"x" * 11), r"at most 10 bytes, got more; is the service ready"),
        (http(b"", "307 Away", Location="http://192.0.2.1/"), r"192\.0\.2\.1.*; .*--teacher\.url"),
        (then(Do.CLOSE), r"reset .*; is the service ready"),
    ],
)
def test_a_set_up_that_fails_says_what_to_do(what, words):
    with Service(what) as server, pytest.raises(UserError, match=rf"GET {server.url}/v2: .*{words}") as problem:
        get(server.url, "/v2", most=10)
    assert str(problem.value).isprintable()
    assert problem.value.__context__ is None
    with pytest.raises(UserError, match="is the server running"):
        get(server.url, "/v2")


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8080?x=1", "http://user:pw@127.0.0.1", "ftp://127.0.0.1", "http://\uff11.0.0.1"]
)
def test_a_url_that_cannot_be_asked_is_said_at_once(url):
    with pytest.raises(UserError, match=r"--teacher\.url: expected") as problem:
        post(url)
    assert "pw" not in str(problem.value)


@pytest.mark.parametrize("name", ["X Key", "", "X:Key", "X\nKey", "\u043a"])
def test_a_header_that_cannot_be_sent_is_said_at_once(name):
    with pytest.raises(UserError, match="header") as problem:
        endpoint("http://127.0.0.1:1", api_key_env="DFME_KEY", api_key_header=name)
    assert KEY not in str(problem.value)
