"""Keys and tokens: taken from the environment by name, put in where they are sent, hidden
everywhere else.
"""

from __future__ import annotations

import base64
import html
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, quote_plus

from dfme.config.settings import TeacherConfig
from dfme.errors import UserError, say
from dfme.teachers.remote.consent import host_of, require_consent

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
