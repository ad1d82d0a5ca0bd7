"""What may be sent to a service: to which host, and which keys, hidden elsewhere. No torch."""

from __future__ import annotations

import base64
import html
import ipaddress
import json
import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, quote_plus, urlsplit

from dfme.config.settings import TeacherConfig
from dfme.errors import OptionError, UserError, flag, say

# only an IPv6 address has brackets
HOST_AND_PORT = re.compile(r"(\[[0-9a-fA-F:.]+(%\w+)?\]|[^][:@]*)(:\d*)?")


def require_consent(url: str, authorised_by: str | None) -> None:
    """UserError unless the URL's host is this machine, or ``authorised_by`` says who allowed the
    queries.

    Also for what is no plain http or https URL. Nothing is sent, and no name is looked up: a name
    counts as this machine only if it is ``localhost`` or the machine's own.
    """
    host = host_of(url)
    if not any(character.isalnum() for character in authorised_by or "") and not is_this_machine(
        host
    ):
        raise OptionError(
            "teacher.url",
            say(
                "{} is not this machine; expected your own {teacher.authorised_by} "
                '"WHO ALLOWED IT AND WHY" (or the variable DFME_AUTHORISED_BY), what a file '
                "says does not count; nothing was sent",
                host,
            ),
        )


def host_of(url: str) -> str:
    """The host in an http or https URL, in lower case and without brackets; UserError for any other
    URL.

    Refused are URLs that two programs could read differently (white space, backslashes, a user
    before the host).
    """
    expected = f"{flag('teacher.url')}: expected a URL such as http://127.0.0.1:8080"
    if not url.isprintable() or " " in url or "\\" in url:
        raise UserError(
            f"{expected}, got one with blanks, backslashes or characters that cannot be seen"
        )
    try:
        parts = urlsplit(url)
        host = parts.hostname
        port = parts.port
    except ValueError:
        raise UserError(f"{expected}, got one whose host or port is none") from None
    if "@" in parts.netloc:
        raise OptionError(
            "teacher.url",
            say("expected no user or password in the URL; name a key with {teacher.api_key_env}"),
        )
    if parts.scheme not in ("http", "https"):
        scheme = f"{parts.scheme}:" if parts.scheme else repr(url[:20])
        raise OptionError("teacher.url", f"expected http:// or https://, got {scheme}")
    if "${" in parts.netloc:
        raise UserError(
            f"{expected}, got one with ${{NAME}} in its host, which whoever looks the host up "
            "would learn"
        )
    if not host or port == 0 or not HOST_AND_PORT.fullmatch(parts.netloc):
        raise UserError(f"{expected}, got one whose host or port is none")
    return host


def is_this_machine(host: str) -> bool:
    """True for this machine: a loopback, unspecified or own address, ``localhost``, its name."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.lower().rstrip(".") in ("localhost", socket.gethostname().lower().rstrip("."))
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    return address.is_loopback or address.is_unspecified or _is_own(address)


def _is_own(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """True if this machine has the address: only then would it send from it to it. Nothing is
    sent.
    """
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), 9))
            return ipaddress.ip_address(probe.getsockname()[0]) == address
    except OSError:
        return False


# Keys and tokens: taken from the environment by name, put in where they are sent, and hidden

# ``${NAME}`` in a text stands for the environment variable of that name
PLACEHOLDER = re.compile(r"\$\{([^}]*)\}")
HIDDEN = "***"

MIN_BASE64 = 8  # characters of base64 that are taken for a secret's: fewer occur by chance


class Secrets:
    """Values that no text for people, no log and no file may hold."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = dict(values)
        forms = {form for value in self._values.values() for form in _forms(value) if form}
        pattern = "|".join(map(re.escape, sorted(forms, key=len, reverse=True)))
        self._pattern = re.compile(pattern) if forms else None

    @classmethod
    def from_environment(cls, names: Iterable[str]) -> Secrets:
        """Values of environment variables; UserError for an unset one or an impossible header."""
        values = {}
        for name in names:
            value = os.environ.get(name, "").strip()
            if not (value and value.isascii() and value.isprintable()):
                raise UserError(
                    f"the environment variable {name} should hold a key, printable ASCII on one "
                    "line: "
                    f"export {name}=..."
                )
            values[name] = value
        return cls(values)

    @property
    def names(self) -> tuple[str, ...]:
        """The environment variables whose values these are."""
        return tuple(self._values)

    def fill(self, text: str) -> str:
        """The text with values for ``${NAME}``; UserError for a name without a secret."""
        return PLACEHOLDER.sub(lambda match: self._value(match[1]), text)

    def fill_url(self, url: str) -> str:
        """Like ``fill``, with the values written as a URL has to write them."""
        return PLACEHOLDER.sub(lambda match: quote(self._value(match[1]), safe=""), url)

    def hide(self, text: str) -> str:
        """The text with *** for every secret: as it is, and as URLs, JSON, HTML and base64 write
        it.
        """
        return text if self._pattern is None else self._pattern.sub(HIDDEN, text)

    def _value(self, name: str) -> str:
        if name not in self._values:
            names = ", ".join(self._values) or "none"
            raise UserError(
                f"${{{name}}}: expected the name of a secret read from the environment ({names})"
            )
        return self._values[name]


def read_secrets(options: Mapping[str, Any], url: str, *wanted: str) -> Secrets:
    """Values that go to ``url``: of the options' key, and of the variables that a file ``wanted``.

    UserError for a variable that is not in ``allow_env``, besides those of
    ``Secrets.from_environment``. Options without ``allow_env`` are those of a program, which allows
    its key.
    """
    key = options.get("api_key_env")
    allowed = options.get("allow_env")
    keys = [key] if key else []
    names = dict.fromkeys([*wanted, *keys])
    for name in names:
        if name not in (keys if allowed is None else allowed):
            raise UserError(
                say(
                    "the environment variable {} would be sent to {}, because a file asks for it; "
                    "where you want that, allow it with {teacher.allow_env} {}; nothing was sent",
                    name,
                    host_of(url),
                    name,
                )
            )
    return Secrets.from_environment(names)


def check_service(
    config: TeacherConfig, options: Mapping[str, Any], wanted: Sequence[str] = ()
) -> str:
    """First line of a command: which environment variables go to which host; empty if none do.

    UserError for a host without consent, a URL that is none, or a key, or another variable that a
    file ``wanted``, that the environment lacks or that the user did not allow to be sent.
    """
    require_consent(options["url"], options.get("authorised_by"))
    names = read_secrets(options, options["url"], *wanted).names
    return (
        f"sent to {host_of(options['url'])} from the environment: {', '.join(names)}"
        if names
        else ""
    )


def _forms(value: str) -> Iterator[str]:
    """The ways in which others write a value."""
    for quoted in (quote(value, safe=""), quote(value), quote_plus(value)):
        yield quoted
        yield re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), quoted)
    yield from (value, json.dumps(value)[1:-1], repr(value)[1:-1], html.escape(value))
    raw = value.encode()
    # base64 of the value alone, and the part that is the same at each offset in a longer text
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        coded = encode(raw).decode()
        yield from (coded, coded.rstrip("="))
        for before in range(3):
            start = -(-before * 4 // 3)
            end = (before + len(raw)) * 4 // 3
            inner = encode(b"\0" * before + raw).decode()[start:end]
            if len(inner) >= MIN_BASE64:
                yield inner
