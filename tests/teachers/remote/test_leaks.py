"""A secret goes to the service, and is shown to nobody else."""

import base64
import logging
from contextlib import closing
from itertools import product
from urllib.parse import quote

import pytest
from clients import KEY, post
from refusals import refused
from service import Request, Service, http
from tables import all_hold

from dfme.errors import DfmeError, Refused
from dfme.teachers.remote.endpoint import Endpoint
from dfme.teachers.remote.options import ServiceOptions
from dfme.teachers.remote.secrets import Secrets

pytestmark = pytest.mark.integration


def everything_said(error: BaseException | None) -> str:
    """An exception with all that it is chained to."""
    if error is None:
        return ""
    return f"{error!r} {error} {everything_said(error.__cause__ or error.__context__)}"


FORMS = [KEY, quote(KEY, safe=""), quote(KEY), base64.b64encode(KEY.encode()).decode()]


def does_not_reach_people(url: str, status: str, written: str) -> None:
    sent = f"{status}|bad key {written}".encode()
    said = everything_said(refused("bad key", post, url, body=sent, api_key_env="DFME_KEY", error=DfmeError))
    assert "***" in said
    assert [form for form in [*FORMS, written[8:-8]] if form in said] == []


def test_a_service_that_repeats_the_key_does_not_reach_people():
    def repeat(request: Request) -> bytes:
        status, _, words = request.body.decode().partition("|")
        return http(words.encode(), status)

    writings = [*FORMS, "\0".join(KEY), base64.b64encode(f"me:{KEY}".encode()).decode()]
    statuses = ["400 Bad", "401 Who", "422 No", "500 Oops", "503 Busy"]
    with Service(repeat) as service:
        all_hold(does_not_reach_people, product([service.url], statuses, writings))


def test_a_secret_in_the_url_is_sent_and_shown_nowhere(caplog):
    caplog.set_level(logging.DEBUG)
    quoted = quote(KEY, safe="")

    def turn(request):
        location = "" if "moved" in request.line else f"/moved?key={quoted}&again={KEY}"
        return http(b"", "307 Away" if location else "404 What", Location=location)

    with Service(turn) as server:
        url, secrets = f"{server.url}/p/${{DFME_KEY}}?key=${{DFME_KEY}}", Secrets({"DFME_KEY": KEY})
        service = Endpoint(ServiceOptions(url=""), url, secrets, {"X-Key": "is ${DFME_KEY}"})
        with closing(service):
            refusal = refused("", service.post, "", b"", {}, 10, error=Refused)
    assert server.requests[0].line == f"POST /p/{quoted}?key={quoted} HTTP/1.1"
    assert server.requests[0].headers["x-key"] == f"is {KEY}"
    shown = [service.url, everything_said(refusal)]
    logged = [
        line for line in map(logging.LogRecord.getMessage, caplog.records) if "receive_resp" not in line
    ]
    assert logged
    assert [text for text in shown + logged if any(form in text for form in FORMS)] == []


def test_a_secret_so_short_that_it_is_in_the_port_is_hidden_all_the_same():
    with Service(http(b"yes")) as server:
        service = Endpoint(ServiceOptions(url=""), server.url, Secrets({"PORT": str(server.port)}))
        assert service.post("/ask", b"", {}, 10).body == b"yes"
        service.close()
    assert str(server.port) not in service.url
