"""A secret goes to the service, and is shown to nobody else."""

from __future__ import annotations

import base64
import logging
from contextlib import closing
from itertools import product
from urllib.parse import quote

import pytest
from clients import KEY, post
from service import Request, Service, http
from tables import all_hold

from dfme.errors import DfmeError, Refused
from dfme.teachers.remote.endpoint import Endpoint
from dfme.teachers.remote.options import ServiceOptions
from dfme.teachers.remote.secrets import Secrets

pytestmark = pytest.mark.integration


def everything_said(error: BaseException | None) -> str:
    """An exception with all that it is chained to."""
    return "" if error is None else f"{error!r} {error} {everything_said(error.__cause__ or error.__context__)}"


FORMS = [KEY, quote(KEY, safe=""), quote(KEY), base64.b64encode(KEY.encode()).decode()]


def does_not_reach_people(url: str, status: str, written: str) -> None:
    with pytest.raises(DfmeError) as outcome:
        post(url, body=f"{status}|bad key {written}".encode(), api_key_env="DFME_KEY")
    said = everything_said(outcome.value)
    assert "bad key" in said
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
