"""The routes of an app of Starlette or FastAPI: read, and which of them a path may belong to."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MethodType
from typing import Any

from starlette.applications import Starlette
from starlette.convertors import CONVERTOR_TYPES
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.routing import Host, Mount, Router, WebSocketRoute, compile_path
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

BELOW = "/{path:path}"
REST = re.compile(r"/\{[A-Za-z_]\w*:path\}\Z")  # all that is left of a path
WHOLE = re.compile(r"\{[A-Za-z_]\w*(?::(\w+))?\}")  # a segment that is one parameter
PARAMETER = re.compile(r"\{[^{}]*\}")


@dataclass(frozen=True, eq=False)
class Leaf:
    """A route that no other is behind: its path from the app's root, and its handler."""

    template: str
    endpoint: Any
    methods: frozenset[str] = frozenset()
    """Empty: any."""
    certain: bool = True
    """Whether a path that fits is always taken."""
    route: Any = None
    """The framework's own object."""
    opaque: bool = False
    """Whether it is all that is below a path, of an app whose routes cannot be read."""
    reach: str | None = None
    """All paths that it takes are among those of this template; None: its own is right."""
    mounted: bool = False
    """Whether it is a route of a mounted app."""

    @cached_property
    def shapes(self) -> list[str]:
        """Its paths without the parameters' names and the last slash."""
        shapes = [shape_of(self.template)]
        if self.opaque:
            shapes.append(shape_of(self.template.removesuffix(BELOW)))
        return shapes

    def ends_as(self, shape: str) -> bool:
        if type(self.endpoint) is StaticFiles:  # it has no scores, so it is meant by its whole name
            return shape in self.shapes
        return any(mine.endswith(shape) for mine in self.shapes)

    @cached_property
    def open(self) -> bool:
        """Whether any segments may come behind its own."""
        return REST.search(self.template) is not None

    @cached_property
    def segments(self) -> list[re.Pattern[str]] | None:
        """What each segment must be; None: a parameter is more or less than one segment."""
        patterns: list[re.Pattern[str]] = []
        for segment in REST.sub("", self.template).split("/")[1:]:
            if "{" not in segment:
                patterns.append(re.compile(re.escape(segment)))
                continue
            parameter = WHOLE.fullmatch(segment)
            kind = (parameter[1] or "str") if parameter else "path"
            if kind == "path" or kind not in CONVERTOR_TYPES:
                return None
            patterns.append(re.compile(CONVERTOR_TYPES[kind].regex))
        return patterns

    def fits(self, path: str) -> bool | None:
        """Whether a path is one of the template; None: maybe."""
        # the rest of a path, too, has no line breaks
        if self.segments is None or (self.open and "\n" in path):
            return None if _may_fit(PARAMETER.split(self.template), path) else False
        parts = segments_of(path)
        more = len(parts) - len(self.segments)
        if more < 0 or self.open != (more > 0):
            return False
        pairs = zip(self.segments, parts, strict=False)
        return all(pattern.fullmatch(part) for pattern, part in pairs) and (self.certain or None)

    def takes(self, path: str) -> bool | None:
        """Whether the route takes a path; None: maybe."""
        if self.reach is None:
            return self.fits(path)
        return None if self._around.fits(path) is not False else False

    @cached_property
    def _around(self) -> "Leaf":
        return Leaf(self.reach or BELOW, None)


@dataclass
class Routes:
    """All routes of an app in the order in which its router tries them.

    ``certain``: no route is missing, and nothing before the router may change a path.
    """

    leaves: list[Leaf] = field(default_factory=list)
    certain: bool = True
    root: str = ""

    def named(self, path: str) -> list[Leaf]:
        """The routes that end as a path does; else those that the path ends as, behind a prefix."""
        shape = shape_of(path)
        leaves = [leaf for leaf in self.leaves if leaf.ends_as(shape)]
        return leaves or [leaf for leaf in self.leaves if shape.endswith(tuple(leaf.shapes))]

    def misses(self, path: str) -> bool:
        """Whether no route takes a path, written as those of routes are."""
        sample = "/" + PARAMETER.sub("x", path).lstrip("/")
        return bool(self.leaves) and not any(leaf.fits(sample) is not False for leaf in self.leaves)

    def resolve(self, scope: Scope) -> list[Leaf]:
        """The routes, one of which the router gives a request to: all that maybe take it, up to
        the first that certainly does.
        """
        path = scope["path"]
        root = self.root or scope.get("root_path", "")
        below = path.startswith(f"{root}/")
        if root and below:
            path = path[len(root) :]
        possible = []
        other_method = None
        for leaf in self.leaves:
            # a mounted app does not find its own part of a path that does not begin with the root
            takes = leaf.takes(path) if below or not root or not leaf.mounted else None
            if takes is None:
                possible.append(leaf)
            elif takes and (not leaf.methods or scope["method"] in leaf.methods):
                return [*possible, leaf]
            elif takes and other_method is None:
                other_method = leaf
        return possible if other_method is None else [*possible, other_method]


def segments_of(path: str) -> list[str]:
    """The parts of a path between its slashes; the last is empty behind a slash at the end."""
    return path.removeprefix("/").split("/")


def shape_of(path: str) -> str:
    return "/" + PARAMETER.sub("{}", path).strip("/")


def in_order(text: str, parts: Sequence[str], end: int) -> bool:
    """Whether the parts stand in a text before ``end``, one behind the other."""
    at = 0
    for part in parts:
        at = text.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True


def _may_fit(texts: Sequence[str], path: str) -> bool:
    """Whether a path has the fixed texts of a route, in their order; the first at its start."""
    *heads, last = texts
    end = len(path) - len(last)
    if not path.startswith(texts[0]) or not path.endswith(last):
        return False
    return in_order(path, heads, end)


# Reads the routes of an app of Starlette or FastAPI, so far as the app shows them

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
