"""Secrets come from the environment by name, go where they are sent, and show up nowhere else."""

import base64
import html
import json
import logging
from contextlib import closing
from itertools import product
from urllib.parse import parse_qs, quote, quote_plus, urlencode, urlsplit

import pytest
from clients import KEY as SENT
from clients import post
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from service import Request, Service, http
from tables import all_hold

from dfme.errors import DfmeError, Refused
from dfme.teachers.options import ServiceOptions
from dfme.teachers.remote.endpoint import Endpoint
from dfme.teachers.remote.secrets import Secrets

KEY = "s3cr+t/k=y?&\"<'\\ 7"

values = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40)
long_values = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=9, max_size=40)


def test_they_come_from_the_environment_by_name(monkeypatch):
    monkeypatch.setenv("DFME_TEST_KEY", " abc\n")
    secrets = Secrets.from_environment(["DFME_TEST_KEY"])
    assert (
        secrets.fill("Bearer ${DFME_TEST_KEY}, twice ${DFME_TEST_KEY}") == "Bearer abc, twice abc"
    )
    assert Secrets.from_environment([]).fill("nothing $x {y} $") == "nothing $x {y} $"


@pytest.mark.parametrize(
    "value", [None, "", "  ", "two\nlines", "\u043a\u043b\u044e\u0447", "a\x00b"]
)
def test_a_variable_that_holds_no_key_is_named_but_not_shown(monkeypatch, value):
    if value is None or "\x00" in value:  # an environment cannot hold a zero byte
        monkeypatch.delenv("DFME_TEST_KEY", raising=False)
    else:
        monkeypatch.setenv("DFME_TEST_KEY", value)
    refusal = refused("DFME_TEST_KEY", Secrets.from_environment, ["DFME_TEST_KEY"])
    assert "lines" not in str(refusal)


@pytest.mark.parametrize("text", ["${OTHER}", "${}", "${A-B}", "${HOME}", "x ${KEY} ${KEY }"])
def test_a_placeholder_without_a_secret_is_refused(text):
    assert KEY not in str(refused("the name of a secret", Secrets({"KEY": KEY}).fill, text))


def test_a_value_that_looks_like_a_placeholder_is_not_filled_again():
    assert Secrets({"A": "${B}", "B": "x"}).fill("${A}") == "${B}"


@given(values)
def test_a_url_carries_the_value_as_it_is(value):
    url = Secrets({"KEY": value}).fill_url("http://127.0.0.1/p?a=1&key=${KEY}&b=2")
    assert parse_qs(urlsplit(url).query) == {"a": ["1"], "key": [value], "b": ["2"]}


@pytest.mark.parametrize(
    "written",
    [
        KEY, quote(KEY), quote(KEY, safe=""), quote_plus(KEY), quote(KEY, safe="").lower(),
        urlencode({"k": KEY}),
        json.dumps({"error": f"bad key {KEY}"}), repr(KEY), html.escape(KEY),
        base64.b64encode(KEY.encode()).decode(), base64.urlsafe_b64encode(KEY.encode()).decode().rstrip("="),
    ],
)  # fmt: skip
def test_every_way_of_writing_it_is_hidden(written):
    secrets = Secrets({"KEY": KEY})
    hidden = secrets.hide(f"before {written} after")
    assert "***" in hidden
    assert hidden.startswith("before ")
    assert hidden.endswith(" after")
    assert written not in hidden
    assert "s3cr" not in hidden


@given(values, st.text(max_size=20), st.text(max_size=20))
def test_no_text_that_was_hidden_holds_the_value(value, before, after):
    if value in "***":
        return
    assert value not in Secrets({"KEY": value}).hide(before + value + after).replace("***", "\0")


@given(long_values, st.binary(max_size=9), st.binary(max_size=9))
def test_base64_of_more_than_the_value_is_hidden_too(value, before, after):
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        written = encode(before + value.encode() + after).decode()
        hidden = Secrets({"KEY": value}).hide(written)
        assert "***" in hidden
        # At both ends of the value a character may also hold bits of its neighbours; no more than
        # those stay.
        assert len(written) - len(hidden) + 3 >= len(value) * 4 // 3 - 1


def test_the_longer_of_two_secrets_goes_first_and_other_text_stays():
    assert Secrets({"A": "abc", "B": "abcdef"}).hide("abcdef abc") == "*** ***"
    assert (
        Secrets({}).hide("a plain text")
        == Secrets({"KEY": KEY}).hide("a plain text")
        == "a plain text"
    )


def everything_said(error: BaseException | None) -> str:
    """An exception with all that it is chained to."""
    if error is None:
        return ""
    return f"{error!r} {error} {everything_said(error.__cause__ or error.__context__)}"


FORMS = [SENT, quote(SENT, safe=""), quote(SENT), base64.b64encode(SENT.encode()).decode()]


def does_not_reach_people(url: str, status: str, written: str) -> None:
    sent = f"{status}|bad key {written}".encode()
    said = everything_said(
        refused("bad key", post, url, body=sent, api_key_env="DFME_KEY", error=DfmeError)
    )
    assert "***" in said
    assert [form for form in [*FORMS, written[8:-8]] if form in said] == []


@pytest.mark.integration
def test_a_service_that_repeats_the_key_does_not_reach_people():
    def repeat(request: Request) -> bytes:
        status, _, words = request.body.decode().partition("|")
        return http(words.encode(), status)

    writings = [*FORMS, "\0".join(SENT), base64.b64encode(f"me:{SENT}".encode()).decode()]
    statuses = ["400 Bad", "401 Who", "422 No", "500 Oops", "503 Busy"]
    with Service(repeat) as service:
        all_hold(does_not_reach_people, product([service.url], statuses, writings))


@pytest.mark.integration
def test_a_secret_in_the_url_is_sent_and_shown_nowhere(caplog):
    caplog.set_level(logging.DEBUG)
    quoted = quote(SENT, safe="")

    def turn(request):
        location = "" if "moved" in request.line else f"/moved?key={quoted}&again={SENT}"
        return http(b"", "307 Away" if location else "404 What", Location=location)

    with Service(turn) as server:
        url, secrets = (
            f"{server.url}/p/${{DFME_KEY}}?key=${{DFME_KEY}}",
            Secrets({"DFME_KEY": SENT}),
        )
        service = Endpoint(ServiceOptions(url=""), url, secrets, {"X-Key": "is ${DFME_KEY}"})
        with closing(service):
            refusal = refused("", service.post, "", b"", {}, 10, error=Refused)
    assert server.requests[0].line == f"POST /p/{quoted}?key={quoted} HTTP/1.1"
    assert server.requests[0].headers["x-key"] == f"is {SENT}"
    shown = [service.url, everything_said(refusal)]
    logged = [
        line
        for line in map(logging.LogRecord.getMessage, caplog.records)
        if "receive_resp" not in line
    ]
    assert logged
    assert [text for text in shown + logged if any(form in text for form in FORMS)] == []


@pytest.mark.integration
def test_a_secret_so_short_that_it_is_in_the_port_is_hidden_all_the_same():
    with Service(http(b"yes")) as server:
        service = Endpoint(ServiceOptions(url=""), server.url, Secrets({"PORT": str(server.port)}))
        assert service.post("/ask", b"", {}, 10).body == b"yes"
        service.close()
    assert str(server.port) not in service.url
