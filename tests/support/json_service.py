"""A small HTTP service on loopback for tests: it answers as a function says and keeps what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from torch import Tensor

from dfme.errors import Unusable
from teachers.remote.endpoint import Reply
from teachers.remote.teacher import Adapter

SHAPE = (3, 4, 5)
K = 3


@dataclass(frozen=True)
class Asked:
    """A request as it came; names of headers are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class JsonService:
    """Up from ``__enter__`` to ``__exit__``. ``answer`` gives a document, or a status, headers and a document."""

    def __init__(self, answer: Callable[[Asked], Any]) -> None:
        self.asked: list[Asked] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # head and body are two writes: without it each answer waits for 40 ms
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                asked = Asked(self.command, self.path, headers, body)
                service.asked.append(asked)
                said = answer(asked)
                status, extra, document = said if isinstance(said, tuple) else (200, {}, said)
                content = document if isinstance(document, bytes) else json.dumps(document).encode()
                self.send_response(status)
                for name, value in {"Content-Type": "application/json", **extra}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    def __enter__(self) -> JsonService:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def posted(self) -> list[Asked]:
        return [asked for asked in self.asked if asked.method == "POST"]


def described(**changes: Any) -> dict[str, Any]:
    """A description that works, with changes by dotted key; None takes a key away."""
    paper: dict[str, Any] = {
        "image": {"encoding": "png_base64"},
        "request": {"json": {"image": "${image}"}},
        "answer": {"path": "scores"},
        "teacher": {"shape": list(SHAPE), "num_classes": K},
    }
    for key, value in changes.items():
        *sections, leaf = key.split("__")
        place = paper
        for section in sections:
            place = place.setdefault(section, {})
        place[leaf] = value
        if value is None:
            del place[leaf]
    return paper


def answer_or_unusable(adapter: Adapter, body: bytes, batch: int) -> Tensor | None:
    """What an adapter reads in a body; None if it calls it unusable, in one short line. Nothing else may come."""
    try:
        return adapter.decode(Reply(200, {}, body), batch)
    except Unusable as error:
        words = str(error)
    assert "\n" not in words
    assert words.isprintable()
    assert len(words) < 500
    return None
