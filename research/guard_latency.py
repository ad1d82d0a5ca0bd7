"""Latency that ``dfme.Guard`` adds: a bare app and the same app guarded, asked over many
connections at once.

``python -m research.guard_latency --requests 400``: a table in Markdown, median and 99th percentile
in milliseconds. Server and clients share this process and machine, so the columns compare and no
figure stands alone. Needs the extra ``serve``.
"""

import argparse
import asyncio
import json
import socket
import statistics
import time
from typing import Any

import torch
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import dfme
from dfme.config.settings import TeacherConfig
from dfme.teachers.build import make_teacher

WEIGHTS = "teachers/checkpoints/digits.safetensors"
SIZES = (1, 32, 256)


def bare() -> Starlette:
    """An app around the digits teacher: images in JSON, probabilities in JSON."""
    config = TeacherConfig(label_mode="probabilities")
    teacher = make_teacher(config, {"checkpoint": WEIGHTS}, torch.device("cpu"))

    async def predict(request: Request) -> JSONResponse:
        images = torch.tensor((await request.json())["images"])
        return JSONResponse({"scores": teacher(images).tolist()})

    return Starlette(routes=[Route("/predict", predict, methods=["POST"])])


def guarded(**options: Any) -> dfme.Guard:
    """The same app behind the guard."""
    return dfme.Guard(
        bare(),
        teacher=WEIGHTS,
        paths=["/predict"],
        images=lambda body: json.loads(body)["images"],
        scores=lambda body: json.loads(body)["scores"],
        replace=lambda body, scores: json.dumps({"scores": scores.tolist()}).encode(),
        **options,
    )


async def ask(port: int, request: bytes, times: int, seconds: list[float]) -> None:
    """Ask one after the other over one connection, kept alive."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(times):
        started = time.perf_counter()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"expected a status of 200, got {head!r}")
        length = next(
            line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
        )
        await reader.readexactly(int(length.split(b":")[1]))
        seconds.append(time.perf_counter() - started)
    writer.close()


async def measure(app: Any, images: int, requests: int, connections: int) -> tuple[float, float]:
    """Median and 99th percentile in milliseconds, after a warm-up."""
    listening = socket.socket(
        socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP
    )  # without Nagle's delay
    listening.bind(("127.0.0.1", 0))
    listening.listen(connections)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
    serving = asyncio.create_task(server.serve([listening]))
    body = json.dumps({"images": torch.rand(images, 1, 8, 8).tolist()}).encode()
    request = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (
        len(body),
        body,
    )
    seconds: list[float] = []
    for times in (2, max(1, requests // connections)):
        seconds.clear()
        port = listening.getsockname()[1]
        await asyncio.gather(*(ask(port, request, times, seconds) for _ in range(connections)))
    server.should_exit = True
    await serving
    return 1000 * statistics.median(seconds), 1000 * statistics.quantiles(seconds, n=100)[98]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--requests", type=int, default=400, help="of each cell")
    parser.add_argument("--connections", type=int, default=50, help="at once")
    given = parser.parse_args()
    apps = {
        "bare": bare(),
        "counted": guarded(),
        "`lattice`": guarded(defences="lattice:n=10"),
        "`lattice`, watched": guarded(
            defences="lattice:n=10", watch="pairs,labels", benign="digits"
        ),
    }
    print("| images | " + " | ".join(apps) + " |\n|---|" + "---|" * len(apps))
    for images in SIZES:
        cells = []
        for app in apps.values():
            median, high = asyncio.run(measure(app, images, given.requests, given.connections))
            cells.append(f"{median:.0f} ({high:.0f})")
        print(f"| {images} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
