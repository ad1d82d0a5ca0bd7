"""Reads the routes of an app of Starlette or FastAPI, so far as the app shows them."""

from dataclasses import dataclass, replace
from types import MethodType
from typing import Any

from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.routing import Host, Mount, Router, WebSocketRoute, compile_path
from starlette.staticfiles import StaticFiles

from dfme.teachers.owner.guard.routes import BELOW, Leaf, Routes

LIBRARIES = ("starlette.", "fastapi.")  # whose middleware leaves a path as it is
MAX_LAYERS = 100  # of middleware before an app


def read_routes(app: Any) -> Routes:
    """The routes behind an app and its middleware; uncertain for another framework's."""
    reader = _Reader()
    reader.read(app, Place())
    return reader.routes


@dataclass(frozen=True)
class Place:
    """Where a router stands: what is before its own routes."""

    prefix: str = ""
    certain: bool = True
    """Whether a request whose path fits always comes here."""
    reach: str | None = None
    """Where all paths that come here are; None: ``prefix`` says more."""
    mounted: bool = False

    def vague(self) -> "Place":
        """The same, where only the part before tells which paths come here."""
        return self if self.reach is not None else replace(self, reach=self.prefix + BELOW)


class _Reader:
    """Collects routes, by way of mounted apps and included routers."""

    def __init__(self) -> None:
        self.routes = Routes()

    def read(self, app: Any, place: Place) -> None:
        inner = self._inner(app)
        if inner is None:  # whatever it is, it may have any route
            self.routes.certain = False
            if place.prefix:
                self._below(app, place)
            return
        root = getattr(inner, "root_path", "") or ""
        if place == Place():
            self.routes.root = root
        elif root:  # it puts the root of its own in place of that of the mount
            place = place.vague()
        for route in inner.routes:
            self._add(route, place)
        self._default(inner, place)

    def _inner(self, app: Any) -> Any:
        """What has the routes, behind all middleware; None where nothing has."""
        for _ in range(MAX_LAYERS):
            if app is None:
                break
            self.routes.certain = self.routes.certain and _leaves_paths(app)
            if isinstance(getattr(app, "routes", None), list):
                return app
            app = getattr(app, "app", None)
        return None

    def _default(self, app: Any, place: Place) -> None:
        """What a router of the owner's gives all that it has no route for, where that is no 404."""
        router = getattr(app, "router", app)
        default = getattr(router, "default", None)
        if default is not None and not _is_method_of(router, default):
            self._below(default, place)

    def _below(self, app: Any, place: Place) -> None:
        """An app that may have any route."""
        self.routes.leaves.append(
            Leaf(place.prefix + BELOW, app, certain=False, opaque=True, reach=place.reach)
        )

    def _add(self, route: Any, place: Place) -> None:
        # a router that FastAPI includes
        contexts = getattr(route, "effective_route_contexts", None)
        if callable(contexts):
            for context in contexts():
                self._add(getattr(context, "starlette_route", None) or context, place)
        elif isinstance(route, Mount):
            self._mount(route, place)
        elif isinstance(route, Host):
            self.read(route.app, replace(place, certain=False))
        elif not isinstance(route, WebSocketRoute):
            self._leaf(route, place)

    def _mount(self, route: Mount, place: Place) -> None:
        prefix = place.prefix + route.path
        if not _as_written(route, route.path + BELOW):
            place = place.vague()
        if isinstance(route.app, StaticFiles):
            self.routes.leaves.append(
                Leaf(
                    template=prefix + BELOW,
                    endpoint=route.app,
                    certain=place.certain,
                    reach=place.reach,
                    mounted=place.mounted,
                )
            )
        else:
            self.read(route.app, replace(place, prefix=prefix, mounted=True))

    def _leaf(self, route: Any, place: Place) -> None:
        path = getattr(route, "path", None)
        endpoint = getattr(route, "endpoint", None)
        if not isinstance(path, str) or endpoint is None:
            self.routes.certain = False
            return
        if not _as_written(route, path):
            place = place.vague()
        self.routes.leaves.append(
            Leaf(
                template=place.prefix + path,
                endpoint=endpoint,
                methods=frozenset(getattr(route, "methods", None) or ()),
                certain=place.certain,
                route=getattr(route, "original_route", route),
                reach=place.reach,
                mounted=place.mounted,
            )
        )


def _as_written(route: Any, path: str) -> bool:
    """Whether a route takes just the paths that its text means to the library."""
    convertors = getattr(route, "param_convertors", {}).values()
    if not all(map(_of_library, [getattr(route, "matches", None), *map(type, convertors)])):
        return False
    try:
        expected = compile_path(path)[0]
    except (AssertionError, ValueError):
        return False
    return expected == getattr(route, "path_regex", None)


def _leaves_paths(app: Any) -> bool:
    """Whether a layer, with those inside, is a library's, which changes no path."""
    layers = [type(app), *(entry.cls for entry in getattr(app, "user_middleware", ()))]
    router = app
    if isinstance(app, Starlette):
        router = app.router
        layers.append(type(router))
        if app.middleware_stack is not None:
            layers += _layers_before(router, app.middleware_stack)
    if isinstance(router, Router):
        layers += _layers_before(router, getattr(router, "middleware_stack", router))
    return all(_of_library(layer) and layer is not BaseHTTPMiddleware for layer in layers)


def _layers_before(router: Any, stack: Any) -> list[type]:
    """The kinds of the layers of a router's middleware; one is no library's if it ends elsewhere"""
    layers: list[type] = []
    for _ in range(MAX_LAYERS):
        if stack is router or _is_method_of(router, stack):
            return layers
        layers.append(type(stack))
        stack = getattr(stack, "app", None)
    return layers


def _is_method_of(router: Any, app: Any) -> bool:
    return isinstance(app, MethodType) and app.__self__ is router


def _of_library(thing: Any) -> bool:
    return f"{getattr(thing, '__module__', '')}.".startswith(LIBRARIES)
