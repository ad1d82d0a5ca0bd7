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
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import httpx2
import torch

from dfme.benchmarks.options import BenchConfig
from dfme.config.settings import Job, TeacherConfig
from dfme.errors import RunError
from dfme.run.build import run_job
from teachers.build import make_teacher
from teachers.open_inference.client import connect_v2
from teachers.open_inference.message import HEADER_LENGTH, pack
from teachers.open_inference.tensors import NamedTensor
from teachers.remote.options import V2Options

BATCH = 256
REQUESTS = 200
SERVE = "import sys; from dfme.cli.main import main; sys.exit(main(sys.argv[1:]))"


class Ratio(NamedTuple):
    """One line: what was compared, medians of seconds without and with, and the median of without / with."""

    case: str
    without: float
    through: float
    ratio: float


def time_http(config: BenchConfig, job: Job) -> list[Ratio]:
    """``job``, whose teacher is of kind torch, in process and through HTTP; then the client against bare requests."""
    with serving(job) as url:
        return [_extraction(config, job, url), _client(config, job, url)]


@contextlib.contextmanager
def serving(job: Job) -> Iterator[str]:
    """The job's teacher, served by a process of its own; its URL. RunError if the server does not start."""
    words = ["serve", "--port", "0", "--teacher.checkpoint", str(job.teacher_options["checkpoint"]), "--model", "m"]
    command = [sys.executable, "-c", SERVE, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:  # noqa: S603 (words of ours)
        try:
            assert server.stdout is not None
            said = server.stdout.readline()
            found = re.search(r"http://[\d.]+:\d+", said)
            if found is None:
                raise RunError(f"bench: expected the server to say its address, got {said!r}")
            yield found[0]
        finally:
            server.terminate()


def _extraction(config: BenchConfig, job: Job, url: str) -> Ratio:
    options = {"url": url, "model": "m"}
    remote = replace(job, teacher=TeacherConfig(kind="v2"), teacher_options=options)
    with tempfile.TemporaryDirectory(prefix="dfme-bench-") as folder:

        def seconds(one: Job, name: str) -> float:
            settings = replace(one.config, out=str(Path(folder) / name))
            summary = run_job(replace(one, config=settings), console=False).summary
            return float(summary["wall_seconds"])

        seconds(remote, "warm-up")
        return _compare(
            "extraction, in process / through HTTP",
            config.rounds,
            lambda number: seconds(job, f"local-{number}"),
            lambda number: seconds(remote, f"http-{number}"),
        )


def _client(config: BenchConfig, job: Job, url: str) -> Ratio:
    """The same images asked for by the client, and posted as the same bytes by httpx2 alone."""
    teacher = connect_v2(V2Options(url=url, model="m"), TeacherConfig(kind="v2"), torch.device("cpu"))
    x_BCHW = torch.rand(BATCH, *teacher.spec.shape)
    tensor = NamedTensor("image", x_BCHW.numpy())
    body, length = pack({"id": "bench", "parameters": {"binary_data_output": True}}, [tensor], "inputs", binary=True)
    headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(length)}
    address = f"{url}/v2/models/m/infer"
    expected = make_teacher(job.teacher, job.teacher_options, torch.device("cpu"))(x_BCHW)
    assert torch.allclose(teacher(x_BCHW), expected, atol=1e-5), "the served teacher is the local one"
    with httpx2.Client(trust_env=False) as bare:

        def post(number: int) -> float:
            return _timed(lambda: bare.post(address, content=body, headers=headers).raise_for_status())

        def ask(number: int) -> float:
            return _timed(lambda: teacher.ask(x_BCHW, "bench"))

        post(0)
        ask(0)
        ratio = _compare("client, bare httpx2 / ours", 4 * config.rounds, post, ask)
    teacher.close()
    return ratio


def _compare(case: str, rounds: int, without: Callable[[int], float], through: Callable[[int], float]) -> Ratio:
    pairs = [(without(number), through(number)) for number in range(rounds)]
    ratios = [before / after for before, after in pairs]
    befores, afters = zip(*pairs, strict=True)
    return Ratio(case, statistics.median(befores), statistics.median(afters), statistics.median(ratios))


def _timed(request: Callable[[], object]) -> float:
    """Seconds of one request, the mean of many in a row."""
    started = time.perf_counter()
    for _ in range(REQUESTS):
        request()
    return (time.perf_counter() - started) / REQUESTS


def ratio_table(ratios: list[Ratio]) -> str:
    """The lines as a Markdown table."""
    head = ["| case | seconds without | seconds with | ratio |", "|---|---:|---:|---:|"]
    return "\n".join([*head, *(f"| {r.case} | {r.without:.5g} | {r.through:.5g} | {r.ratio:.3f} |" for r in ratios)])
