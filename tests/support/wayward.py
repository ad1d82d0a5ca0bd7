"""A server on loopback whose every answer a test writes itself, byte by byte, and an endpoint to ask it."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from teachers.remote.endpoint import Endpoint, Reply
from teachers.remote.options import ServiceOptions
from teachers.remote.secrets import Secrets

KEY = "s3cr3t/k+y-of-mine"
"""What DFME_KEY holds for every endpoint."""

PATIENT = 30.0
"""Seconds that nothing here should take."""


@dataclass(frozen=True)
class Request:
    """A request as it came."""

    line: str
    headers: dict[str, str]
    body: bytes


Answer = bytes | Callable[[Request, socket.socket], bytes | None]
"""Bytes to send, or what finds them for a request; None: it has dealt with the connection, which is then closed."""


class Wayward:
    """Listens on a free port; each connection has a thread, which has every request answered with ``what``."""

    def __init__(self, what: Answer, context: ssl.SSLContext | None = None) -> None:
        self.requests: list[Request] = []
        self.connections = 0
        self._what = what
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        self.port: int = self._listener.getsockname()[1]
        self.url = f"{'https' if context else 'http'}://127.0.0.1:{self.port}"

    def __enter__(self) -> Wayward:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection if self._context is None else self._context.wrap_socket(connection, True) as stream:
                while (request := read_request(stream)) is not None:
                    self.requests.append(request)
                    sent = self._what(request, stream) if callable(self._what) else self._what
                    if sent is None:
                        return
                    stream.sendall(sent)
        except OSError:
            return


def read_request(stream: socket.socket) -> Request | None:
    """The next request; None once the client hangs up."""
    received = b""
    while b"\r\n\r\n" not in received:
        if not (part := stream.recv(65_536)):
            return None
        received += part
    head, _, body = received.partition(b"\r\n\r\n")
    line, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in lines)}
    while len(body) < int(headers.get("content-length", "0")):
        if not (part := stream.recv(65_536)):
            return None
        body += part
    return Request(line, headers, body)


def answer(body: bytes = b"", status: str = "200 OK", **headers: str) -> bytes:
    """A whole answer; underscores in the names of headers are hyphens, and none at all leaves a header out."""
    lines = {"Content-Length": str(len(body)), **{name.replace("_", "-"): value for name, value in headers.items()}}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value)
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode("latin-1") + body


def reset(stream: socket.socket) -> None:
    """Close the connection as a crash does, without a farewell."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.close()


def endpoint(url: str, timeout: float = PATIENT, **options: Any) -> closing[Endpoint]:
    """An endpoint that knows one secret, DFME_KEY; closed at the end of the block."""
    return closing(Endpoint(ServiceOptions(url=url, timeout=timeout, **options), url, Secrets({"DFME_KEY": KEY})))


def post(url: str, path: str = "/ask", body: bytes = b"question", most: int = 1000, **options: Any) -> Reply:
    """The answer to one post."""
    with endpoint(url, **options) as service:
        return service.post(path, body, {"Idempotency-Key": "k1"}, most)


def get(url: str, path: str, most: int = 1000) -> Reply:
    """The answer to one question before the run."""
    with endpoint(url) as service:
        return service.get(path, most)


def post_once(what: Answer, **options: Any) -> Reply:
    """The answer to one post to a server that answers so."""
    with Wayward(what) as server:
        return post(server.url, **options)
