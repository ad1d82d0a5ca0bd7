"""One connection to the hostile server: HTTP by hand, so that it can be broken anywhere."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hostile_faults import FAULTS
from hostile_v2 import IMAGE_BYTES, NAME, Query, read_query

if TYPE_CHECKING:
    from hostile import Hostile

INFER = f"/v2/models/{NAME}/infer"


class Exchange:
    """A connection, and the request on it that is being dealt with."""

    def __init__(self, server: Hostile, connection: socket.socket) -> None:
        self.server, self._connection = server, connection
        self._input = connection.makefile("rb")
        self.path, self.headers, self.number = "", {}, 0  # type: str, dict[str, str], int
        self._method, self._open = "", True
        self._body: bytes | None = None

    def next(self) -> bool:
        """Read the head of the next request, if there is one."""
        line = self._input.readline() if self._open else b""
        if not line:
            self._input.close()
            return False
        self._method, self.path, _ = line.decode("latin-1").split(" ", 2)
        self.headers, self._body = {}, None
        while (line := self._input.readline().strip()) and (pair := line.decode("latin-1").split(":", 1)):
            self.headers[pair[0].lower()] = pair[1].strip()
        return True

    def answer(self) -> None:
        """Do what is planned to a question, and what is asked to everything else."""
        self.server.requests += 1
        name, value = self.server.need or ("", "")
        if name and self.headers.get(name.lower()) != value:
            self.read()
            self.send(401, b'{"error": "who are you?"}', {"Content-Type": "application/json"})
        elif self._method == "POST" and self.path == INFER:
            self._infer()
        else:
            page = self.server.pages.get(self.path, 404) if self._method == "GET" else 405
            self.read()
            status, body = (page, {"error": "no"}) if isinstance(page, int) else (200, page)
            self.send(status, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _infer(self) -> None:
        self.number = self.server.begin()
        try:
            name, _, argument = (self.server.fault(self.number) or "none").partition(":")
            if name != "none":
                FAULTS[name](self, argument)
                return
            try:
                body, headers = self.serve().answer
            except (ValueError, KeyError, IndexError) as error:
                self.send(400, json.dumps({"error": str(error)}).encode(), {"Content-Type": "application/json"})
                return
            self.send(200, body, headers)
        finally:
            self.server.end()

    def read(self) -> bytes:
        """The body of the request. ConnectionError if it does not come to its end."""
        if self._body is None:
            size = int(self.headers.get("content-length", "0"))
            self._body = self._input.read(size)
            if len(self._body) < size:
                raise ConnectionError("the client has gone")
        return self._body

    def serve(self) -> Query:
        """Compute the answer, and count it. ValueError for what cannot be answered, which is not counted."""
        query = read_query(self.read(), self.headers.get("inference-header-content-length"))
        if self.server.max_batch is not None and len(query.images) > self.server.max_batch:
            raise ValueError(f"inference request batch-size must be <= {self.server.max_batch} for '{NAME}'")
        self.server.meter(self.number, query, self.headers.get("idempotency-key", ""))
        return query

    def drop(self) -> None:
        """Count what the question holds, without reading it where it is binary, and go no further."""
        head = self.headers.get("inference-header-content-length")
        if head is None:
            self.server.drop(len(read_query(self.read(), None).images))
        else:
            self.server.drop((int(self.headers["content-length"]) - int(head)) // IMAGE_BYTES)

    def send(self, status: int, body: bytes, headers: Mapping[str, str], length: int | None = -1) -> None:
        """Answer; ``length``: what Content-Length says, None: nothing."""
        lines = [f"HTTP/1.1 {status} Hostile", *(f"{name}: {value}" for name, value in headers.items())]
        if length is not None:
            lines.append(f"Content-Length: {len(body) if length < 0 else length}")
        self.raw("\r\n".join([*lines, "", ""]).encode() + body)

    def raw(self, data: bytes) -> None:
        self._connection.sendall(data)

    def close(self) -> None:
        """End the connection in good order."""
        self._open = False
        self._input.close()
        self._connection.close()

    def reset(self) -> None:
        """Tear the connection down."""
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def cork(self, on: bool = True) -> None:
        """Hold back what is sent, so that it goes out together, also with the end of the connection."""
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, on)

    def wait_for_the_end(self) -> None:
        """Until the other side gives up."""
        while self._input.read(1):
            pass
        self.close()
