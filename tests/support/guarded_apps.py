"""Apps of others that ``dfme.Guard`` stands before, and how they are asked."""

import asyncio
import gzip
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import unquote

import brotli
import torch
import uvicorn
from torch import Tensor

import dfme

SHAPE = (1, 4, 4)
WEIGHT = torch.randn(16, 5, generator=torch.Generator().manual_seed(3))
X = torch.rand((3, *SHAPE), generator=torch.Generator().manual_seed(4))
BODY = json.dumps({"images": X.tolist()}).encode()
Answer = tuple[int, dict[str, str], bytes]


def model(images: Tensor) -> Tensor:
    return (images.flatten(1) @ WEIGHT).softmax(1)


SECRETS = [f"{score:.6f}"[2:] for score in model(X).flatten().tolist()]
TRUTH = json.dumps({"scores": model(X).tolist(), "best": model(X).max(1).values.tolist()}).encode()
UNPACKED: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.decompress, "br": brotli.decompress}
FORM: dict[str, Any] = {
    "images": lambda body: json.loads(body)["images"],
    "scores": lambda body: json.loads(body)["scores"],
    "replace": lambda body, scores: json.dumps({"scores": scores.tolist()}).encode(),
}


def guard(app: Any, **options: Any) -> dfme.Guard:
    usual = {"teacher": model, "shape": SHAPE, "num_classes": 5, "defences": "lattice:n=4", **FORM}
    return dfme.Guard(app, **{**usual, **options})


async def exchange(app: Any, scope: Any, received: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What an app sends for a scope and what it receives; then the client is gone."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return received.pop(0) if received else {"type": f"{scope['type']}.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent


async def answered(app: Any, scope: dict[str, Any], body: bytes = BODY) -> Answer:
    sent = await exchange(app, scope, [{"type": "http.request", "body": body, "more_body": False}])
    return answer_of(sent)


def answer_of(sent: list[dict[str, Any]]) -> Answer:
    start, *rest = sent
    headers = {name.decode().lower(): value.decode() for name, value in start["headers"]}
    return start["status"], headers, b"".join(message.get("body", b"") for message in rest)


def scope_of(method: str, path: str, headers: dict[str, str]) -> dict[str, Any]:
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    offers = {"http.response.pathsend": {}, "http.response.trailers": {}}
    where = {"path": unquote(path), "raw_path": path.encode(), "query_string": b"", "root_path": ""}
    return {"type": "http", "method": method, **where, "headers": raw, "extensions": offers}


def ask(
    app: Any,
    method: str = "POST",
    path: str = "/predict",
    body: bytes = BODY,
    step: int = 0,
    **headers: str,
) -> Answer:
    """An answer; the body comes in pieces of ``step`` bytes."""
    step = step or max(1, len(body))
    parts = [body[start : start + step] for start in range(0, len(body), step)] or [b""]
    received = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    received[-1]["more_body"] = False
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return answer_of(asyncio.run(exchange(app, scope_of(method, path, named), received)))


def leaks(answer: Answer) -> bool:
    """Whether an undefended score can be read in it, whatever it is packed in."""
    _, headers, body = answer
    texts = [body, str(headers).encode()]
    for unpacked in UNPACKED.values():
        with suppress(Exception):
            texts.append(unpacked(body))
    return any(secret.encode() in text for text in texts for secret in SECRETS)


async def read(receive: Callable[[], Any]) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


async def lax(scope: Any, receive: Any, send: Any) -> None:
    """An app that takes any method, any spelling of its path, any packing, and gives any part."""
    headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
    body = await read(receive)
    body = UNPACKED.get(headers.get("content-encoding", ""), bytes)(body)
    scored = "predict" in unquote(unquote(scope["raw_path"].decode())).lower() and body
    scores = model(torch.tensor(json.loads(body)["images"])).tolist() if scored else None
    content = b'{"detail":"not found"}'
    if scored:
        content = json.dumps({"scores": scores, "best": scores}).encode()
    tag = SECRETS[0].encode() if scored else b"none"
    answer_headers = [(b"Content-Type", b"application/json"), (b"ETag", tag), (b"X-Kept", b"yes")]
    for name, packed in (("gzip", gzip.compress), ("br", brotli.compress)):
        if name in headers.get("accept-encoding", ""):
            content = packed(content)
            answer_headers.append((b"Content-Encoding", name.encode()))
            break
    status = 200 if scored else 404
    if "range" in headers:
        status, content = 206, content[20:]
    await send({"type": "http.response.start", "status": status, "headers": answer_headers})
    for start in range(0, len(content), 50):
        await send(
            {"type": "http.response.body", "body": content[start : start + 50], "more_body": True}
        )
    await send({"type": "http.response.body"})


def answering(body: bytes = TRUTH, status: int = 200, **headers: str) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": raw})
        await send({"type": "http.response.body", "body": body})

    return app


@contextmanager
def served(app: Any) -> Iterator[int]:
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
