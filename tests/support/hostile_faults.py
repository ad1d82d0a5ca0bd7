"""Everything that the hostile server can do to a question, by name; ``name:argument`` for those that take one."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from email.utils import formatdate
from typing import TYPE_CHECKING

from hostile_answers import ANSWERS, Answer
from hostile_v2 import Query, code

if TYPE_CHECKING:
    from hostile_exchange import Exchange

Fault = Callable[["Exchange", str], None]


# Not served: the service says so


def status(exchange: Exchange, argument: str) -> None:
    """``429``, or with a Retry-After: ``429/0`` seconds, ``429/past`` and ``429/soon`` as dates."""
    number, _, wait = argument.partition("/")
    dates = {"past": -5.0, "soon": 1.0}
    headers = {}
    if wait:
        headers["Retry-After"] = formatdate(time.time() + dates[wait], usegmt=True) if wait in dates else wait
    exchange.read()
    exchange.send(int(number), b'{"error": "not\\nnow"}', {"Content-Type": "application/json"} | headers)


def redirect(exchange: Exchange, argument: str) -> None:
    """307 to ``argument``; to itself without one."""
    exchange.read()
    exchange.send(307, b"", {"Location": argument or exchange.path})


# May have been served


def reset_unread(exchange: Exchange, argument: str) -> None:
    """Cut off before the question was read: not served, but who asks cannot know."""
    exchange.drop()
    exchange.reset()


def reset_served(exchange: Exchange, argument: str) -> None:
    exchange.serve()
    exchange.reset()


def reset_in_body(exchange: Exchange, argument: str) -> None:
    body, headers = exchange.serve().answer
    exchange.send(200, body[: len(body) // 2], headers, length=len(body))
    exchange.reset()


def failed(exchange: Exchange, argument: str) -> None:
    """500, or the status that is the argument, after the work was done."""
    exchange.serve()
    exchange.send(int(argument or 500), b"<html>sorry</html>", {"Content-Type": "text/html"})


def silent(exchange: Exchange, argument: str) -> None:
    """No answer for as long as somebody waits for it."""
    exchange.serve()
    exchange.wait_for_the_end()


def dripping(exchange: Exchange, argument: str) -> None:
    """A byte now and then, so that no single read takes long."""
    body, headers = exchange.serve().answer
    exchange.send(200, b"", headers, length=len(body))
    for place in range(200):
        exchange.raw(body[place : place + 1])
        time.sleep(0.05)


def dripping_head(exchange: Exchange, argument: str) -> None:
    """The same before the answer's body has begun."""
    exchange.serve()
    exchange.raw(b"HTTP/1.1 200 Hostile\r\nX-Slow: ")
    for _ in range(200):
        exchange.raw(b"s")
        time.sleep(0.05)


def hints(exchange: Exchange, argument: str) -> None:
    """Interim answers, and never the answer."""
    exchange.serve()
    for _ in range(200):
        exchange.raw(b"HTTP/1.1 103 Early Hints\r\n\r\n")
        time.sleep(0.05)


def flaky(exchange: Exchange, argument: str) -> None:
    """No answer to about one query in ``argument``, always the same ones, the first time that they come."""
    query = exchange.serve()
    first = exchange.server.times_served(query) == 1
    if first and int(code(query.images), 16) % int(argument) == 0:
        exchange.reset()
    else:
        body, headers = query.answer
        exchange.send(200, body, headers)


def truncated(exchange: Exchange, argument: str) -> None:
    body, headers = exchange.serve().answer
    exchange.send(200, body[:-7], headers, length=len(body))
    exchange.close()


def crash(exchange: Exchange, argument: str) -> None:
    """Served, and gone without an answer; back after ``argument`` seconds, or never."""
    exchange.serve()
    exchange.server.down(float(argument) if argument else None)
    exchange.reset()


# Answered, with what cannot be an answer


def over_long(exchange: Exchange, argument: str) -> None:
    body, headers = exchange.serve().answer
    exchange.send(200, body + bytes(20_000_000), headers)


def endless(exchange: Exchange, argument: str) -> None:
    body, headers = exchange.serve().answer
    exchange.send(200, body, headers | {"Connection": "close"}, length=None)
    for _ in range(1_000):
        exchange.raw(bytes(100_000))
    exchange.close()


def gzip_bomb(exchange: Exchange, argument: str) -> None:
    """A gigabyte of zeros in a megabyte."""
    exchange.serve()
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    start = packer.compress(bytes(1_000_000)) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(1_000_000)) + packer.flush(zlib.Z_FULL_FLUSH)
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    exchange.send(200, start + block * 999 + packer.flush(), headers)


def answered(make: Callable[[Query], Answer]) -> Fault:
    """A fault that serves, and answers what ``make`` makes of the question."""

    def fault(exchange: Exchange, argument: str) -> None:
        body, headers = make(exchange.serve())
        exchange.send(200, body, headers)

    return fault


def not_http(exchange: Exchange, argument: str) -> None:
    exchange.serve()
    exchange.raw(b"SSH-2.0-OpenSSH_9.9\r\n\r\n")
    exchange.close()


# Answered well, but not politely


def slow(exchange: Exchange, argument: str) -> None:
    """The true answer, after ``argument`` seconds."""
    body, headers = exchange.serve().answer
    time.sleep(float(argument))
    exchange.send(200, body, headers)


def chunked(exchange: Exchange, argument: str) -> None:
    """The true answer, in chunks of 50 bytes and without a Content-Length."""
    body, headers = exchange.serve().answer
    exchange.send(200, b"", headers | {"Transfer-Encoding": "chunked"}, length=None)
    for place in range(0, len(body), 50):
        piece = body[place : place + 50]
        exchange.raw(b"%x\r\n%b\r\n" % (len(piece), piece))
    exchange.raw(b"0\r\n\r\n")


def twice(exchange: Exchange, argument: str) -> None:
    """The true answer two times over: who reads on takes the second for the answer to the next question."""
    body, headers = exchange.serve().answer
    exchange.cork()
    exchange.send(200, body, headers)
    exchange.send(200, body, headers)
    exchange.cork(False)


def overrun(exchange: Exchange, argument: str) -> None:
    """The true answer, and more bytes than the Content-Length says: they stand before the next answer."""
    body, headers = exchange.serve().answer
    exchange.send(200, body + bytes(100), headers, length=len(body))


def hang_up(exchange: Exchange, argument: str) -> None:
    """The true answer on a connection that is then closed without a word."""
    body, headers = exchange.serve().answer
    exchange.cork()
    exchange.send(200, body, headers)
    exchange.close()


def die(exchange: Exchange, argument: str) -> None:
    """The true answer, and nobody at home from then on; back after ``argument`` seconds, or never."""
    body, headers = exchange.serve().answer
    exchange.server.down(float(argument) if argument else None)
    exchange.send(200, body, headers | {"Connection": "close"})
    exchange.close()


HARMLESS: dict[str, Fault] = {"slow": slow, "chunked": chunked, "hang_up": hang_up, "die": die}

REFUSALS = ("status:429", "status:429/0", "status:429/past", "status:503", "status:503/0")
"""Not served, and worth another try."""

UNANSWERED: dict[str, Fault] = {
    "reset_unread": reset_unread,
    "reset_served": reset_served,
    "reset_in_body": reset_in_body,
    "failed": failed,
    "silent": silent,
    "dripping": dripping,
    "dripping_head": dripping_head,
    "hints": hints,
    "truncated": truncated,
    "crash": crash,
}

UNUSABLE: dict[str, Fault] = {
    "over_long": over_long,
    "endless": endless,
    "gzip_bomb": gzip_bomb,
    **{name: answered(make) for name, make in ANSWERS.items()},
    "not_http": not_http,
}

BY_NAME: dict[str, Fault] = {
    "status": status,
    "redirect": redirect,
    "flaky": flaky,
    "twice": twice,
    "overrun": overrun,
}

FAULTS: dict[str, Fault] = BY_NAME | HARMLESS | UNANSWERED | UNUSABLE
