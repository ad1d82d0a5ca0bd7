"""``dfme.Guard`` and the paths of others' routers: no spelling of a guarded route gets undefended
scores.
"""

import asyncio
import http.client
import logging
import random
import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

import pytest
import torch
from guarded_apps import BODY, answered, guard, leaks, model, scope_of, served
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Host, Mount, Route, Router
from tables import exhaustive

import dfme

fastapi = pytest.importorskip("fastapi")

ran = list[str]()
"""Paths at which a handler gave raw scores: the truth that no guard has a part in."""


async def score(request: Request) -> JSONResponse:
    ran.append(request.scope["path"])
    images = torch.tensor((await request.json())["images"])
    return JSONResponse({"scores": model(images).tolist()})


async def free(request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"free: {request.scope['path']}")


POSTS: dict[str, Any] = {"methods": ["POST"]}


def flat() -> Any:
    routes = ["/predict", "/v1/models/{m}:classify", "/models/{name:path}/predict", "/r"]
    return Starlette(routes=[Route(path, score, **POSTS) for path in routes])


def included() -> Any:
    app = fastapi.FastAPI()
    inner = fastapi.APIRouter(prefix="/models")
    inner.add_api_route("/{name:path}/predict", score, methods=["POST"])
    app.include_router(inner)
    app.add_api_route("/predict", score, methods=["POST"])
    app.add_api_route("/v1/models/{m}:classify", score, methods=["POST"])
    return app


def mounted() -> Any:
    return Starlette(routes=[Mount("/sub", Mount("/deep", included())), Mount("/r", flat())])


def rooted() -> Any:
    app = fastapi.FastAPI(root_path="/r")
    app.add_api_route("/", score, methods=["POST"])
    app.add_api_route("/predict", score, methods=["POST"])
    app.mount("/sub", flat())
    return app


def hosted() -> Any:
    return Router([Host("x", flat()), Route("/{rest:path}", free, **POSTS)])


def rewritten() -> Any:
    """An app whose own middleware tidies paths up before its router, in ways of its own."""
    app = flat()

    async def tidy(request: Request, call_next: Any) -> Any:
        request.scope["path"] = unquote(request.scope["path"]).strip().lower().replace("//", "/")
        return await call_next(request)

    app.add_middleware(BaseHTTPMiddleware, dispatch=tidy)
    return app


async def regular(scope: Any, receive: Any, send: Any) -> None:
    """No framework: expressions that ignore case and end in a dollar sign."""
    path = unquote(scope["path"])
    scored = re.match(
        r"/?(api/)?(predict|models/.*/predict|v1/models/[^/]*:classify)/?$", path, re.I | re.S
    )
    handler = Route("/{rest:path}", score if scored else free, **POSTS)
    await handler.app(scope, receive, send)


APPS: dict[str, Callable[[], Any]] = {
    "starlette": flat,
    "fastapi": included,
    "mounted": mounted,
    "root_path": rooted,
    "host": hosted,
    "middleware": rewritten,
    "expressions": lambda: regular,
}
GUARDED = ["/predict", "/v1/models/{m}:classify", "/models/{name:path}/predict"]
BASES = ["/predict", "/v1/models/m:classify", "/models/a/predict", "/models/a/b/predict", "/r"]
BASES += ["/models//predict", "/models/./predict", "/models/%20/predict"]
PREFIXES = {"mounted": ["/sub/deep", "/r", "/r/"], "root_path": ["", "/r", "/sub", "/r/sub"]}


def paths_of(name: str) -> list[str]:
    return GUARDED + {"fastapi": [], "root_path": ["/", "/r"]}.get(name, ["/r"])


INSERTED = [
    *(
        "%0A",
        "%0D",
        "%00",
        "%09",
        "%20",
        "%0B",
        "%1f",
        "%7f",
        "%85",
        "%C2%85",
        "%C2%A0",
        "%E2%80%A8",
    ),
    *(
        ";x",
        ";x=/y",
        "%3Bx",
        ".",
        "..",
        "%2e",
        "%2E%2e",
        "%252e",
        "/",
        "//",
        "%2f",
        "%252F",
        "%25252f",
    ),
    *(
        "\\",
        "%5c",
        "%255c",
        "?",
        "%3f",
        "#",
        "%23",
        "%c0%af",
        "%e0%80%af",
        "%c1%b0",
        "%ff",
        "+",
        "%",
    ),
    *(
        "%EF%BC%8F",
        "%E2%80%8B",
        "%EF%BB%BF",
        "%D9%A1",
        "%EF%BC%91",
        "%CC%81",
        "/../",
        "/./",
        "/x/../",
    ),
]


COMMON = [";x", "%3Bx", ".", "..", "/", "/.", "%20", "%2e", "%5c"]


def spelled(text: str, chance: random.Random) -> str:
    """A path in another spelling: some of its characters encoded, or changed, or with more between
    them.
    """
    pieces = re.findall(r"%..|.", text)
    for _ in range(chance.choice([0, 0, 1, 2])):
        place = chance.randrange(len(pieces))
        pieces[place] = encoded(pieces[place], chance)
    borders = [place for place, mark in enumerate(pieces) if mark in "/:"]
    places = [
        *borders,
        *(place + 1 for place in borders),
        len(pieces),
        chance.randrange(len(pieces)),
    ]
    for place in sorted(chance.sample(places, chance.choice([0, 1, 1, 1, 2])), reverse=True):
        pieces.insert(place, chance.choice(chance.choice([COMMON, INSERTED])))
    return "".join(pieces) + chance.choice(
        ["", "", "%0A", "%0A", "%0a", "/", "%0A/", "/%0A", "%20", ";x%0A", "%20%0A"]
    )


def encoded(mark: str, chance: random.Random) -> str:
    """A character as some would read it: encoded, once or more often, wide, overlong, in the other
    case.
    """
    if len(mark) > 1:
        return mark
    once = f"%{ord(mark):02x}"
    twice = once.replace("%", "%25")
    wide = "".join(f"%{byte:02X}" for byte in chr(ord(mark) + 0xFEE0).encode())
    forms = [once, twice, twice.replace("%", "%25"), wide, f"%c1%{ord(mark) | 128:02x}"]
    return chance.choice([*forms, mark.swapcase(), mark * 2])


def spellings(name: str, count: int, seed: int) -> Iterator[tuple[str, str]]:
    """Paths as a client of an app may send them, and the server's root path."""
    chance = random.Random(seed)
    prefixes = PREFIXES.get(name, ["", "", "/r"])
    for number in range(count):
        base = chance.choice(prefixes) + BASES[number % len(BASES)]
        yield (
            base if number < len(BASES) else spelled(base, chance),
            chance.choice(["", "", "", "/r"]),
        )


def scope_as_served(raw: str, root: str) -> dict[str, Any]:
    """The scope that uvicorn makes of a request's target."""
    target, _, query = raw.partition("?")
    scope = scope_of("POST", root + target, {"Host": "x"})
    scope["path"] = root + unquote(target)
    scope["root_path"] = root
    scope["query_string"] = query.encode()
    return scope


def behind_guard(name: str, inside: bool) -> tuple[Any, dfme.Guard]:
    """An app with its guard around it or, as the docs have it, in its own middleware."""
    app = APPS[name]()
    if not inside:
        before = guard(app, paths=paths_of(name))
        return before, before
    guards: list[dfme.Guard] = []
    app.add_middleware(lambda inner: guards.append(guard(inner, paths=paths_of(name))) or guards[0])
    asyncio.run(answered(app, scope_as_served("/health", "")))
    return app, guards[0]


async def attacked(
    name: str, app: Any, before: dfme.Guard, count: int, seed: int
) -> dict[str, int]:
    """How many requests came to which end; AssertionError for one that got what it should not."""
    ends = dict.fromkeys(("defended", "scored", "refused"), 0)
    for raw, root in spellings(name, count, seed):
        ran.clear()
        earlier = (before.meter.answered, before.meter.failed, before.meter.images)
        status, _, body = await answered(app, scope_as_served(raw, root))
        assert not leaks((status, {}, body)), (raw, root)
        scores = status == 200 and b"scores" in body
        counted = (before.meter.answered, before.meter.failed, before.meter.images)
        if scores:
            assert counted == (earlier[0] + 1, earlier[1], earlier[2] + 3), (raw, root)
        elif ran:
            assert counted[1] == earlier[1] + 1, (raw, root)
        ends["defended"] += scores
        ends["scored"] += bool(ran)
        ends["refused"] += status == 400
    return ends


@pytest.mark.parametrize("count", [150, *exhaustive(3_000)])
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("name", APPS)
def test_no_spelling_of_a_guarded_route_gets_undefended_scores(
    name: str, inside: bool, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if inside and (count > 150 or not hasattr(APPS[name](), "add_middleware")):
        pytest.skip("it has no middleware, or few spellings are enough")
    monkeypatch.setattr(logging.root.manager, "disable", logging.ERROR)
    app, before = behind_guard(name, inside)
    ends = asyncio.run(attacked(name, app, before, count, 7))
    assert ends["defended"] > max(1, count // 150)
    assert ends["refused"] > count // 15


def test_the_fuzzer_finds_what_the_bare_apps_give() -> None:
    for name, make in APPS.items():
        ran.clear()
        scopes = [scope_as_served(raw, root) for raw, root in spellings(name, 500, 7)]

        async def all_of(app: Any, scopes: list[dict[str, Any]] = scopes) -> None:
            for scope in scopes:
                await answered(app, scope)

        asyncio.run(all_of(make()))
        assert len(set(ran)) > 5, name
        assert any(path.endswith("\n") for path in ran) or name == "middleware", name


@pytest.mark.integration
@pytest.mark.parametrize("name", ["fastapi", "mounted", "root_path"])
def test_none_of_some_hundred_spellings_over_a_socket_gets_undefended_scores(name: str) -> None:
    app, before = behind_guard(name, inside=False)
    defended = 0
    with served(app) as port:
        for raw, _ in spellings(name, 300, 5):
            ran.clear()
            answered_before = before.meter.answered
            wire = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            wire._validate_path = lambda url: None  # type: ignore[attr-defined]
            wire.request("POST", raw, BODY)
            response = wire.getresponse()
            body = response.read()
            wire.close()
            assert not leaks((response.status, {}, body)), raw
            scores = response.status == 200 and b"scores" in body
            assert before.meter.answered == answered_before + scores, raw
            defended += scores
    assert defended > 1


KNOWN = {
    "starlette": ["/v1/models/m;x:classify%0A", "/v1/models/.%2e:classify%0A", "/r%0A"],
    "fastapi": [
        "/models/./predict%0A",
        "/models//predict%0A",
        "/models/../predict%0A",
        "/predict%0A",
    ],
    "mounted": ["/r/models/;x/predict%0A", "/sub/deep/models/%20/predict%0A", "/r//predict%0A"],
    "root_path": ["/r%0A", "/r/predict%0A", "/sub/models//predict%0A", "/r/%0A"],
}


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("root", ["", "/r"])
def test_what_a_router_takes_in_spite_of_its_spelling_is_refused(name: str, root: str) -> None:
    app, before = behind_guard(name, inside=False)
    for raw in KNOWN[name]:
        status, _, body = asyncio.run(answered(app, scope_as_served(raw, root)))
        assert (status, b"expected a path" in body) == (400, True), raw
    assert before.meter.refused == {"path": len(KNOWN[name])}
