"""Everything that the hostile service can do to a question, by name."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator
from email.utils import formatdate
from typing import TYPE_CHECKING

import numpy as np
from protocols import LENGTH, code, truth
from service import Do, Reply, Step, http

if TYPE_CHECKING:
    from hostile import Call

JSON, BYTES = {"Content-Type": "application/json"}, {"Content-Type": "application/octet-stream"}
HTML = {"Content-Type": "text/html"}
Fault = Callable[["Call"], Reply]


def honest(call: Call) -> bytes:
    """The true answer, and no fault at all."""
    try:
        return call.true()
    except (ValueError, KeyError, IndexError) as error:
        return http({"error": str(error)}, 400)


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


def drip(call: Call, first: bytes | None = None, piece: bytes = b"") -> Iterator[Step]:
    """A piece, or a byte of the true answer, now and then, so that no single read takes long."""
    head, end, body = call.true().partition(b"\r\n\r\n")
    yield head + end if first is None else first
    for place in range(200):
        yield piece or body[place : place + 1]
        yield 0.05


def flaky(call: Call) -> Reply:
    """No answer to about one query in ``argument``, always the same ones, the first time that they
    come.
    """
    true, pixels = call.true(), call.read().pixels
    queries = [code(x) for x in pixels]
    first = sum(entry.queries == queries for entry in list(call.server.served)) == 1
    return iter([Do.RESET]) if first and int(code(pixels), 16) % int(call.argument) == 0 else true


def reset_unread(call: Call) -> Iterator[Step]:
    """Cut off before the question was read: not served, but who asks cannot know."""
    call.drop()
    yield Do.RESET


def crash(call: Call) -> Iterator[Step]:
    """Served, and gone without an answer; back after ``argument`` seconds, or never."""
    call.serve()
    call.go()
    yield Do.RESET


def die(call: Call) -> Iterator[Step]:
    """The true answer, and nobody at home from then on; back after ``argument`` seconds, or
    never.
    """
    true = call.true(Connection="close")
    call.go()
    yield true
    yield Do.CLOSE


def endless(call: Call) -> Iterator[Step]:
    """The true answer and a hundred megabytes, without a Content-Length."""
    yield call.true(Content_Length="", Connection="close")
    yield from [bytes(100_000)] * 1_000
    yield Do.CLOSE


def chunks(body: bytes) -> bytes:
    """In pieces of 50 bytes, as Transfer-Encoding: chunked has them."""
    pieces = [body[place : place + 50] for place in range(0, len(body), 50)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in [*pieces, b""])


def gzip_bomb() -> bytes:
    """A gigabyte of zeros in a megabyte."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    start = packer.compress(bytes(1_000_000)) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(1_000_000)) + packer.flush(zlib.Z_FULL_FLUSH)
    return http(start + block * 999 + packer.flush(), Content_Encoding="gzip", **JSON)


def changed(change: Callable[[np.ndarray], np.ndarray], **changes: object) -> Fault:
    """An answer with other scores, or with other words of the protocol."""

    def fault(call: Call) -> bytes:
        asked = call.serve()
        body, headers = call.packed(asked, change(truth(asked.pixels)), **changes)
        return http(body, **headers)

    return fault


def some_nan(call: Call) -> bytes:
    """In JSON as the word NaN."""
    asked = call.serve()
    scores = truth(asked.pixels)
    scores[-1, 3] = np.nan
    said = {} if asked.wants_binary else {"data": scores.ravel().tolist()}
    body, headers = call.packed(asked, scores, **said)
    return http(body, **headers)


def swapped(call: Call) -> bytes:
    """Binary said to be JSON for who wants binary, and JSON said to be binary for who wants
    JSON.
    """
    return call.true(
        **({LENGTH: ""} | JSON if call.read().wants_binary else {LENGTH: "12"} | BYTES)
    )


def noise(call: Call) -> bytes:
    random = np.random.default_rng(len(call.serve().pixels)).bytes(700)
    return http(random, **{LENGTH: "90"} | BYTES)


REFUSALS = ("status:429", "status:429/0", "status:429/past", "status:503", "status:503/0")
"""Not served, and worth another try."""

HARMLESS: dict[str, Fault] = {
    "slow": lambda call: iter([float(call.argument), honest(call)]),
    "chunked": lambda call: call.true(chunks, Content_Length="", Transfer_Encoding="chunked"),
    "hang_up": lambda call: iter([Do.HOLD, honest(call), Do.CLOSE]),
    "die": die,
}
"""The true answer, if not politely."""

UNANSWERED: dict[str, Fault] = {
    "reset_unread": reset_unread,
    "reset_served": lambda call: served(call, Do.RESET),
    "reset_in_body": lambda call: iter([call.true(lambda body: body[: len(body) // 2]), Do.RESET]),
    "failed": lambda call: served(
        call, http(b"<html>sorry</html>", int(call.argument or 500), **HTML)
    ),
    "silent": lambda call: served(call, Do.SILENT),
    "dripping": drip,
    "dripping_head": lambda call: drip(call, b"HTTP/1.1 200 Hostile\r\nX-Slow: ", b"s"),
    "hints": lambda call: drip(call, b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
    "truncated": lambda call: iter([call.true(lambda body: body[:-7]), Do.CLOSE]),
    "crash": crash,
}
"""No answer, or the service's own failure (also ``failed:502``): it may have been served."""

UNUSABLE: dict[str, Fault] = {
    "over_long": lambda call: call.true(lambda body: body + bytes(20_000_000), said=False),
    "endless": endless,
    "gzip_bomb": lambda call: served(call, gzip_bomb()),
    "nan": some_nan,
    "one_image_less": changed(lambda scores: scores[1:]),
    "one_class_more": changed(lambda scores: np.pad(scores, ((0, 0), (0, 1)))),
    "cut_short": lambda call: call.true(lambda body: body[:-7], said=False),
    "negative": changed(lambda scores: -scores),
    "other_name": changed(lambda scores: scores, name="embedding"),
    "other_type": changed(lambda scores: scores, datatype="BYTES"),
    # the JSON part longer than everything
    "short_header": lambda call: call.true(binary=True, **{LENGTH: "9999"}),
    "swapped": swapped,
    "garbage_bytes": noise,
    "garbage_json": lambda call: served(
        call, http(b'{"outputs": [{"name": "y", "data": [0.1, 0.', **JSON)
    ),
    "deep_json": lambda call: served(call, http(b"[" * 100_000, **JSON)),
    "no_outputs": lambda call: served(call, http(b'{"outputs": []}', **JSON)),
    "null": lambda call: served(call, http(b"null", **JSON)),
    "empty": lambda call: served(call, http(b"", **JSON)),
    "not_http": lambda call: served(call, b"SSH-2.0-OpenSSH_9.9\r\n\r\n", Do.CLOSE),
}
"""Answered, with what cannot be an answer."""

FAULTS: dict[str, Fault] = {
    "honest": honest,
    "status": status,
    # to itself without one
    "redirect": lambda call: http(b"", 307, Location=call.argument or call.request.path),
    "flaky": flaky,
    # who reads on takes the second for the answer to the next question
    "twice": lambda call: honest(call) * 2,
    "overrun": lambda call: call.true(
        lambda body: body + bytes(100)
    ),  # these stand before the next answer
    **HARMLESS,
    **UNANSWERED,
    **UNUSABLE,
}
