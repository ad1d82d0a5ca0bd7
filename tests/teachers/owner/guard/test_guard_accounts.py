"""Who asks, whatever else is in a request, and how much: the meter by an artificial clock."""

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

import pytest
from guarded_apps import BODY, answered, answering, guard, scope_of
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request

import dfme
from dfme.teachers.owner.guard.meter import Meter

Headers = list[tuple[str, str]]


def asked(app: Any, headers: Headers, query: str = "", body: bytes = BODY) -> tuple[int, bytes]:
    scope = scope_of("POST", "/predict", {})
    scope["headers"] = [(name.lower().encode(), value.encode()) for name, value in headers]
    scope["query_string"] = query.encode()
    status, _, content = asyncio.run(answered(app, scope, body))
    return status, content


def accounts(monkeypatch: pytest.MonkeyPatch, app: dfme.Guard) -> list[str]:
    """The accounts that a guard has admitted, as they come."""
    admitted: list[str] = []
    admit = app._gate.admit

    def noted(account: str, images: int) -> None:
        admitted.append(account)
        admit(account, images)

    monkeypatch.setattr(app._gate, "admit", noted)
    return admitted


READERS: dict[str, tuple[Any, Headers, str]] = {
    "the last header": (
        lambda scope: dict(scope["headers"]).get(b"x-api-key", b"").decode(),
        [("X-API-Key", "eve")],
        "",
    ),
    "the first header": (
        lambda scope: Request(scope).headers["x-api-key"],
        [("X-API-Key", "eve")],
        "",
    ),
    "all headers": (
        lambda scope: ",".join(Request(scope).headers.getlist("x-api-key")),
        [("X-API-Key", "eve")],
        "",
    ),
    "a name": ("X-API-Key", [("X-API-Key", "eve")], ""),
    "authorization": ("Authorization", [("Authorization", "Bearer eve")], ""),
    "a cookie": (lambda scope: Request(scope).cookies["sid"], [("Cookie", "a=b; sid=eve")], ""),
    "a parameter": (lambda scope: Request(scope).query_params["key"], [], "a=b&key=eve"),
    "the first parameter": (
        lambda scope: parse_qs(scope["query_string"].decode())["key"][0],
        [],
        "a=b&key=eve",
    ),
    "the address": (
        lambda scope: Request(scope).headers["x-forwarded-for"].split(",")[0],
        [("X-Forwarded-For", "1.2.3.4, 5.6.7.8")],
        "",
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_what_says_who_asks_may_stand_once(name: str) -> None:
    account, headers, query = READERS[name]
    app = guard(answering(b"", 404), account=account, defences="quota:images=100")
    harmless = [
        ("Accept", "a/b"),
        ("Accept", "c/d"),
        ("Cookie", "x=1; y=2"),
        ("X-Other", "1"),
        ("X-Other", "2"),
    ]
    for more, query_more in ((harmless, "&q=1&q=2"), ([], "")):
        added = more if name != "a cookie" else [pair for pair in more if pair[0] != "Cookie"]
        assert asked(app, headers + added, query + query_more)[0] == 404, name
    for value in ("mallory", "eve", ""):
        again = [(pair, re.sub("eve|1.2.3.4", value, text)) for pair, text in headers]
        again_query = query.replace("eve", value)
        for more, query_more in ((again, again_query), (again[::-1], again_query)):
            for both in (headers + more, more + headers):
                status, body = asked(app, both, f"{query}&{query_more}" if query else "")
                assert (status, b"once" in body) == (400, True), (name, value)
    if headers:
        other_case = [(pair.upper().replace("-", "_"), text) for pair, text in headers]
        assert asked(app, headers + other_case, query)[0] == 400
    assert app.meter.refused["account"] >= 6


def test_two_cookies_of_one_name_in_one_header_are_two() -> None:
    account: Callable[[Any], str] = lambda scope: Request(scope).cookies.get("sid", "")  # noqa: E731
    app = guard(answering(b"", 404), account=account)
    assert asked(app, [("Cookie", "sid=a; sid=b")])[0] == 400
    assert asked(app, [("Cookie", "sid=a; x=1; x=2")])[0] == 404


@pytest.mark.parametrize(
    ("name", "same"),
    [
        (
            "Authorization",
            [
                "Bearer eve",
                "bearer eve",
                "BEARER  eve",
                "bEaReR eve ",
                " Bearer\teve",
                "Bearer \t eve",
            ],
        ),
        (
            "authorization",
            ["Basic ZXZlOng=", "basic ZXZlOng", "Basic ZX-ZlOng=", "BASIC ZXZlOng=="],
        ),
        ("X-API-Key", ["eve", " eve", "eve "]),
    ],
)
def test_one_key_in_many_spellings_is_one_account(
    name: str, same: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = guard(answering(b"", 404), account=name)
    admitted = accounts(monkeypatch, app)
    for text in same:
        assert asked(app, [(name, text)])[0] == 404
    assert asked(app, [(name, "Bearer other")])[0] == 404
    assert len(set(admitted)) == 2
    assert asked(app, [])[0] == 404
    assert asked(app, [(name, "eve, other")])[0] == 400  # two headers that a proxy has made one
    if name == "Authorization":
        assert (
            asked(app, [(name, "Bearer eve 7")])[0] == 400
        )  # some apps read the first token alone
        assert asked(app, [(name, "eve")])[0] == 404


def test_an_account_that_cannot_be_read_is_a_500_that_tells_nothing() -> None:
    for account in (lambda scope: dict(scope["headers"])[b"x-key"].decode(), lambda scope: None):
        app = guard(answering(b"{}"), account=account)
        status, body = asked(app, [])
        assert (status, app.meter.failed) == (500, 1)
        assert json.loads(body) == {
            "error": "the model failed on this request; it has been counted"
        }
    with pytest.raises(
        dfme.UserError, match="account: expected the name of a header or a callable, got 'a b'"
    ):
        guard(answering(), account="a b")


@pytest.mark.parametrize(
    "header", ["Content-Type", "content-encoding", "Inference-Header-Content-Length"]
)
def test_a_header_by_which_a_body_is_read_may_stand_once(header: str) -> None:
    app = guard(answering(b"{}"))
    assert asked(app, [(header, "10"), (header.replace("-", "_"), "12")])[0] == 400
    assert app.meter.refused == {"malformed": 1}


class Clock:
    """Stands still until it is moved."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_coming_again_after_the_time_named_is_enough():
    clock = Clock()
    meter = Meter(images_per_second=100, requests_per_second=2, clock=clock)
    assert meter.admit(64) == 0
    assert meter.admit(64) == 1  # 36 of 100 images are left, 28 more take 0.28 s
    clock.now += 0.28
    assert meter.admit(64) == 0
    assert meter.admit(1000) == 1  # a whole second's worth, then ten seconds to pay it off
    clock.now += 1
    assert (meter.admit(1000), meter.admit(1)) == (0, 10)
    clock.now += 9.01
    assert meter.admit(1) == 0
    clock.now += 9
    # by requests, which take nothing off the images
    assert [meter.admit(5) for _ in range(4)] == [0, 0, 1, 1]


@settings(max_examples=100, deadline=None)
@given(
    st.floats(0.01, 1000),
    st.lists(st.tuples(st.integers(1, 500), st.floats(0, 3)), min_size=1, max_size=40),
)
def test_no_stretch_of_time_has_more_than_its_share(
    rate: float, asked: list[tuple[int, float]]
) -> None:
    clock = Clock()
    meter = Meter(images_per_second=rate, clock=clock)
    served: list[tuple[float, int]] = []
    for images, pause in asked:
        clock.now += pause
        wait = meter.admit(images)
        if wait:
            assert wait >= 1
            clock.now += wait
            assert meter.admit(images) == 0
        served.append((clock.now, images))
    for first, (start, _) in enumerate(served):
        for last in range(first, len(served)):
            before = sum(images for _, images in served[first:last])  # the last one may overdraw
            assert before <= rate * (served[last][0] - start) + rate + 0.05


def test_counts_are_in_the_text_format_of_prometheus():
    meter = Meter()
    meter.ask(7)
    meter.ask(5)
    meter.seconds, meter.answered, meter.failed = 0.25, 1, 1
    meter.refused.update({"rate limit": 2, "malformed": 1})
    text = meter.exposition("digits")
    sample = re.compile(r'(dfme_\w+)\{model="digits"(?:,reason="([\w ]+)")?\} ([\d.]+)')
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    samples = {
        match.groups()[:2]: float(match[3]) for line in lines if (match := sample.fullmatch(line))
    }
    assert samples == {
        ("dfme_images_served_total", None): 12,
        ("dfme_requests_served_total", None): 2,
        ("dfme_requests_answered_total", None): 1,
        ("dfme_requests_failed_total", None): 1,
        ("dfme_model_seconds_total", None): 0.25,
        ("dfme_requests_refused_total", "malformed"): 1,
        ("dfme_requests_refused_total", "rate limit"): 2,
    }
    assert len(samples) == len(lines)
    assert text.count("# TYPE") == text.count("# HELP") == 6
    assert meter.summary().startswith(
        "served 12 images in 2 requests (0.2 s of the model); 1 of them f"
    )
