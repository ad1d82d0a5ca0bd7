"""``dfme.Guard`` and the routes of an app: what passes, what is named, refused or found out."""

import time
from pathlib import Path
from typing import Any

import pytest
from guarded_apps import TRUTH, answering, ask, guard, leaks
from refusals import refusal
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.routing import Mount, Route, Router
from starlette.staticfiles import StaticFiles
from test_guard_paths import fastapi, flat, free, hosted, included, mounted, regular, score

import dfme
from dfme.teachers.owner.guard.paths import MAX_PATH, Pattern, fold


def test_other_routes_answer_as_they_do_without_a_guard(tmp_path: Path) -> None:
    for name in ("a file.txt", "\u5f20 \u4f1f.txt", "50%.txt", "a;b.txt", "\u00e9.txt"):
        (tmp_path / name).write_text(name)

    def make() -> Any:
        app = fastapi.FastAPI()
        app.mount("/static", StaticFiles(directory=tmp_path))
        app.add_api_route("/models/{name}/predict", score, methods=["POST"])
        app.add_api_route("/models/{name}/info", free)
        app.add_api_route("/admin/models/{name}", free)
        app.add_api_route("/proxy/{url:path}", free)
        return app

    paths = ["/models/{name}/predict"]
    harmless = [
        *("/static/a%20file.txt", "/static/%E5%BC%A0%20%E4%BC%9F.txt", "/static/50%25.txt"),
        *(
            "/static/a;b.txt",
            "/static/a%3Bb.txt",
            "/static/%C3%A9.txt",
            "/static/none.txt",
            "/static/../x",
        ),
        *(
            "/docs",
            "/openapi.json",
            "/health",
            "/models/m/info",
            "/models/a%20b/info",
            "/admin/models/x",
        ),
        *(
            "/proxy/https://example.org/a//b",
            "/proxy/models/x",
            "/admin/models/predictions",
            "//docs",
        ),
        *("/docs%0A", "/models/predict.js", "/models"),
    ]
    app = guard(make(), paths=paths)
    for raw in harmless:
        bare, guarded = (ask(each, "GET", raw, b"") for each in (make(), app))
        assert guarded[::2] == bare[::2], raw
    assert not app.meter.refused
    # a route of the app that ends like one that is guarded passes by the router's own word
    precise = guard(make(), paths=["/models/{name}", "/models/{name}/predict"])
    assert ask(precise, "GET", "/admin/models/x", b"")[0] == 500  # named by its end, too
    assert ask(precise, "GET", "/models/m/info", b"")[0] == 200


def test_a_route_that_the_app_does_not_have_is_said(caplog: pytest.LogCaptureFixture) -> None:
    guard(flat(), paths=["/predict", "/predcit", "/models/{x}/predict"])
    assert [record.getMessage() for record in caplog.records] == [
        "Guard: paths: expected a route of the app, got '/predcit'; did you mean '/predict'?"
    ]
    caplog.clear()
    for app in (regular, hosted(), mounted(), included(), Starlette()):
        guard(app, paths=["/predict"])
    guard(Starlette(routes=[Route("/{rest:path}", free)]), paths=["/anything"])
    assert not caplog.records


@pytest.mark.parametrize("path", ["/a//b", "/a;b", "/../x", "/a\\b", "/a\nb", "/%2fa"])
def test_a_guarded_path_that_no_request_may_have_is_refused(path: str) -> None:
    with pytest.raises(dfme.UserError, match=r"Guard: paths: .*: expected a path "):
        guard(flat(), paths=["/predict", path])


@pytest.mark.parametrize(
    "path", ["/m/<name>", "/m/<path:name>/p", "/m/:name", "/m/*", "/{x", "/{x:[0-9]{3}}"]
)
def test_a_parameter_of_another_framework_is_refused(path: str) -> None:
    refusal(
        r"expected parameters as \{name\} or \{name:path\}",
        guard,
        regular,
        paths=[path],
        error=dfme.UserError,
    )


def test_no_path_at_all_is_refused() -> None:
    refusal(
        "paths: expected at least one, got none", guard, regular, paths=[], error=dfme.UserError
    )


def test_an_answer_of_a_guarded_route_by_another_name_is_a_500() -> None:
    app = flat()

    async def alias(request: Request, call_next: Any) -> Any:
        if request.scope["path"] == "/alias":
            request.scope["path"] = "/predict"
        return await call_next(request)

    app.add_middleware(BaseHTTPMiddleware, dispatch=alias)
    before = guard(app, paths=["/predict"])
    assert ask(before, path="/alias")[0] == 500
    assert (before.meter.failed, ask(before)[0]) == (1, 200)


def test_a_path_is_read_in_time_in_proportion_to_it_and_has_a_longest() -> None:
    paths = ["/{a}/A{b}B{c}C{d}/predict"]
    app = guard(answering(b"none"), paths=paths)
    started = time.process_time()
    for raw in (
        "/AB" * 2_700,
        "/ABC" * 2_000,
        "/%25" * 2_000,
        "/" * 8_000,
        "%EF%B7%BA" * 900,
        ";" * 8_000,
    ):
        assert ask(app, path=raw)[0] in (200, 400)
    assert time.process_time() - started < 1
    assert ask(app, path="/x" * (MAX_PATH // 2 + 1))[0] == 414
    assert app.meter.refused["path too long"] == 1
    assert ask(guard(answering(TRUTH), paths=None), path="/x" * MAX_PATH)[0] == 414


def test_a_pattern_is_found_at_the_end_of_a_path_segment_by_segment() -> None:
    for route, path, ends in (
        ("/predict", "/predict", True),
        ("predict", "/api/predict", True),
        ("/predict", "/unpredict", False),
        ("/predict", "/predict/x", False),
        ("/v1/{m}:p", "/v1/a/b:p", True),
        ("/v1/{m}:p", "/v1/:p", True),
        ("/v1/{m}:p", "/v1/p", False),
        ("/{all}", "/x", True),
        ("/predict", fold("/predict+"), True),
        ("/", "/", True),
        ("/", "/x", False),
        ("/a/{b}/a", "/a/a", False),
        ("/Predict", fold("/PRE\u200bDI\u0301CT\u00a0"), True),
        ("/k\u0131s\u017f", fold("/\u212a\u0130SS"), True),
    ):
        assert Pattern(route).ends(path) is ends, (route, path)
        assert Pattern(route).occurs(path) or not ends


class Shortened:
    """Middleware that cuts the end of a path off, in a copy of the scope."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app({**scope, "path": scope["path"].removesuffix("/info")}, receive, send)


def shortened(**options: Any) -> Router:
    routes = [
        Route("/models/{a}/info", free, methods=["POST"]),
        Route("/models/{a}", score, methods=["POST"]),
    ]
    return Router(routes, **options)


def replaced() -> Starlette:
    app = Starlette()
    app.router = shortened(middleware=[Middleware(Shortened)])
    return app


def wrapped() -> Starlette:
    app = Starlette(routes=list(shortened().routes))
    app.middleware_stack = Shortened(app.build_middleware_stack())
    return app


@pytest.mark.parametrize(
    ("app", "prefix"),
    [
        (shortened(middleware=[Middleware(Shortened)]), ""),
        (Starlette(routes=[Mount("/s", shortened(middleware=[Middleware(Shortened)]))]), "/s"),
        (replaced(), ""),
        (wrapped(), ""),
    ],
    ids=["router", "mount", "replaced", "wrapped"],
)
def test_the_middleware_of_a_router_may_change_a_path(app: Any, prefix: str) -> None:
    before = guard(app, paths=["/models/{a}"])
    answer = ask(before, path=prefix + "/models/m/info")
    assert not leaks(answer)
    assert (answer[0], before.meter.answered, before.meter.images) == (200, 1, 3)


def test_a_limit_of_a_library_before_a_router_leaves_its_routes_readable() -> None:
    before = guard(shortened(max_body_size=1_000_000), paths=["/models/{a}"])
    assert ask(before, path="/models/m/info")[0] == 200
    assert before.meter.images == 0


@pytest.mark.parametrize(
    ("mount", "path", "raw"),
    [
        ("/predict", "/predict", "/predict/x"),
        ("/predict", "/predict/", "/predict/x/y"),
        ("/api/{tenant}", "/api/{name}", "/api/me/any/where"),
        ("/v1/predict", "/predict", "/v1/predict/x"),
    ],
)
def test_all_below_a_guarded_mount_that_cannot_be_read_is_guarded(
    mount: str, path: str, raw: str, caplog: pytest.LogCaptureFixture
) -> None:
    scores = Route("/x", score, methods=["POST"]).app
    inner = Starlette(routes=[Route("/health", free), Mount(mount, scores)])
    before = guard(inner, paths=[path])
    answer = ask(before, path=raw)
    assert not leaks(answer)
    assert (answer[0], before.meter.images) == (200, 3)
    assert ask(before, "GET", "/health", b"")[0] == 200
    assert not caplog.records


def site(path: str, files: Path, last: bool) -> Starlette:
    """A small site: pages, static files, and one route that scores."""
    (files / "index.html").write_text("start")
    (files / "sub").mkdir(exist_ok=True)
    (files / "sub" / "index.html").write_text("below")
    scores = Route(path, score, methods=["POST"])
    static = Mount("/static", StaticFiles(directory=files, html=True))
    others = [Route("/health", free), static]
    return Starlette(routes=[*others, scores] if last else [scores, *others])


@pytest.mark.parametrize(
    ("path", "last"),
    [
        ("/", True),
        ("/", False),
        ("/{name}", True),
        ("/{name:path}", True),
        ("/{a}/{b}", True),
        ("/{a}-{b}", True),
    ],
)
def test_a_short_guarded_path_leaves_other_routes_alone(
    path: str, last: bool, tmp_path: Path
) -> None:
    bare = site(path, tmp_path, last)
    before = guard(site(path, tmp_path, last), paths=[path])
    for raw in ("/static/", "/static/sub/", "/static/sub", "/static/index.html", "/health"):
        answers = [ask(app, "GET", raw, b"") for app in (bare, before)]
        assert answers[0][::2] == answers[1][::2], raw
    assert ask(bare, "GET", "/static/", b"")[0] == 200
    assert ask(before, path="/static/none")[0] == ask(bare, path="/static/none")[0] == 405
    assert (before.meter.images, before.meter.failed, before.meter.refused) == (0, 0, {})
    raw = {"/": "/", "/{a}/{b}": "/x/y"}.get(path, "/x-y")
    answer = ask(before, path=raw)
    assert (answer[0], before.meter.images, leaks(answer)) == (200, 3, False)


def test_a_free_route_behind_one_that_may_fit_answers_as_it_does() -> None:
    routes = [
        Route("/proxy/{url:path}/info", free, methods=["POST"]),
        Route("/{kind}/{name}/info", free, methods=["POST"]),
        Route("/{all:path}", score, methods=["POST"]),
    ]
    before = guard(Starlette(routes=routes), paths=["/{all:path}"])
    assert ask(before, path="/proxy/x/info")[::2] == (200, b"free: /proxy/x/info")
    assert ask(before, path="/other/x/info")[::2] == (200, b"free: /other/x/info")
    assert before.meter.images == 0
    assert not leaks(ask(before, path="/proxy/x/y"))
    assert before.meter.images == 3


def test_a_default_app_of_a_mounted_router_gets_no_raw_scores_out() -> None:
    scores = Route("/x", score, methods=["POST"]).app
    inner = Router([Route("/health", free)], default=scores)
    routes = [
        Route("/predict", score, methods=["POST"]),
        Mount("/api", inner),
        Route("/api/{name}", free, methods=["POST"]),
    ]
    before = guard(Starlette(routes=routes), paths=["/predict"])
    assert not leaks(ask(before, path="/api/predict"))
