"""Names of classes and files: shown on one line, refused where files and pages cannot hold them."""

import unicodedata
from collections.abc import Iterable, Sequence

from dfme.errors import UserError

SHOWN = 6  # names in one line

BIDIRECTIONAL = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Letters that reverse the text around them."""


def shown(name: str) -> str:
    """A name for a message, on one line, without letters that move a cursor."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in name)
    return plain if len(plain) <= 80 else f"{plain[:60]}...{plain[-15:]}"


def listed(names: Iterable[str]) -> str:
    """Names for a message, of many the first."""
    every = [*names]
    more = f" and {len(every) - SHOWN:,} more" if len(every) > SHOWN else ""
    return ", ".join(map(shown, every[:SHOWN])) + more


def require_names(names: Sequence[str], where: str) -> None:
    """UserError for a name of a class that files and pages cannot hold.

    They end up in JSON, YAML and HTML, which are written after everything is paid for.
    """
    for name in names:
        problem = _problem_of(name)
        if problem:
            raise UserError(f"{where}: the name {shown(name)!r} {problem}; give it another name")


def require_text(names: Iterable[object], where: str) -> None:
    """UserError for a class name of a teacher that is not UTF-8; all else is made plain when it is
    shown.
    """
    for name in names:
        if isinstance(name, str) and not _is_utf8(name):
            raise UserError(f"{where}: the name {shown(name)!r} is not UTF-8; give it another name")


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _problem_of(name: str) -> str:
    if not _is_utf8(name):
        return "is not UTF-8"
    kinds = {unicodedata.category(letter) for letter in name}
    if kinds & {"Cc", "Zl", "Zp"}:
        return "has a line break or another control character"
    return "has a letter that reverses text" if BIDIRECTIONAL & {*name} else ""
