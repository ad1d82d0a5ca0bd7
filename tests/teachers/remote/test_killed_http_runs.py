"""Runs over HTTP killed with SIGKILL at any moment, and servers killed under them: nothing paid is lost unsaid.

``DFME_KILLS`` is the number of kills planned in all (8 by default; the long proof: DFME_KILLS=50).
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hostile import Hostile, Served, read_log
from http_runs import words
from kills import KILLS as PLANNED
from kills import plan, scores, strike
from processes import PROJECT, Bench

from dfme.oracle.ledger import Totals, audit

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive, pytest.mark.timeout(7200)]

IMAGES_PER_KILL = 1_200
MOST = 64
SAME = ("budget", "spent", "spent_by_purpose", "evaluation_queries", "accuracy", "agreement", "kl", "config_hash")

CASES = {"one at a time": ("static", 1), "dfme, four at once": ("dfme", 4)}

KILLS = max(4, PLANNED // len(CASES))


def slowly(number: int) -> str:
    """Answers that take long enough for a kill to meet them; here and there a refusal, after each of which it waits."""
    return "status:429/0" if number % 31 == 5 else "slow:0.01"


def flags(server: Hostile, method: str, in_flight: int, budget: int) -> list[str]:
    more = ["--method.name", method, "--method.batch-size", "200", "--teacher.max-batch", str(MOST)]
    more += ["--teacher.in-flight", str(in_flight), "--checkpoint-seconds", "0.3"]
    more += ["--evaluation.dataset", "digits", "--evaluation.limit", "300", "--evaluation.points", "5"]
    return words(server.url, "run", *more, budget=budget)


@pytest.mark.parametrize("case", CASES)
def test_killed_again_and_again_over_http(case: str, tmp_path: Path) -> None:
    method, in_flight = CASES[case]
    budget = IMAGES_PER_KILL * KILLS + 1  # the last batch is a lone image
    whole, killed = Bench(tmp_path / "whole"), Bench(tmp_path / "killed")
    with Hostile(slowly) as server:
        code, _, err = whole.run(flags(server, method, in_flight, budget))
        assert code == 0, err
        undisturbed = audit(whole.folder / "run" / "ledger.jsonl")
        assert server.images == undisturbed.served
        assert undisturbed.spent == budget

    with Hostile(slowly) as server:
        kills, ledger = kill_and_resume(killed, flags(server, method, in_flight, budget), case, budget, undisturbed)
    print(f"{case}: {kills} kills, {ledger.lost} images lost, {server.images} served, budget {budget}")

    # The same student, bit by bit, the same scores, and the budget spent to the last image.
    assert killed.student("run") == whole.student("run")
    expected, summary = whole.summary("run"), killed.summary("run")
    expected["config_hash"] = summary["config_hash"]  # of another port
    assert {key: summary[key] for key in SAME} == {key: expected[key] for key in SAME}
    assert scores(killed.evaluations("run")) == scores(whole.evaluations("run"))

    # The server counted no more than the ledger says was sent, and at least what was answered; what was charged
    # and killed before it was sent is all that may be missing. What was lost is in flight at a kill, and no more.
    assert ledger.spent == budget
    assert ledger.failed == 0
    assert ledger.lost <= kills * in_flight * MOST
    paid = ledger.spent + ledger.evaluation_queries
    assert paid <= server.images <= paid + ledger.lost
    served_twice_is_lost(server.served, ledger.lost)


def kill_and_resume(bench: Bench, first: list[str], case: str, budget: int, undisturbed: Totals) -> tuple[int, Totals]:
    """Kill and resume until all strikes were dealt out, then go on to the end; the kills, and the ledger."""
    run, kills, resume = bench.folder / "run", 0, ["--resume", "--out", "run"]
    for when in plan(random.Random(case), KILLS, budget, undisturbed.requests):
        started, born = time.time(), (run / "config.yaml").exists()
        kills += strike(bench.start(resume if born else first), run, when, started)
        if (run / "ledger.jsonl").exists():
            assert audit(run / "ledger.jsonl").spent <= budget
    code, _, err = bench.run(resume)
    assert code == 0, err
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

    def __init__(self, log: Path) -> None:
        self.log, self.port = log, 0

    def start(self) -> None:
        script = PROJECT / "tests" / "support" / "hostile.py"
        words = [sys.executable, str(script), str(self.port), str(self.log), "slow:0.003"]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate()


@pytest.mark.parametrize("in_flight", [1, 4])
def test_servers_killed_under_a_run(in_flight: int, tmp_path: Path) -> None:
    """The run waits for them, and goes on: what may have been served is charged, by the log of all the servers."""
    bench, victim = Bench(tmp_path / "bench"), Victim(tmp_path / "served.jsonl")
    victim.start()
    argv = words(f"http://127.0.0.1:{victim.port}", "run", "--teacher.in-flight", str(in_flight), budget=2_000)
    process = bench.start(argv)
    reaper = threading.Thread(target=kill_servers, args=(victim, process, random.Random(in_flight)))
    reaper.start()
    _, err = process.communicate()
    reaper.join()
    victim.kill()
    assert process.returncode == 0, err
    ledger, served = audit(bench.folder / "run" / "ledger.jsonl"), read_log(victim.log)
    count = sum(entry.images for entry in served)
    assert (ledger.spent, ledger.lost) == (2_000, 0)
    assert ledger.spent - ledger.failed <= count <= ledger.spent
    assert ledger.failed + ledger.refused > 0


def kill_servers(victim: Victim, process: subprocess.Popen[str], rng: random.Random) -> None:
    """Three times, each after a random number of answers."""
    for _ in range(3):
        target = len(victim.log.read_text().splitlines()) + rng.randrange(20, 60)
        while process.poll() is None and len(victim.log.read_text().splitlines()) < target:
            time.sleep(0.002)
        if process.poll() is None:
            victim.kill()
            victim.start()
