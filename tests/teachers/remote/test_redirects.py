"""Nobody else is asked: redirects on the same host are followed, and no others."""

from __future__ import annotations

import re

import pytest
from clients import KEY, post
from hypothesis import given
from hypothesis import strategies as st
from service import Service, http

from dfme.errors import Refused
from teachers.remote.address import address_of, redirected
from teachers.remote.secrets import Secrets

pytestmark = pytest.mark.integration


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
