"""Large documents of JSON, read in a way that lets other threads work meanwhile.

Python's reader holds the interpreter lock until it is done: 1.4 to 5 s for 60 MB of numbers. It
releases the lock when it calls a Python function, which it does here for each number and each
object. What it reads without such a call is limited in a document from a client
(``require_numbers``).
"""

import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

HEADER_LENGTH = "Inference-Header-Content-Length"
"""The HTTP header that says how long the JSON at the start of a body is, where raw bytes follow."""

LARGE = 2**20  # bytes; a smaller document takes some milliseconds
PIECE = 2**20  # bytes that are searched without releasing the lock
FILLERS = (b'"', b"null", b"true", b"false", b"[]")
MAX_FILLERS = 2**20  # texts, nulls and empty lists in a large document
MAX_LISTS = 2**22
MAX_DIGITS = 1_000  # characters of a number


def load_json(body: bytes) -> Any:
    """Like ``json.loads``, but in a large document for numbers of over 1,000 characters."""
    if len(body) <= LARGE:
        return json.loads(body)
    with _without_collector():
        return json.loads(
            body,
            parse_float=lambda text: float(_bounded(text)),
            parse_int=lambda text: int(_bounded(text)),
            object_pairs_hook=lambda pairs: dict(pairs),
        )


def require_numbers(body: bytes) -> None:
    """ValueError for a large document that is not mostly numbers."""
    if len(body) <= LARGE:
        return
    encoding = json.detect_encoding(body)
    if encoding not in ("utf-8", "utf-8-sig"):
        body = body.decode(encoding, "surrogatepass").encode("utf-8", "surrogatepass")
    fillers = 0
    lists = 0
    for start in range(0, len(body), PIECE):
        piece = body[start : start + PIECE].translate(None, b" \t\r\n")
        fillers += sum(map(piece.count, FILLERS))
        lists += piece.count(b"[")
    if fillers > MAX_FILLERS:
        wanted = f"expected at most {MAX_FILLERS} texts, nulls and empty lists"
        raise ValueError(f"{wanted}, got {fillers}")
    if lists > MAX_LISTS:
        raise ValueError(f"expected at most {MAX_LISTS} lists, got {lists}; send smaller batches")


@contextmanager
def _without_collector() -> Iterator[None]:
    """Without it: the garbage collector would walk all lists again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _bounded(text: str) -> str:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"expected numbers of at most {MAX_DIGITS} characters, got {len(text)}")
    return text
