"""``dfme.Guard`` and routes that take other paths than their text says."""

import re
from typing import Any

import pytest
from guarded_apps import ask, guard, leaks
from starlette import convertors
from starlette.applications import Starlette
from starlette.routing import Mount, Route
from test_guard_paths import fastapi, free, score

POST = ["POST"]


class Rest(convertors.Convertor[str]):
    regex = ".+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


class Lowered(Route):
    """A route that ignores case by a method of its own."""

    def matches(self, scope: Any) -> Any:
        return super().matches({**scope, "path": scope["path"].lower()})


class LoweredMount(Mount):
    def matches(self, scope: Any) -> Any:
        return super().matches({**scope, "path": scope["path"].lower()})


def two(scoring: str, other: str, kind: type[Route] = Route) -> Starlette:
    """A route that scores, and a free one behind it."""
    return Starlette(routes=[kind(scoring, score, methods=POST), Route(other, free, methods=POST)])


def converted_again() -> Starlette:
    """A convertor of the owner's under the name of one of the library's."""
    convertors.register_url_convertor("int", Rest())
    return two("/models/{x:int}", "/models/{a}/{b}")


def flagged() -> Starlette:
    app = two("/models/predict", "/models/{name}")
    for route in app.routes:
        route.path_regex = re.compile(route.path_regex.pattern, re.I)
    return app


def patched() -> Starlette:
    """One object has a method of its own."""
    app = flagged()
    for route in app.routes:
        route.matches = Lowered(route.path, route.endpoint, methods=POST).matches
    return app


def lowered() -> Starlette:
    return two("/models/predict", "/models/{name}", Lowered)


def lowered_mount() -> Starlette:
    inner = Starlette(routes=[Route("/predict", score, methods=POST)])
    routes = [LoweredMount("/models", inner), Route("/{a}/predict", free, methods=POST)]
    return Starlette(routes=routes)


def rooted(path: str, prefix: str, other: str) -> Starlette:
    """A mounted app with a root of its own, and a free route before it, which a client meets
    first.
    """
    inner = fastapi.FastAPI()
    inner.root_path = "/z"
    inner.add_api_route(path, score, methods=POST)
    return Starlette(routes=[Route(other, free, methods=POST), Mount(prefix, inner)])


def inner_root() -> Starlette:
    return rooted("/models/{n:path}", "/", "/models/{n}/info")


def below_inner_root() -> Starlette:
    """A path is free for its text, and scores for the root of the mounted app."""
    app = rooted("/{n}/info", "/", "/{z}/models/info")
    app.routes.reverse()
    return app


def outer_root() -> Any:
    """The root of the outermost app stays, whatever is mounted."""
    app = fastapi.FastAPI()
    app.root_path = "/r"
    app.add_api_route("/models/{n}", score, methods=POST)
    app.mount("/", Starlette(routes=[Route("/models/{n}/info", free, methods=POST)]))
    return app


@pytest.mark.parametrize(
    ("make", "guarded", "raw"),
    [
        (lambda: two("/models/{x:rest}", "/models/{a}/{b}"), "/models/{x:rest}", "/models/a/b"),
        (converted_again, "/models/{x:int}", "/models/a/b"),
        (lowered, "/models/predict", "/models/PREDICT"),
        (flagged, "/models/predict", "/models/PREDICT"),
        (patched, "/models/predict", "/models/PREDICT"),
        (inner_root, "/models/{n:path}", "/z/models/m/info"),
        (below_inner_root, "/{n}/info", "/z/models/info"),
        (outer_root, "/models/{n}", "/r/models/m"),
    ],
)
def test_a_guarded_route_that_takes_other_paths_than_its_text_answers(
    make: Any, guarded: str, raw: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(convertors.CONVERTOR_TYPES, "rest", Rest())
    monkeypatch.setitem(convertors.CONVERTOR_TYPES, "int", convertors.CONVERTOR_TYPES["int"])
    before = guard(make(), paths=[guarded])
    answer = ask(before, path=raw)
    assert not leaks(answer)
    assert (answer[0], before.meter.failed, before.meter.images) == (200, 0, 3)


@pytest.mark.parametrize("make", [flagged, lowered_mount, lowered, inner_root])
def test_no_raw_scores_leave_by_such_a_route(make: Any) -> None:
    for path in ("/models/predict", "/MODELS/predict", "/MODELS/PREDICT", "/z/models/m/info"):
        before = guard(make(), paths=["/predict", "/models/{n:path}"])
        assert not leaks(ask(before, path=path))


def test_a_free_route_beside_an_inner_root_answers_as_it_does() -> None:
    before = guard(inner_root(), paths=["/models/{n:path}"])
    assert ask(before, path="/models/m/info")[::2] == (200, b"free: /models/m/info")
    assert before.meter.images == 0


def test_a_mounted_app_with_a_root_of_its_own_leaves_what_is_beside_it_alone() -> None:
    app = rooted("/models/{n:path}", "/inner", "/models/{n}/info")
    app.routes.reverse()
    before = guard(app, paths=["/models/{n:path}"])
    assert ask(before, path="/models/m/info")[::2] == (200, b"free: /models/m/info")
    assert before.meter.images == 0
    assert not leaks(ask(before, path="/inner/models/m/info"))
