"""Processes that are stopped in the middle of a request (SIGSTOP), and go on: meters agree."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile import Hostile, read_log
from http_runs import words
from processes import PROJECT, Bench

from dfme.oracle.ledger import audit

pytestmark = pytest.mark.integration

IMPATIENT = ("--teacher.timeout", "0.5", "--teacher.attempts", "9")
STOPS = 3


def stop_and_go(process: subprocess.Popen[str], ledger: Path) -> None:
    """Stop it for twice as long as a request may take, now and then while requests are made."""
    for number in range(1, STOPS + 1):
        until = time.monotonic() + 60
        while not ledger.exists() or ledger.read_bytes().count(b'"charge"') < 4 * number:
            assert time.monotonic() < until
            time.sleep(0.002)
        process.send_signal(signal.SIGSTOP)
        time.sleep(1)
        process.send_signal(signal.SIGCONT)


def test_a_run_that_is_stopped_in_the_middle_of_requests_goes_on(tmp_path: Path) -> None:
    with Hostile(lambda number: "slow:0.02") as server:
        bench = Bench(tmp_path)
        process = bench.start(words(server.url, "run", *IMPATIENT, budget=800))
        stop_and_go(process, tmp_path / "run" / "ledger.jsonl")
        _, err = process.communicate(timeout=100)
        assert process.returncode == 0, err
        assert "Traceback" not in err
        totals = audit(tmp_path / "run" / "ledger.jsonl")
    # Stopped between the head and the body of a request, it cannot know that nobody could serve it: it stays charged.
    assert totals.spent == 800
    assert server.images <= totals.spent <= server.images + totals.failed
    assert server.questions <= totals.requests


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[str], Path]]:
    """A service in a process of its own: its URL, the process, the file of its meter."""
    log = tmp_path / "served.jsonl"
    script = [sys.executable, str(PROJECT / "tests" / "support" / "hostile.py"), "0", str(log), "slow:0.02"]
    with subprocess.Popen(script, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}", process, log
        process.kill()


def test_a_service_that_is_stopped_in_the_middle_of_requests_is_asked_again(
    service: tuple[str, subprocess.Popen[str], Path], tmp_path: Path
) -> None:
    url, process, log = service
    bench = Bench(tmp_path)
    run = bench.start(words(url, "run", *IMPATIENT, budget=800))
    stop_and_go(process, tmp_path / "run" / "ledger.jsonl")
    _, err = run.communicate(timeout=100)
    assert run.returncode == 0, err
    totals = audit(tmp_path / "run" / "ledger.jsonl")
    assert totals.spent == 800
    assert totals.failed > 0
    until = time.monotonic() + 10  # what was sent while it was stopped is served, too
    while sum(entry.images for entry in read_log(log)) != totals.spent:
        assert time.monotonic() < until
        time.sleep(0.05)
