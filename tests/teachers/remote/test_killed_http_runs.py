"""Runs over HTTP, and their services, killed with SIGKILL or stopped with SIGSTOP at any moment.

``DFME_KILLS`` is the number of kills planned in all (6 by default; the long proof: DFME_KILLS=50).
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hostile import Hostile, Served, read_log
from http_runs import words
from kills import KILLS as PLANNED
from kills import plan, scores, strike
from processes import PROJECT, Bench

from dfme.oracle.ledger import Totals, audit

pytestmark = [pytest.mark.integration, pytest.mark.timeout(7200)]
EXHAUSTIVE = pytest.mark.exhaustive

IMAGES_PER_KILL = 1_200
MOST = 64
SAME = tuple("budget spent spent_by_purpose evaluation_queries accuracy agreement kl config_hash".split())

CASES = {"one at a time": ("static", 1), "dfme, four at once": ("dfme", 4)}

KILLS = max(3, PLANNED // len(CASES))


def slowly(number: int) -> str:
    """Answers that take long enough for a kill to meet them."""
    return "status:429/0" if number % 31 == 5 else "slow:0.01"


def flags(server: Hostile, method: str, in_flight: int, budget: int) -> list[str]:
    more = ["--method.name", method, "--method.batch-size", "200", "--teacher.max-batch", str(MOST)]
    more += ["--teacher.in-flight", str(in_flight), "--checkpoint-seconds", "0.3"]
    more += ["--evaluation.dataset", "digits", "--evaluation.limit", "300", "--evaluation.points", "5"]
    return words(server.url, "run", *more, budget=budget)


@EXHAUSTIVE
@pytest.mark.parametrize("case", CASES)
def test_killed_again_and_again_over_http(case: str, tmp_path: Path) -> None:
    method, in_flight = CASES[case]
    budget = IMAGES_PER_KILL * KILLS + 1  # the last batch is a lone image
    whole, killed = Bench(tmp_path / "whole"), Bench(tmp_path / "killed")
    with Hostile(slowly) as server:
        whole.here(flags(server, method, in_flight, budget))
        undisturbed = audit(whole.folder / "run" / "ledger.jsonl")
        assert server.images == undisturbed.served
        assert undisturbed.spent == budget

    with Hostile(slowly) as server:
        kills, ledger = kill_and_resume(
            killed, flags(server, method, in_flight, budget), case, budget, undisturbed
        )
    print(f"{case}: {kills} kills, {ledger.lost} images lost, {server.images} served, budget {budget}")

    # The same student, bit by bit, the same scores, and the budget spent to the last image.
    assert killed.student("run") == whole.student("run")
    expected, summary = whole.summary("run"), killed.summary("run")
    expected["config_hash"] = summary["config_hash"]  # of another port
    assert {key: summary[key] for key in SAME} == {key: expected[key] for key in SAME}
    assert scores(killed.evaluations("run")) == scores(whole.evaluations("run"))

    # The server counted no more than the ledger says was sent, and at least what was answered; what was
    # charged and killed before it was sent is all that may be missing. What was lost is in flight at a kill,
    # and no more.
    assert ledger.spent == budget
    assert ledger.failed == 0
    assert ledger.lost <= kills * in_flight * MOST
    paid = ledger.spent + ledger.evaluation_queries
    assert paid <= server.images <= paid + ledger.lost
    served_twice_is_lost(server.served, ledger.lost)


def kill_and_resume(
    bench: Bench, first: list[str], case: str, budget: int, undisturbed: Totals
) -> tuple[int, Totals]:
    """Kill and resume until all strikes were dealt out, then go on to the end; the kills, and the ledger."""
    run, kills, resume = bench.folder / "run", 0, ["--resume", "--out", "run"]
    for when in plan(random.Random(case), KILLS, budget, undisturbed.requests):
        started, born = time.time(), (run / "config.yaml").exists()
        kills += strike(bench.start(resume if born else first), run, when, started)
        if (run / "ledger.jsonl").exists():
            assert audit(run / "ledger.jsonl").spent <= budget
    bench.here(resume)
    assert kills >= KILLS * 3 // 4
    return kills, audit(run / "ledger.jsonl")


def served_twice_is_lost(served: list[Served], lost: int) -> None:
    """Every image that was served again had been lost; the repeated request had the same key."""
    keys: dict[tuple[str, ...], set[str]] = {}
    for entry in served:
        keys.setdefault(tuple(entry.queries), set()).add(entry.key)
    repeated = sum(entry.images for entry in served) - sum(len(queries) for queries in keys)
    assert repeated <= lost
    assert all(len(each) == 1 for each in keys.values())


class Victim:
    """A hostile server in a process of its own, to be killed and started again on the same port."""

    def __init__(self, log: Path, fault: str) -> None:
        self.log, self.port, self.fault = log, 0, fault

    def __enter__(self) -> Victim:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def images(self) -> int:
        return sum(entry.images for entry in read_log(self.log))

    def start(self) -> None:
        script = PROJECT / "tests" / "support" / "hostile.py"
        words = [sys.executable, str(script), str(self.port), str(self.log), self.fault]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()

    def restart(self) -> None:
        self.kill()
        self.start()


def stop_and_go(run: subprocess.Popen[str], stop: Callable[[], None], ledger: Path) -> Totals:
    """Stop something now and then; the ledger at the end."""
    for number in (1, 2, 3):
        until = time.monotonic() + 60
        while not ledger.exists() or ledger.read_bytes().count(b'"charge"') < 4 * number:
            assert time.monotonic() < until
            time.sleep(0.002)
        stop()
    _, err = run.communicate(timeout=100)
    assert run.returncode == 0, err
    assert "Traceback" not in err
    return audit(ledger)


def freeze(process: subprocess.Popen[str]) -> None:
    """Stop a process for twice as long as a request may take."""
    process.send_signal(signal.SIGSTOP)
    time.sleep(1)
    process.send_signal(signal.SIGCONT)


IMPATIENT = ("--teacher.timeout", "0.5", "--teacher.attempts", "9")


def test_a_run_that_is_stopped_in_the_middle_of_requests_goes_on(tmp_path: Path) -> None:
    with Hostile(lambda number: "slow:0.02") as server:
        run = Bench(tmp_path).start(words(server.url, "run", *IMPATIENT, budget=800))
        totals = stop_and_go(run, lambda: freeze(run), tmp_path / "run" / "ledger.jsonl")
    # Stopped between head and body of a request, it cannot know that nobody could serve it: it stays charged.
    assert totals.spent == 800
    assert server.images <= totals.spent <= server.images + totals.failed
    assert server.questions <= totals.requests


@pytest.mark.parametrize(
    ("killed", "in_flight"), [(False, 4), *(pytest.param(True, most, marks=EXHAUSTIVE) for most in (1, 4))]
)
def test_a_service_that_is_stopped_or_killed_in_the_middle_of_requests_is_asked_again(
    killed: bool, in_flight: int, tmp_path: Path
) -> None:
    """What may have been served is charged."""
    with Victim(tmp_path / "served.jsonl", "slow:0.02") as victim:
        argv = words(victim.url, "run", *IMPATIENT, "--teacher.in-flight", str(in_flight), budget=800)
        stop = victim.restart if killed else lambda: freeze(victim.process)
        totals = stop_and_go(Bench(tmp_path).start(argv), stop, tmp_path / "run" / "ledger.jsonl")
        assert (totals.spent, totals.lost) == (800, 0)
        assert totals.failed + totals.refused * killed > 0
        until = time.monotonic() + 10  # what was sent while it was stopped is served, too
        while not totals.spent - totals.failed * killed <= victim.images <= totals.spent:
            assert time.monotonic() < until
            time.sleep(0.05)
