"""Who is asked, and what is said where no connection comes about: certificates, connections, set-up questions."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from clients import KEY, endpoint, get, post
from service import Do, Service, http, then

from dfme.errors import Refused, Unanswered, Unusable, UserError
from dfme.teachers.remote.json_bodies import parse

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


def expired(authority) -> ssl.SSLContext:
    past = datetime(2020, 1, 1, tzinfo=UTC)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", not_before=past, not_after=past + timedelta(days=9)).configure_cert(context)
    return context


def self_signed(folder: Path) -> ssl.SSLContext:
    """As ``openssl req -x509`` makes it: with no authority at all."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the program openssl")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
    out = ["-keyout", str(folder / "own.key"), "-out", str(folder / "own.pem")]
    subprocess.run(["openssl", *words.split(), *out], check=True, capture_output=True)
    context.load_cert_chain(folder / "own.pem", folder / "own.key")
    return context


def test_a_certificate_that_its_owner_signed_is_taken_where_it_is_named_itself(tmp_path):
    with Service(http(b"safe"), self_signed(tmp_path)) as server:
        assert post(server.url, ca_file=str(tmp_path / "own.pem")).body == b"safe"


@pytest.mark.parametrize("whose", ["unknown", "another host's", "expired", "self-signed"])
def test_any_other_certificate_is_refused_before_anything_is_sent(authority, ca_file, whose, tmp_path):
    context = {
        "unknown": lambda: serving(authority, "127.0.0.1"),
        "another host's": lambda: serving(authority, "example.com"),
        "expired": lambda: expired(authority),
        "self-signed": lambda: self_signed(tmp_path),
    }[whose]()
    with Service(http(b"unsafe"), context) as server, pytest.raises(Refused, match=r"certificate \(") as refusal:
        post(server.url, ca_file=None if whose == "unknown" else ca_file)
    assert (refusal.value.reason, refusal.value.retry, server.requests) == ("certificate", False, [])
    assert str(refusal.value).isprintable()


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
@pytest.mark.parametrize("version", ["TLSv1", "TLSv1_1"])
def test_a_service_with_an_old_tls_alone_is_not_talked_to(authority, ca_file, version):
    context = serving(authority, "127.0.0.1")
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
    with Service(http(b"unsafe"), context) as server, pytest.raises(Refused, match=r"no connection \(.*SSL") as refusal:
        post(server.url, ca_file=ca_file)
    assert server.requests == []
    assert str(refusal.value).isprintable()


def test_no_redirect_leads_out_of_tls(authority, ca_file):
    with Service(http(b"unsafe")) as plain:

        def move(_):
            return http(b"", "307 T", Location=f"http://127.0.0.1:{server.port}/ask")

        with Service(move, serving(authority, "127.0.0.1")) as server, pytest.raises(Refused, match="not followed"):
            post(server.url, ca_file=ca_file)
        assert (len(server.requests), plain.requests) == (1, [])


@pytest.mark.parametrize("end", [Do.RESET, Do.CLOSE])
@pytest.mark.parametrize("said", ["20", ""], ids=["of a length", "until the end"])
def test_a_body_that_breaks_off_without_the_farewell_of_tls_is_no_answer(authority, ca_file, end, said):
    """Neither end says close_notify. Only a body that says how long it is can be known to lack something."""
    cut = http(b"[[0.25, 0.7", Content_Length=said, Connection="close")
    with Service(then(cut, end), serving(authority, "127.0.0.1")) as server:
        if said:
            with pytest.raises(Unanswered, match="reset"):
                post(server.url, ca_file=ca_file)
        else:
            with pytest.raises((Unanswered, Unusable)):
                parse(post(server.url, ca_file=ca_file).body)
        assert len(server.requests) == 1


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
