"""Which routes of an app a path may belong to, and which routes an owner means by a path."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from starlette.convertors import CONVERTOR_TYPES
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
