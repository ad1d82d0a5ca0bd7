"""Which paths ask for scores: one normal form of a path, compared with that of the guarded routes.

A router may take more than one spelling for a route: it decodes once more, ignores case, blanks,
doubled slashes or parameters, or what its regular expression lets through. So a path is first
looked at as generously as can be: does it have the texts of a guarded route, in their order? If it
has not, no router takes it for that route, and it passes, however it is spelled. If it has, it must
be in the normal form, in which there is one way to read it, or it is refused. All of this takes
time in proportion to the path.
"""

import difflib
import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import unquote

from starlette.types import ASGIApp, Scope

from dfme.errors import UserError
from dfme.teachers.owner.guard.bodies import Rejected
from dfme.teachers.owner.guard.routes import PARAMETER, in_order, read_routes, segments_of

MAX_PATH = 8_192  # bytes of the longest path, as it is sent
UNQUOTED = 2  # times, besides the one of the server
OTHER_PLACEHOLDERS = re.compile(r"[<>*{}]|/:")  # of frameworks whose routes are written otherwise
# + is a blank to some
INVISIBLE = str.maketrans("", "", "+" + "".join(map(chr, [*range(33), 127])))
UNREADABLE = "\ufffd"  # stands for bytes that are no UTF-8
SEPARATORS = "\\;?#"  # some routers end a path, or a segment, there


class Pattern:
    """The fixed texts of a route: anything may stand between them, and before them."""

    def __init__(self, route: str) -> None:
        pieces = [fold(unquote(piece)) for piece in PARAMETER.split("/" + route.lstrip("/"))]
        if len(pieces) > 1 or pieces[0] != "/":
            pieces[-1] = pieces[-1].rstrip("/")
        self._pieces = pieces
        self._words = [word for piece in pieces for word in piece.split("/") if word]

    def occurs(self, text: str) -> bool:
        """Whether a folded path has all the words of the route in their order."""
        return in_order(text, self._words, len(text))

    def ends(self, text: str) -> bool:
        """Whether a folded path in normal form ends with the route."""
        last = self._pieces[-1]
        end = len(text) - len(last)
        return text.endswith(last) and in_order(text, self._pieces[:-1], end)


class ChosenPaths:
    """What an owner's callable says of a request's scope: whether it asks for scores."""

    warnings: Sequence[str] = ()

    def __init__(self, choose: Callable[[Scope], bool]) -> None:
        self.guards = choose

    def slipped(self, scope: Scope) -> bool:
        return False


class GuardedPaths:
    """The routes of an app that answer scores, by paths that are written as its routes are.

    Where the app is Starlette's or FastAPI's, its own list of routes helps in two ways. A path in
    normal form that it gives to another route passes. An answer of a guarded route that came by a
    path which does not look like one is found out (``slipped``).
    """

    def __init__(self, paths: Sequence[str], app: ASGIApp) -> None:
        paths = [paths] if isinstance(paths, str) else paths
        _require_normal(paths)
        self._routes = read_routes(app)
        named = {path: self._routes.named(path) for path in paths}
        self._guarded = list(dict.fromkeys(leaf for leaves in named.values() for leaf in leaves))
        self.warnings = [
            self._warning(path)
            for path, leaves in named.items()
            if not leaves and self._routes.misses(path)
        ]
        self._signs = {key: self._objects(key) for key in ("route", "endpoint")}
        templates = [leaf.template for leaf in self._guarded]
        self._patterns = [Pattern(route) for route in dict.fromkeys([*paths, *templates])]
        # only where each path is a route, so that none of them is served by a route of another name
        self._settled = self._routes.certain and all(named.values())

    def guards(self, scope: Scope) -> bool:
        """Whether a request may ask for scores. Rejected for a path that is not clear."""
        path = scope["path"]
        decoded = _decoded(path)
        text = fold(decoded)
        if not any(pattern.occurs(text) for pattern in self._patterns):
            return False
        if fault := _fault(path, decoded):
            raise Rejected(400, f"expected a path {fault}", "path")
        spellings = {text, text.rstrip("/")}
        if not any(any(map(pattern.ends, spellings)) for pattern in self._patterns):
            return False
        leaves = self._routes.resolve(scope) if self._settled else []
        # what no known route takes may go anywhere, and so may what goes to an app of any routes
        return not leaves or any(leaf in self._guarded or leaf.opaque for leaf in leaves)

    def slipped(self, scope: Scope) -> bool:
        """Whether the app's router gave a request that was not guarded to a guarded route."""
        return any(_is_among(scope.get(key), signs) for key, signs in self._signs.items())

    def _objects(self, key: str) -> list[Any]:
        """The objects that only guarded routes have under this key of a scope."""
        others = [getattr(leaf, key) for leaf in self._routes.leaves if leaf not in self._guarded]
        objects = [getattr(leaf, key) for leaf in self._guarded]
        return [thing for thing in objects if thing is not None and not _is_among(thing, others)]

    def _warning(self, path: str) -> str:
        """One line for the owner about a path that is no route."""
        near = difflib.get_close_matches(path, [leaf.template for leaf in self._routes.leaves], 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return f"Guard: paths: expected a route of the app, got {path!r}{hint}"


def _require_normal(paths: Sequence[str]) -> None:
    """UserError unless each guarded path can be that of a request."""
    if not paths:
        raise UserError("Guard: paths: expected at least one, got none; leave it out to guard all")
    for path in paths:
        sample = "/" + PARAMETER.sub("x", path).lstrip("/")
        if OTHER_PLACEHOLDERS.search(sample):
            wanted = "expected parameters as {name} or {name:path}"
            raise UserError(f"Guard: paths: {path!r}: {wanted}")
        if fault := _fault(sample, unquote(sample)):
            raise UserError(f"Guard: paths: {path!r}: expected a path {fault}")


def fold(text: str) -> str:
    """A path or a part of one in lower case, without accents, blanks and what cannot be seen."""
    if not text.isascii():
        text = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
        # a dotless i is one for regular expressions that ignore case
        text = "".join(mark for mark in text if unicodedata.category(mark)[0] not in "CZM")
        text = text.replace("\u0131", "i")
    return text.lower().translate(INVISIBLE)


def _decoded(path: str) -> str:
    """A path without any percent-encoding. Rejected where some stays, or it is no text."""
    decoded = path
    for _ in range(UNQUOTED):
        decoded = unquote(decoded)
    if UNREADABLE in decoded or unquote(decoded) != decoded:
        raise Rejected(400, "expected a path in UTF-8, encoded at most three times", "path")
    return decoded


def _fault(path: str, decoded: str) -> str | None:
    """What keeps a path from its normal form, in words; None: it is in it."""
    plain = unicodedata.normalize("NFKC", decoded)
    segments = segments_of(plain)
    if any(unicodedata.category(mark) in ("Cc", "Cs", "Zl", "Zp") for mark in plain):
        return "without control characters"
    if any(mark in plain for mark in SEPARATORS):
        return r"without backslashes, ;, ? and #"
    if not path.startswith("/") or plain.count("/") != path.count("/"):
        return "that starts with a slash and has no encoded one"
    if plain.count("%") != decoded.count("%"):
        return "without percent signs of other scripts"
    inner = segments if segments[-1] else segments[:-1]  # a slash at the end is none
    if any(set(fold(segment)) <= {"."} for segment in inner):
        return "without empty segments, blank ones, and those of dots"
    return None


def _is_among(thing: Any, things: list[Any]) -> bool:
    """By identity: what an owner wrote may compare as it likes."""
    return any(thing is other for other in things)
