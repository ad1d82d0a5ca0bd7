"""A server of a known model that does to its clients whatever real services do, and keeps a meter of its own.

In a thread (``with Hostile({3: "status:429/0"}) as server``) or as a process, whose meter is a file::

    python tests/hostile.py --port 0 --every 3 --faults status:429/0,failed:500 --log served.jsonl

``plan`` says, for the number of a question (from 1, in the order in which their heads came), what is done to it:
a name of ``hostile_faults.FAULTS``, with ``:argument`` for those that take one; nothing: it is answered truly.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hostile_exchange import INFER, Exchange
from hostile_v2 import MODEL, NAME, SERVER, Query, code, truth

__all__ = ["INFER", "Hostile", "Served", "every", "read_log"]

Plan = Mapping[int, str] | Callable[[int], str | None]

PAGES: dict[str, object] = {
    "/v2": SERVER,
    "/v2/health/live": {"live": True},
    "/v2/health/ready": {"ready": True},
    f"/v2/models/{NAME}": MODEL,
    f"/v2/models/{NAME}/ready": {"name": NAME, "ready": True},
}


def every(step: int, faults: Iterable[str]) -> Callable[[int], str | None]:
    """On each ``step``-th question the next of ``faults``, round and round."""
    names = list(faults)
    return lambda number: names[(number // step - 1) % len(names)] if number % step == 0 else None


class Served(NamedTuple):
    """One entry of the meter: written when the answer is computed, before it is sent."""

    number: int
    images: int
    queries: list[str]
    answers: list[str]
    key: str


class Hostile:
    """The server, up from ``__enter__`` to ``__exit__``.

    ``pages``: what GET gives, by path, a status or JSON. ``max_batch``: larger questions get a 400, as from Triton.
    ``when_served`` is called with the number of each question once it is on the meter, before the answer is sent.
    ``need``: a header that every request must have, else 401. ``tls``: a context, for https. ``log``: a file for
    the meter.
    """

    def __init__(
        self,
        plan: Plan | None = None,
        *,
        port: int = 0,
        pages: Mapping[str, object] | None = None,
        max_batch: int | None = None,
        need: tuple[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        log: Path | None = None,
    ) -> None:
        self.plan: Plan = plan or {}
        self.pages = {**PAGES, **(pages or {})}
        self.max_batch, self.need, self.tls = max_batch, need, tls
        self.served: list[Served] = []
        self.dropped = self.questions = self.requests = 0
        self.most_at_once = self._at_once = 0
        self.when_served: Callable[[int], object] = int
        self._log = None if log is None else os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener: socket.socket | None = None
        self.port = port

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls else ''}://{'localhost' if self.tls else '127.0.0.1'}:{self.port}"

    @property
    def images(self) -> int:
        """Images served, by the server's own count."""
        return sum(entry.images for entry in self.served)

    def __enter__(self) -> Hostile:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        if self._log is not None:
            os.close(self._log)

    def up(self) -> None:
        """Listen, on the same port as before if there was one."""
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(64)
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

    @property
    def is_up(self) -> bool:
        return self._listener is not None

    def fault(self, number: int) -> str | None:
        """What is planned for this question."""
        return self.plan(number) if callable(self.plan) else self.plan.get(number)

    def begin(self) -> int:
        """The number of a question whose head has come."""
        with self._lock:
            self.questions += 1
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            return self.questions

    def end(self) -> None:
        with self._lock:
            self._at_once -= 1

    def drop(self, images: int) -> None:
        """Count images that were sent, and thrown away unread."""
        with self._lock:
            self.dropped += images

    def meter(self, number: int, query: Query, key: str) -> None:
        """Count a question as served: on file first, where there is one."""
        answers = truth(query.images)
        entry = Served(number, len(answers), [code(x) for x in query.images], [code(y) for y in answers], key)
        with self._lock:
            if self._log is not None:
                os.write(self._log, json.dumps(entry._asdict()).encode() + b"\n")
            self.served.append(entry)
        self.when_served(number)

    def times_served(self, query: Query) -> int:
        """How often these images were served, in this order."""
        queries = [code(x) for x in query.images]
        with self._lock:
            return sum(entry.queries == queries for entry in self.served)

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _up_after(self, seconds: float) -> None:
        time.sleep(seconds)
        self.up()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                self._start(self._talk, connection)

    def _talk(self, connection: socket.socket) -> None:
        try:
            with contextlib.suppress(OSError, ssl.SSLError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self.tls is not None:
                    connection = self.tls.wrap_socket(connection, server_side=True)
                with self._lock:
                    self._connections.add(connection)
                exchange = Exchange(self, connection)
                while exchange.next():
                    exchange.answer()
        finally:
            with self._lock:
                self._connections.discard(connection)
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


def main() -> None:
    """Serve until killed; the port is the first line of the output."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--faults", default="")
    parser.add_argument("--log", type=Path)
    given = parser.parse_args()
    plan: Plan = every(given.every, given.faults.split(",")) if given.faults else {}
    with Hostile(plan, port=given.port, log=given.log) as server:
        print(server.port, flush=True)
        threading.Event().wait()


def read_log(path: Path) -> list[Served]:
    """The meter of a server that was a process."""
    entries: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    return [Served(**entry) for entry in entries]


if __name__ == "__main__":
    main()
