"""Nobody else is asked: redirects on the same host are followed, and no others."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from clients import KEY, endpoint, failed, get, v2_teacher
from hypothesis import given
from hypothesis import strategies as st
from protocols import V2, answer, read, scores
from refusals import refused
from service import Service, http

from dfme.errors import Refused
from dfme.oracle.ledger import Ledger
from dfme.oracle.oracle import Oracle
from dfme.teachers.remote.endpoint import Endpoint, Reply, address_of, origin, redirected
from dfme.teachers.remote.secrets import Secrets

pytestmark = pytest.mark.integration


def asked(service: Endpoint, path: str = "/ask") -> Reply:
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
        assert asked(service).body == b"question"
        assert asked(service).body == b"question"  # who was told once asks there at once
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
        assert [asked(service).body for _ in expected] == expected
        good.append("/nowhere")
        good[0] = "/ask"
        refused("redirect", asked, service, error=Refused)
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
        assert asked(service).body == b"good"
        first = pool.submit(asked, service)
        arrived.wait(10)
        assert asked(service).body == b"good"
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
        refusal = refused("circle", asked, service, path, error=Refused)
    assert (refusal.reason, refusal.retry) == ("redirect", False)
    assert len(server.requests) == sends


def test_a_question_before_the_run_follows_redirects():
    pages = {"/a": http(b"", "307 T", Location="/b"), "/b": http(b"b")}
    with Service(lambda request: pages[request.path]) as server:
        assert get(server.url, "/a").body == b"b"


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
    model = V2(infer=lambda asked: move(asked.request))
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
