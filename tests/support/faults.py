"""Everything that the hostile service can do to a question, by name; ``name:argument`` for those that take one."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator
from email.utils import formatdate
from typing import TYPE_CHECKING

import numpy as np
from protocols import LENGTH, Asked, Packed, code, packed, truth
from service import Do, Reply, Step, http

if TYPE_CHECKING:
    from hostile import Call

JSON, BYTES = {"Content-Type": "application/json"}, {"Content-Type": "application/octet-stream"}
Fault = Callable[["Call"], Reply]


def honest(call: Call) -> bytes:
    """The true answer, and no fault at all."""
    try:
        body, headers = call.answer()
    except (ValueError, KeyError, IndexError) as error:
        return http({"error": str(error)}, 400)
    return http(body, **headers)


def status(call: Call) -> bytes:
    """``429``, or with a Retry-After: ``429/0`` seconds, ``429/past`` and ``429/soon`` as dates."""
    number, _, wait = call.argument.partition("/")
    dates = {"past": -5.0, "soon": 1.0}
    date = formatdate(time.time() + dates[wait], usegmt=True) if wait in dates else wait
    return http(b'{"error": "not\\nnow"}', int(number), Retry_After=date, **JSON)


def served(call: Call, *given: Step) -> Iterator[Step]:
    """These steps, after the work was done."""
    call.serve()
    yield from given


def altered(call: Call, change: Callable[[bytes], bytes], *end: Step) -> Iterator[Step]:
    """The true head, and another body."""
    body, headers = call.answer()
    yield http(change(body), Content_Length=str(len(body)), **headers)
    yield from end


def drip(call: Call, first: bytes | None = None, piece: bytes = b"") -> Iterator[Step]:
    """A piece, or a byte of the true answer, now and then, so that no single read takes long."""
    body, headers = call.answer()
    yield http(b"", Content_Length=str(len(body)), **headers) if first is None else first
    for place in range(200):
        yield piece or body[place : place + 1]
        yield 0.05


def flaky(call: Call) -> Reply:
    """No answer to about one query in ``argument``, always the same ones, the first time that they come."""
    asked = call.serve()
    queries = [code(x) for x in asked.pixels]
    first = sum(entry.queries == queries for entry in list(call.server.served)) == 1
    if first and int(code(asked.pixels), 16) % int(call.argument) == 0:
        return iter([Do.RESET])
    body, headers = packed(asked, truth(asked.pixels))
    return http(body, **headers)


def reset_unread(call: Call) -> Iterator[Step]:
    """Cut off before the question was read: not served, but who asks cannot know."""
    call.drop()
    yield Do.RESET


def failed(call: Call) -> bytes:
    """500, or the status that is the argument, after the work was done."""
    call.serve()
    return http(b"<html>sorry</html>", int(call.argument or 500), Content_Type="text/html")


def crash(call: Call) -> Iterator[Step]:
    """Served, and gone without an answer; back after ``argument`` seconds, or never."""
    call.serve()
    call.go()
    yield Do.RESET


def die(call: Call) -> Iterator[Step]:
    """The true answer, and nobody at home from then on; back after ``argument`` seconds, or never."""
    body, headers = call.answer()
    call.go()
    yield http(body, Connection="close", **headers)
    yield Do.CLOSE


def chunked(call: Call) -> bytes:
    """The true answer, in chunks of 50 bytes and without a Content-Length."""
    body, headers = call.answer()
    pieces = [body[place : place + 50] for place in range(0, len(body), 50)]
    chunks = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in [*pieces, b""]]
    return http(b"", Content_Length="", Transfer_Encoding="chunked", **headers) + b"".join(chunks)


def endless(call: Call) -> Iterator[Step]:
    """The true answer and a hundred megabytes, without a Content-Length."""
    body, headers = call.answer()
    yield http(body, Content_Length="", Connection="close", **headers)
    yield from [bytes(100_000)] * 1_000
    yield Do.CLOSE


def gzip_bomb() -> bytes:
    """A gigabyte of zeros in a megabyte."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    start = packer.compress(bytes(1_000_000)) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(1_000_000)) + packer.flush(zlib.Z_FULL_FLUSH)
    return http(start + block * 999 + packer.flush(), Content_Encoding="gzip", **JSON)


def swapped(asked: Asked) -> Packed:
    """Binary said to be JSON for who wants binary, and JSON said to be binary for who wants JSON."""
    body, _ = packed(asked, truth(asked.pixels))
    return body, JSON if asked.wants_binary else BYTES | {LENGTH: "12"}


def some_nan(asked: Asked) -> Packed:
    scores = truth(asked.pixels)
    scores[-1, 3] = np.nan
    return packed(asked, scores, **({} if asked.wants_binary else {"data": scores.ravel().tolist()}))


def short_header(asked: Asked) -> Packed:
    """The JSON part is said to be longer than everything."""
    body, headers = packed(asked, truth(asked.pixels), binary=True)
    return body, headers | {LENGTH: str(len(body) + 1)}


def cut_short(asked: Asked) -> Packed:
    """As ``truncated``, but the Content-Length is that of what was sent."""
    body, headers = packed(asked, truth(asked.pixels))
    return body[:-7], headers


def over_long(asked: Asked) -> Packed:
    body, headers = packed(asked, truth(asked.pixels))
    return body + bytes(20_000_000), headers


ANSWERS: dict[str, Callable[[Asked], Packed]] = {
    "nan": some_nan,
    "one_image_less": lambda asked: packed(asked, truth(asked.pixels)[1:]),
    "one_class_more": lambda asked: packed(asked, np.pad(truth(asked.pixels), ((0, 0), (0, 1)))),
    "cut_short": cut_short,
    "negative": lambda asked: packed(asked, -truth(asked.pixels)),
    "other_name": lambda asked: packed(asked, truth(asked.pixels), name="embedding"),
    "other_type": lambda asked: packed(asked, truth(asked.pixels), datatype="BYTES"),
    "short_header": short_header,
    "swapped": swapped,
    "garbage_bytes": lambda asked: (np.random.default_rng(len(asked.pixels)).bytes(700), BYTES | {LENGTH: "90"}),
    "garbage_json": lambda asked: (b'{"outputs": [{"name": "y", "data": [0.1, 0.', JSON),
    "deep_json": lambda asked: (b"[" * 100_000, JSON),
    "no_outputs": lambda asked: (b'{"outputs": []}', JSON),
    "null": lambda asked: (b"null", JSON),
    "empty": lambda asked: (b"", JSON),
}
"""Well-formed HTTP, and wrong in what it carries."""


def answered(make: Callable[[Asked], Packed]) -> Fault:
    """A fault that serves, and answers what ``make`` makes of the question."""

    def fault(call: Call) -> bytes:
        body, headers = make(call.serve())
        return http(body, **headers)

    return fault


REFUSALS = ("status:429", "status:429/0", "status:429/past", "status:503", "status:503/0")
"""Not served, and worth another try."""

HARMLESS: dict[str, Fault] = {
    "slow": lambda call: iter([float(call.argument), honest(call)]),
    "chunked": chunked,
    "hang_up": lambda call: iter([Do.HOLD, honest(call), Do.CLOSE]),
    "die": die,
}
"""The true answer, if not politely."""

UNANSWERED: dict[str, Fault] = {
    "reset_unread": reset_unread,
    "reset_served": lambda call: served(call, Do.RESET),
    "reset_in_body": lambda call: altered(call, lambda body: body[: len(body) // 2], Do.RESET),
    "failed": failed,
    "silent": lambda call: served(call, Do.SILENT),
    "dripping": drip,
    "dripping_head": lambda call: drip(call, b"HTTP/1.1 200 Hostile\r\nX-Slow: ", b"s"),
    "hints": lambda call: drip(call, b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
    "truncated": lambda call: altered(call, lambda body: body[:-7], Do.CLOSE),
    "crash": crash,
}
"""No answer, or the service's own failure: it may have been served."""

UNUSABLE: dict[str, Fault] = {
    "over_long": answered(over_long),
    "endless": endless,
    "gzip_bomb": lambda call: served(call, gzip_bomb()),
    **{name: answered(make) for name, make in ANSWERS.items()},
    "not_http": lambda call: served(call, b"SSH-2.0-OpenSSH_9.9\r\n\r\n", Do.CLOSE),
}
"""Answered, with what cannot be an answer."""

FAULTS: dict[str, Fault] = {
    "honest": honest,
    "status": status,
    "redirect": lambda call: http(b"", 307, Location=call.argument or call.request.path),
    "flaky": flaky,
    "twice": lambda call: honest(call) * 2,  # who reads on takes the second for the answer to the next question
    "overrun": lambda call: altered(call, lambda body: body + bytes(100)),  # these stand before the next answer
    **HARMLESS,
    **UNANSWERED,
    **UNUSABLE,
}
