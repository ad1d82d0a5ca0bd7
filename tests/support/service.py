"""One HTTP service on loopback for all tests: a function from a request to what is sent.

``with Service(lambda request: {"said": request.json}) as service``: ask ``service.url``, then look
at ``service.requests``. What the function gives is sent so: a JSON document as a whole answer,
bytes as they are (``http`` makes a whole answer of a body), and an iterator step by step: bytes,
seconds to wait, and what ``Do`` has.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cached_property
from typing import Any, BinaryIO


class Do(Enum):
    """What can be done to a connection besides sending."""

    CLOSE = "end it in good order"
    RESET = "end it as a crash does, without a farewell"
    SILENT = "send nothing more until the other side gives up"
    HOLD = "hold back what is sent, so that it goes out together with the end"


Step = bytes | float | Do
Reply = Any
"""Bytes, an iterator of steps, or a JSON document."""


def http(body: object = b"", status: int | str = 200, /, **headers: str) -> bytes:
    """A whole answer; underscores in the names of headers are hyphens."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    kind = {} if isinstance(body, bytes) else {"Content-Type": "application/json"}
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    lines = {"Content-Length": str(len(content)), **kind, **given}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value)
    words = f"{status} Scripted" if isinstance(status, int) else status
    return f"HTTP/1.1 {words}\r\n{head}\r\n".encode("latin-1") + content


def steps(reply: Reply) -> Iterator[Step]:
    """A reply of any kind, step by step."""
    if isinstance(reply, Iterator):
        yield from reply
    else:
        yield reply if isinstance(reply, bytes) else http(reply)


def then(*given: Step) -> Callable[[Request], Iterator[Step]]:
    """What answers every request by these steps."""
    return lambda request: iter(given)


class Request:
    """A request as it came; names of headers are in lower case. Its body is read when it is first
    looked at."""

    def __init__(self, line: str, headers: dict[str, str], stream: BinaryIO) -> None:
        self.line, self.headers, self._stream = line, headers, stream
        self.method, self.path, _ = line.split(" ", 2)

    @cached_property
    def body(self) -> bytes:
        """ConnectionError if it does not come to its end."""
        size = int(self.headers.get("content-length", "0"))
        body = self._stream.read(size)
        if len(body) < size:
            raise ConnectionError("the client has gone")
        return body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Service:
    """Up from ``__enter__`` to ``__exit__``. ``tls``: a context, for https."""

    def __init__(
        self, what: Reply | Callable[[Request], Reply] = b"", tls: ssl.SSLContext | None = None
    ) -> None:
        self.what, self.tls, self.port = what, tls, 0
        self.requests: list[Request] = []
        self.connections = 0
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener: socket.socket | None = None

    def reply(self, request: Request) -> Reply:
        """What a request gets, once it is there as a whole."""
        assert request.body is not None
        return self.what(request) if callable(self.what) else self.what

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}"

    @property
    def posted(self) -> list[Request]:
        return [request for request in self.requests if request.method == "POST"]

    def __enter__(self) -> Service:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)

    def up(self) -> None:
        """Listen, on the same port as before if there was one."""
        listener = socket.create_server(("127.0.0.1", self.port), backlog=64)
        self.port, self._listener = listener.getsockname()[1], listener
        self._start(self._accept, listener)

    def down(self, seconds: float | None = None) -> None:
        """Take no connection any more: it is refused; up again after so many seconds, if given."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        if seconds is not None:
            self._start(self._up_after, seconds)

    def _up_after(self, seconds: float) -> None:
        time.sleep(seconds)
        self.up()

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                self.connections += 1
                self._start(self._talk, connection)

    def _talk(self, stream: socket.socket) -> None:
        """Answer the requests of one connection."""
        try:
            with contextlib.suppress(OSError):
                # else a second write waits for 40 ms
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
                if self.tls is not None:
                    stream = self.tls.wrap_socket(stream, server_side=True)
                with self._lock:
                    self._open.add(stream)
                with stream.makefile("rb") as received:
                    while (request := self._next(received)) and carry_out(
                        steps(self.reply(request)), stream
                    ):
                        assert request.body is not None  # what follows it is the next request
        finally:
            with self._lock:
                self._open.discard(stream)
            stream.close()

    def _next(self, received: BinaryIO) -> Request | None:
        """The next request, with its body still to come; None once the client hangs up or speaks no
        HTTP.
        """
        if (line := received.readline()).count(b" ") < 2:
            return None
        headers = {}
        while field := received.readline().strip():
            name, _, value = field.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        request = Request(line.decode("latin-1").strip(), headers, received)
        with self._lock:
            self.requests.append(request)
        return request


def carry_out(given: Iterator[Step], stream: socket.socket) -> bool:
    """Do one step after the other; whether the connection is still good for another request."""
    for step in given:
        if isinstance(step, bytes):
            stream.sendall(step)
        elif isinstance(step, float):
            time.sleep(step)
        elif step is Do.HOLD:
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, True)
        else:
            while step is Do.SILENT and stream.recv(1_000):
                pass
            if step is Do.RESET:
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return False
    return True
