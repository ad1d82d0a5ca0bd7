"""Who asks: the account of a request, read as the app reads it, or a 400 where that is not clear.

Frameworks differ in which of two equal headers, cookies or parameters they take. So what decides
who somebody is may come once only: otherwise one reads an account that was refused, and the other a
new one.
"""

import base64
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.types import Scope

from dfme.errors import UserError
from dfme.teachers.json_text import HEADER_LENGTH
from dfme.teachers.serve.model import Rejected

Header = tuple[bytes, bytes]
Pair = tuple[str, str]
# what decides how a body is read may come once as well, so that the app reads what the guard read
OF_READING = ("content-type", "content-encoding", "content-length", HEADER_LENGTH.lower())
TOO_OFTEN = "expected once whatever says who asks (header, cookie, parameter), got it twice"


class Account:
    """The account of a request by ``account``: the name of a header, or a callable of its scope."""

    def __init__(self, account: str | Callable[[Scope], str]) -> None:
        if isinstance(account, str) and not account.replace("-", "").isalnum():
            wanted = "expected the name of a header or a callable"
            raise UserError(f"Guard: account: {wanted}, got {account!r}")
        self._header = name_of(account.encode()) if isinstance(account, str) else None
        self._read: Any = account

    def __call__(self, scope: Scope) -> str:
        """The text that stands for the account. Rejected for one that may be read in two ways."""
        require_once(scope["headers"], OF_READING, "malformed")
        if self._header is not None:
            return self._of_header(scope["headers"], self._header)
        account: str = self._read(scope)
        for other in _readings(scope):
            if not self._same(other, account):
                raise Rejected(400, TOO_OFTEN, "account")
        return account

    def _of_header(self, headers: Iterable[Header], name: str) -> str:
        """The header's value; that of Authorization in one of the spellings that apps take."""
        require_once(headers, [name], "account")
        values = [value.decode("latin-1") for key, value in headers if name_of(key) == name]
        text = "".join(values).strip()
        if "," in text:  # two headers that a proxy has made one
            raise Rejected(400, TOO_OFTEN, "account")
        return _credentials(text) if name == "authorization" and text else text

    def _same(self, scope: Scope, account: str) -> bool:
        try:
            return bool(self._read(scope) == account)
        except Exception:  # it needs what is left out here
            return False


def require_once(headers: Iterable[Header], names: Iterable[str], reason: str) -> None:
    """Rejected where one of these headers comes twice."""
    counts = Counter(name_of(name) for name, _ in headers)
    for name in names:
        if counts[name] > 1:
            text = f"expected the header {name} once, got it {counts[name]} times"
            raise Rejected(400, text, reason)


def name_of(header: bytes) -> str:
    """A header's name in one spelling; gateways to other servers take _ for -."""
    return header.decode("latin-1").lower().replace("_", "-")


def _readings(scope: Scope) -> list[Scope]:
    """The scope with the first, the last or none of what is there twice; empty: nothing is."""
    headers: list[Header] = [*scope["headers"]]
    cookies: list[Pair] = []
    for name, value in headers:
        cookies += _cookies(value) if name_of(name) == "cookie" else []
    query = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
    doubled = (
        _doubled(name_of(name) for name, _ in headers),
        _doubled(name for name, _ in cookies),
        _doubled(name for name, _ in query),
    )
    if not any(doubled):
        return []
    return [_reading(scope, headers, cookies, query, doubled, which) for which in (1, -1, 0)]


def _reading(
    scope: Scope,
    headers: list[Header],
    cookies: list[Pair],
    query: list[Pair],
    doubled: tuple[set[str], set[str], set[str]],
    which: int,
) -> Scope:
    """``which`` of what is there twice: 1: the first, -1: the last, 0: none."""
    kept = _kept([(name_of(name), (name, value)) for name, value in headers], doubled[0], which)
    if doubled[1]:
        pairs = _kept_pairs(cookies, doubled[1], which)
        text = "; ".join(f"{name}={value}" for name, value in pairs)
        kept = [each for each in kept if name_of(each[0]) != "cookie"]
        kept.append((b"cookie", text.encode("latin-1", "replace")))
    asked = urlencode(_kept_pairs(query, doubled[2], which)).encode()
    as_asked = scope.get("query_string", b"")
    return {**scope, "headers": kept, "query_string": asked if doubled[2] else as_asked}


def _kept_pairs(pairs: list[Pair], doubled: set[str], which: int) -> list[Pair]:
    return _kept([(pair[0], pair) for pair in pairs], doubled, which)


def _kept(items: list[tuple[str, Any]], doubled: set[str], which: int) -> list[Any]:
    """Items whose name is not doubled; of the others the first, the last or none."""
    places: dict[str, int] = {}
    for place, (name, _) in enumerate(items):
        if which == -1 or (which == 1 and name not in places):
            places[name] = place
    kept = []
    for place, (name, item) in enumerate(items):
        if name not in doubled or places.get(name) == place:
            kept.append(item)
    return kept


def _doubled(names: Iterable[str]) -> set[str]:
    return {name for name, count in Counter(names).items() if count > 1}


def _cookies(header: bytes) -> list[Pair]:
    parts = (part.partition("=") for part in header.decode("latin-1").split(";") if part.strip())
    return [(name.strip(), value.strip()) for name, _, value in parts]


def _credentials(text: str) -> str:
    """A scheme in lower case and its token; of Basic the user's name, which has many Base64s.

    Rejected for more than a token: some apps take the first part for it, and some all.
    """
    scheme, *tokens = text.split()
    if not tokens:
        return text
    if len(tokens) > 1:
        raise Rejected(400, "expected Authorization as a scheme and one token", "account")
    scheme = scheme.lower()
    token = tokens[0]
    if scheme == "basic":
        marks = re.sub("[^A-Za-z0-9+/]", "", token)
        whole = marks if len(marks) % 4 != 1 else marks[:-1]
        token = base64.b64decode(whole + "==").partition(b":")[0].decode("latin-1")
    return f"{scheme} {token}"
