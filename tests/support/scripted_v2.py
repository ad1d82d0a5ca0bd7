"""A v2 server that says what a test tells it to; it reads requests with json and numpy alone, not with our own code."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

NUMPY = {"FP32": "<f4", "FP16": "<f2", "FP64": "<f8", "UINT8": "u1", "INT64": "<i8"}
LENGTH = "Inference-Header-Content-Length"


@dataclass
class Asked:
    """A request as it came: its path, headers, JSON part, and the pixels of its only input."""

    path: str
    headers: dict[str, str]
    message: dict[str, Any]
    pixels: np.ndarray
    binary: bool


Answer = tuple[int, dict[str, str], bytes]


@dataclass
class Script:
    """What the server says. ``model`` and ``config`` are its documents, ``infer`` makes an answer of a request."""

    inputs: list[dict[str, Any]] = field(default_factory=lambda: [tensor("x", "FP32", [-1, 1, 2, 2])])
    outputs: list[dict[str, Any]] = field(default_factory=lambda: [tensor("y", "FP32", [-1, 3])])
    extensions: list[str] = field(default_factory=lambda: ["binary_tensor_data", "classification"])
    parameters: dict[str, Any] | None = None
    config: dict[str, Any] | None = None
    replies: dict[str, Answer] = field(default_factory=dict)
    infer: Callable[[Asked], Answer] = lambda asked: answer(asked, scores(asked.pixels))
    asked: list[Asked] = field(default_factory=list)
    got: list[str] = field(default_factory=list)
    url: str = ""

    def document(self, path: str) -> Answer:
        """The answer to a GET."""
        self.got.append(path)
        if path in self.replies:
            return self.replies[path]
        if path == "/v2":
            return reply({"name": "scripted", "version": "1", "extensions": self.extensions})
        if path.endswith("/config"):
            return reply(self.config) if self.config is not None else reply({"error": "no such path"}, 404)
        if path.endswith("/ready"):
            return 200, {}, b""
        document = {"name": "m", "platform": "test", "inputs": self.inputs, "outputs": self.outputs}
        return reply({**document, **({"parameters": self.parameters} if self.parameters is not None else {})})

    def question(self, path: str, headers: dict[str, str], body: bytes) -> Answer:
        """The answer to a POST."""
        length = headers.get(LENGTH.lower())
        message = json.loads(body if length is None else body[: int(length)])
        (entry,) = message["inputs"]
        dtype = NUMPY[entry["datatype"]]
        if length is None:
            pixels = np.array(entry["data"], np.float64).astype(dtype)
        else:
            assert entry["parameters"] == {"binary_data_size": len(body) - int(length)}
            pixels = np.frombuffer(body[int(length) :], dtype)
        asked = Asked(path, headers, message, pixels.reshape(entry["shape"]), length is not None)
        self.asked.append(asked)
        return self.infer(asked)


def tensor(name: str, datatype: str, shape: list[int]) -> dict[str, Any]:
    """A tensor in the model's metadata."""
    return {"name": name, "datatype": datatype, "shape": shape}


def scores(pixels: np.ndarray, classes: int = 3) -> np.ndarray:
    """What the scripted model answers: the mean of the pixels in halves of k + 1, plus the first pixel."""
    flat = pixels.reshape(len(pixels), -1).astype(np.float32)
    return flat.mean(1, keepdims=True) * np.arange(1, classes + 1, dtype=np.float32) / 2 + flat[:, :1]


def reply(document: object, status: int = 200) -> Answer:
    """A JSON document as an answer."""
    return status, {"Content-Type": "application/json"}, json.dumps(document).encode()


def answer(asked: Asked, array: np.ndarray, binary: bool | None = None, **changes: Any) -> Answer:
    """An answer with one output as the protocol wants it; ``changes`` replace keys of the message or of its output."""
    datatype = next(word for word, dtype in NUMPY.items() if np.dtype(dtype) == array.dtype)
    output: dict[str, Any] = tensor("y", datatype, list(array.shape))
    message: dict[str, Any] = {"model_name": "m", "model_version": "1", "id": asked.message.get("id")}
    for key, value in changes.items():
        (output if key in ("name", "datatype", "shape", "data") else message)[key] = value
    if asked.binary if binary is None else binary:
        output["parameters"] = {"binary_data_size": array.nbytes}
        head = json.dumps({**message, "outputs": [output]}).encode()
        return 200, {LENGTH: str(len(head))}, head + array.tobytes()
    output.setdefault("data", [None if item != item else item for item in array.reshape(-1).tolist()])
    return reply({**message, "outputs": [output]})


@contextlib.contextmanager
def serving(script: Script) -> Iterator[Script]:
    """The script on a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # head and body are two writes: without it each answer waits for 40 ms

        def do_GET(self) -> None:
            self._say(script.document(self.path))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self._say(script.question(self.path, {k.lower(): v for k, v in self.headers.items()}, body))

        def _say(self, said: Answer) -> None:
            status, headers, body = said
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    script.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield script
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
