"""A teacher of your own behind HTTP: dfme needs a function that sends images and returns scores.

The service of this example runs in this process, on 127.0.0.1. Give ``Teacher`` the URL of your
own; for a service that others run, have their permission first. ``levels`` says that the wire
carries 8-bit images, ``max_batch`` how many images a request may have. A JSON service needs no
code: docs/adapters.md shows how a file describes it, with retries, rates and consent.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import Request, urlopen

import torch
from torch import Tensor

import dfme


class Service(BaseHTTPRequestHandler):
    """Answers {"images": [rows of pixels, 0 to 255]} with {"scores": [[dark, bright], ...]}."""

    def do_POST(self) -> None:  # the name that http.server calls
        size = int(self.headers["Content-Length"])
        images = torch.tensor(json.loads(self.rfile.read(size))["images"], dtype=torch.float32)
        bright = (images.mean(dim=(1, 2)) / 255 - 0.5).mul(20).sigmoid()
        body = json.dumps({"scores": torch.stack([1 - bright, bright], dim=1).tolist()}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing on the terminal for each request."""


class Teacher:
    """Sends images to a URL. dfme reads the three attributes."""

    shape = (1, 8, 8)
    num_classes = 2
    levels = 256  # of 8-bit pixels: the student then learns from what the service really saw

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests = 0

    def __call__(self, images: Tensor) -> list[list[float]]:
        """Scores (B, 2) for images (B, 1, 8, 8) within 0 and 1."""
        pixels = (images[:, 0] * 255).round().int().tolist()
        body = json.dumps({"images": pixels}).encode()
        # http alone
        request = Request(self.url, body, {"Content-Type": "application/json"})  # noqa: S310
        self.requests += 1
        with urlopen(request, timeout=30) as response:  # noqa: S310
            scores: list[list[float]] = json.load(response)["scores"]
        return scores


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    teacher = Teacher(f"http://127.0.0.1:{server.server_port}/")
    brightness = torch.linspace(0.4, 0.6, 200)[:, None, None, None]
    noise = torch.rand(200, 1, 8, 8, generator=torch.Generator().manual_seed(1)) - 0.5
    result = dfme.extract(
        teacher,
        method="procedural",
        budget=1_000,
        max_batch=100,
        evaluation=(brightness + noise / 4).clamp(0, 1),
        out="runs/http",
        resume="auto",
    )
    agreement = result.summary["agreement"]
    print(f"agreement {agreement:.1%} for {result.summary['spent']} images")
    print(f"requests {teacher.requests}, those of the evaluation included")
    server.shutdown()


if __name__ == "__main__":
    main()
