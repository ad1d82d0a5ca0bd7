"""Who is asked, and what nobody else may learn: redirects, certificates, connections, set-up questions, leaks."""

from __future__ import annotations

import base64
import logging
import re
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest
from clients import KEY, endpoint, get, post, post_once
from hypothesis import given
from hypothesis import strategies as st
from service import Do, Service, http, then

from dfme.errors import DfmeError, Refused, UserError
from teachers.remote.address import address_of, redirected
from teachers.remote.endpoint import Endpoint
from teachers.remote.options import ServiceOptions
from teachers.remote.secrets import Secrets

trustme = pytest.importorskip("trustme")

# Redirects


@pytest.mark.parametrize("status", ["307 Temporary", "308 Permanent"])
def test_a_redirect_on_the_same_host_gets_the_same_request(status):
    def move(request):
        if request.line.startswith("POST /ask "):
            return http(b"moved", status, Location="there?x=1")
        return http(request.body)

    with Service(move) as server:
        assert post(server.url, api_key_env="DFME_KEY").body == b"question"
    first, second = server.requests
    assert second.line == "POST /there?x=1 HTTP/1.1"
    assert (second.headers, second.body) == (first.headers, first.body)
    assert server.connections == 1


def test_redirects_that_never_end_are_left():
    again = http(b"", "307 Again", Location="/ask")
    with Service(again) as server, pytest.raises(Refused, match="redirects") as refusal:
        post(server.url)
    assert (refusal.value.reason, refusal.value.retry) == ("redirect", False)
    assert len(server.requests) == 4


@pytest.mark.parametrize("status", ["301 M", "302 F", "303 S", "307 T", "308 P"])
def test_no_other_host_is_asked(status):
    with Service(http(b"gotcha")) as other:
        for host in (f"http://127.0.0.1:{other.port}", f"http://localhost:{other.port}", f"//127.0.0.1:{other.port}"):
            with Service(http(b"", status, Location=f"{host}/ask")) as server, pytest.raises(Refused) as refusal:
                post(server.url)
            assert re.search(rf"{server.url} to .*:{other.port}, .*--teacher\.url", str(refusal.value))
            assert (refusal.value.reason, refusal.value.retry) == ("redirect", False)
            assert len(server.requests) == 1
    assert other.requests == []


@pytest.mark.parametrize(
    "target", ["https://127.0.0.1:{}/ask", "http://me:pw@127.0.0.1:{}/ask", "http://[::1/x", "ftp:x"]
)
def test_no_other_scheme_no_password_no_nonsense(target):
    def move(_):
        return http(b"", "307 T", Location=target.format(server.port))

    with Service(move) as server, pytest.raises(Refused, match="which is not followed") as refusal:
        post(server.url)
    assert (refusal.value.reason, refusal.value.retry, len(server.requests)) == ("redirect", False, 1)
    assert "pw" not in str(refusal.value)


@pytest.mark.parametrize("status", ["301 M", "302 F", "303 S"])
def test_a_redirect_that_would_change_the_question_is_not_followed(status):
    with Service(http(b"", status, Location="/there")) as server, pytest.raises(Refused, match=status[:3]):
        post(server.url)
    assert len(server.requests) == 1


@given(st.text() | st.builds("{}://{}:{}/{}".format, st.text(), st.text(), st.text(), st.text()))
def test_a_redirect_is_an_address_or_none(location):
    address = address_of("http://127.0.0.1:8080/v2", Secrets({"DFME_KEY": KEY}))
    target = redirected(address, location, Secrets({"DFME_KEY": KEY}))
    assert target is None or target.origin


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


# Leaks


def everything_said(error: BaseException | None) -> str:
    """An exception with all that it is chained to."""
    return "" if error is None else f"{error!r} {error} {everything_said(error.__cause__ or error.__context__)}"


FORMS = [KEY, quote(KEY, safe=""), quote(KEY), base64.b64encode(KEY.encode()).decode()]


@pytest.mark.parametrize("status", ["400 Bad", "401 Who", "422 No", "500 Oops", "503 Busy"])
@pytest.mark.parametrize("written", [*FORMS, "\0".join(KEY), base64.b64encode(f"me:{KEY}".encode()).decode()])
def test_a_service_that_repeats_the_key_does_not_reach_people(status, written):
    with pytest.raises(DfmeError) as outcome:
        post_once(http(f"bad key {written}".encode(), status), api_key_env="DFME_KEY")
    said = everything_said(outcome.value)
    assert "bad key" in said
    assert "***" in said
    assert [form for form in [*FORMS, written[8:-8]] if form in said] == []


def test_a_secret_in_the_url_is_sent_and_shown_nowhere(caplog):
    caplog.set_level(logging.DEBUG)
    options, url = ServiceOptions(url=""), "{}/p/${{DFME_KEY}}?key=${{DFME_KEY}}"

    def turn(request):
        if "moved" in request.line:
            return http(b"", "404 What")
        return http(b"", "307 Away", Location=f"/moved?key={quote(KEY, safe='')}&again={KEY}")

    with Service(turn) as server:
        service = Endpoint(options, url.format(server.url), Secrets({"DFME_KEY": KEY}), {"X-Key": "is ${DFME_KEY}"})
        with closing(service), pytest.raises(Refused) as refusal:
            service.post("", b"", {}, 10)
    quoted = quote(KEY, safe="")
    assert server.requests[0].line == f"POST /p/{quoted}?key={quoted} HTTP/1.1"
    assert server.requests[0].headers["x-key"] == f"is {KEY}"
    shown = [service.url, repr(service), everything_said(refusal.value)]
    logged = [record.getMessage() for record in caplog.records if "receive_response_headers" not in record.getMessage()]
    assert any("HTTP Request" in line for line in logged)
    assert [text for text in shown + logged if any(form in text for form in FORMS)] == []


def test_a_secret_so_short_that_it_is_in_the_port_is_hidden_all_the_same():
    with Service(http(b"yes")) as server:
        service = Endpoint(ServiceOptions(url=""), server.url, Secrets({"PORT": str(server.port)}))
        assert service.post("/ask", b"", {}, 10).body == b"yes"
        service.close()
    assert str(server.port) not in repr(service)
