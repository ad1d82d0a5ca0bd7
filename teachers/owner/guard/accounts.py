"""Who asks: the account of a request, read as the app reads it, or a 400 where that is not clear.

Frameworks differ in which of two equal headers, cookies or parameters they take. So what decides
who somebody is may come once only: otherwise one reads an account that was refused, and the other a
new one.
"""

import base64
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar
from urllib.parse import parse_qsl, urlencode

from starlette.types import Scope

from dfme.errors import UserError
from dfme.teachers.json_text import HEADER_LENGTH
from dfme.teachers.owner.guard.bodies import Rejected

Header = tuple[bytes, bytes]
Pair = tuple[str, str]
Item = TypeVar("Item")
COOKIE = "cookie"
PARTS = (slice(1), slice(-1, None), slice(0))  # the first, the last, none
# what decides how a body is read may come once as well, so that the app reads what the guard read
OF_READING = ("content-type", "content-encoding", "content-length", HEADER_LENGTH.lower())
TOO_OFTEN = "expected once whatever says who asks (header, cookie, parameter), got it twice"


class Account:
    """The account of a request by ``account``: the name of a header, or a callable of its scope."""

    def __init__(self, account: str | Callable[[Scope], str]) -> None:
        if isinstance(account, str) and not account.replace("-", "").isalnum():
            wanted = "expected the name of a header or a callable"
            raise UserError(f"Guard: account: {wanted}, got {account!r}")
        self._account = name_of(account.encode()) if isinstance(account, str) else account

    def __call__(self, scope: Scope) -> str:
        """The text that stands for the account. Rejected for one that may be read in two ways."""
        require_once(scope["headers"], OF_READING, "malformed")
        if isinstance(self._account, str):
            return _in_header(scope["headers"], self._account)
        account = self._account(scope)
        if not all(_reads(self._account, reading, account) for reading in _readings(scope)):
            raise Rejected(400, TOO_OFTEN, "account")
        return account


def _in_header(headers: Iterable[Header], name: str) -> str:
    """The header's value; that of Authorization in one of the spellings that apps take."""
    require_once(headers, [name], "account")
    values = [value.decode("latin-1") for key, value in headers if name_of(key) == name]
    text = "".join(values).strip()
    if "," in text:  # two headers that a proxy has made one
        raise Rejected(400, TOO_OFTEN, "account")
    return _credentials(text) if name == "authorization" and text else text


def _reads(read: Callable[[Scope], str], scope: Scope, account: str) -> bool:
    """Whether a scope is read as an account."""
    try:
        return bool(read(scope) == account)
    except Exception:  # it needs what is left out here
        return False


def require_once(headers: Iterable[Header], names: Iterable[str], reason: str) -> None:
    """Rejected where one of these headers comes twice."""
    counts = Counter(name_of(name) for name, _ in headers)
    for name in names:
        if counts[name] > 1:
            raise Rejected(
                400, f"expected the header {name} once, got it {counts[name]} times", reason
            )


def name_of(header: bytes) -> str:
    """A header's name in one spelling; gateways to other servers take _ for -."""
    return header.decode("latin-1").lower().replace("_", "-")


def _readings(scope: Scope) -> list[Scope]:
    """The scope with the first, the last or none of what is there twice; empty: nothing is."""
    headers: list[Header] = [*scope["headers"]]
    header_names = [name_of(name) for name, _ in headers]
    lines = [
        value for name, (_, value) in zip(header_names, headers, strict=True) if name == COOKIE
    ]
    cookies = [pair for line in lines for pair in _cookies(line)]
    query = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
    readings: list[Scope] = []
    for part in PARTS:
        reduced = _reduced(headers, header_names, part)
        fewer_cookies = _reduced(cookies, [name for name, _ in cookies], part)
        fewer_parameters = _reduced(query, [name for name, _ in query], part)
        if (reduced, fewer_cookies, fewer_parameters) == (headers, cookies, query):
            return []
        reading = {**scope, "headers": reduced}
        if fewer_cookies != cookies:
            text = "; ".join(f"{name}={value}" for name, value in fewer_cookies)
            others = [header for header in reduced if name_of(header[0]) != COOKIE]
            reading["headers"] = [*others, (b"cookie", text.encode("latin-1", "replace"))]
        if fewer_parameters != query:
            reading["query_string"] = urlencode(fewer_parameters).encode()
        readings.append(reading)
    return readings


def _reduced(items: list[Item], names: list[str], part: slice) -> list[Item]:
    """Items, of those of one name only a part."""
    groups: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        groups.setdefault(name, []).append(place)
    kept = {
        place for group in groups.values() for place in (group if len(group) == 1 else group[part])
    }
    return [item for place, item in enumerate(items) if place in kept]


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
        complete = marks if len(marks) % 4 != 1 else marks[:-1]
        token = base64.b64decode(complete + "==").partition(b":")[0].decode("latin-1")
    return f"{scheme} {token}"
