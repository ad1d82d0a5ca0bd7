"""What HTTP costs: an extraction through a served teacher beside one in process, and our client beside bare httpx2.

The server is a process of its own on loopback, as in an audit. Both sides of a ratio are timed in turn.
"""

from __future__ import annotations

import contextlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import torch

from dfme.config.settings import TeacherConfig
from dfme.errors import RunError
from dfme.teachers.build import make_teacher
from dfme.teachers.open_inference.client import connect_v2
from dfme.teachers.open_inference.message import HEADER_LENGTH, pack
from dfme.teachers.open_inference.tensors import NamedTensor
from dfme.teachers.remote.options import V2Options

BATCH = 256
REQUESTS = 200

Extraction = Callable[[TeacherConfig, dict[str, Any], Path], float]
"""Extract from the teacher of this configuration and these options into a new folder; the seconds it took."""


def time_http(teacher: TeacherConfig, options: dict[str, Any], rounds: int, run_extraction: Extraction) -> str:
    """A table: extraction from a teacher of kind torch in process and through HTTP, our client and bare requests.

    Medians of seconds without and with what it costs, and of their ratios.
    """
    with serving(str(options["checkpoint"])) as url:
        lines = [_extraction(teacher, options, url, rounds, run_extraction), _client(teacher, options, url, rounds)]
    return "\n".join(["| case | seconds without | seconds with | ratio |", "|---|---:|---:|---:|", *lines])


@contextlib.contextmanager
def serving(checkpoint: str) -> Iterator[str]:
    """A process of its own serves the teacher; its URL. RunError if the server does not start."""
    words = ["serve", "--port", "0", "--teacher.checkpoint", checkpoint, "--model", "m"]
    command = [sys.executable, "-m", "dfme", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:  # noqa: S603 (words of ours)
        try:
            assert server.stdout is not None
            printed = server.stdout.readline()
            found = re.search(r"http://[\d.]+:\d+", printed)
            if found is None:
                raise RunError(f"bench: expected the server to say its address, got {printed!r}")
            yield found[0]
        finally:
            server.terminate()


def _extraction(
    teacher: TeacherConfig, options: dict[str, Any], url: str, rounds: int, run_extraction: Extraction
) -> str:
    v2, address = TeacherConfig(kind="v2"), {"url": url, "model": "m"}
    with tempfile.TemporaryDirectory(prefix="dfme-bench-") as folder:
        run_extraction(v2, address, Path(folder) / "warm-up")
        return _compare(
            "extraction, in process / through HTTP",
            rounds,
            lambda number: run_extraction(teacher, options, Path(folder) / f"local-{number}"),
            lambda number: run_extraction(v2, address, Path(folder) / f"http-{number}"),
        )


def _client(teacher: TeacherConfig, options: dict[str, Any], url: str, rounds: int) -> str:
    """The same images asked for by the client, and posted as the same bytes by httpx2 alone."""
    client = connect_v2(V2Options(url=url, model="m"), TeacherConfig(kind="v2"), torch.device("cpu"))
    x_BCHW = torch.rand(BATCH, *client.spec.shape)
    tensor = NamedTensor("image", x_BCHW.numpy())
    body, length = pack({"id": "bench", "parameters": {"binary_data_output": True}}, [tensor], "inputs", binary=True)
    headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(length)}
    address = f"{url}/v2/models/m/infer"
    expected = make_teacher(teacher, options, torch.device("cpu"))(x_BCHW)
    assert torch.allclose(client(x_BCHW), expected, atol=1e-5), "the served teacher is the local one"
    with httpx2.Client(trust_env=False) as bare, contextlib.closing(client):
        post = partial(_timed, lambda: bare.post(address, content=body, headers=headers).raise_for_status())
        ask = partial(_timed, lambda: client.ask(x_BCHW, "bench"))
        post(0)
        ask(0)
        return _compare("client, bare httpx2 / ours", 4 * rounds, post, ask)


def _compare(case: str, rounds: int, without: Callable[[int], float], through: Callable[[int], float]) -> str:
    pairs = [(without(number), through(number)) for number in range(rounds)]
    before, after = (statistics.median(each) for each in zip(*pairs, strict=True))
    return f"| {case} | {before:.5g} | {after:.5g} | {statistics.median(one / two for one, two in pairs):.3f} |"


def _timed(request: Callable[[], object], _: int) -> float:
    """Seconds of one request, the mean of many in a row."""
    started = time.perf_counter()
    for _ in range(REQUESTS):
        request()
    return (time.perf_counter() - started) / REQUESTS
