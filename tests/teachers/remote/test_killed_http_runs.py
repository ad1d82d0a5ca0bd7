"""Runs over HTTP killed with SIGKILL or stopped with SIGSTOP at any moment.

``DFME_KILLS`` is the number of kills planned in all (6 by default; the long proof: DFME_KILLS=50).
"""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest
from hostile import Hostile, Served
from processes import KILLS as PLANNED
from processes import Bench, plan, scores, strike, words

from dfme.oracle.ledger import Totals, audit

pytestmark = [pytest.mark.integration, pytest.mark.timeout(7200)]
EXHAUSTIVE = pytest.mark.exhaustive

IMAGES_PER_KILL = 1_200
MOST = 64
SAME = tuple(
    "budget spent spent_by_purpose evaluation_queries accuracy agreement kl config_hash".split()
)

CASES = {"one at a time": ("static", 1), "dfme, four at once": ("dfme", 4)}

KILLS = max(3, PLANNED // len(CASES))


def slowly(number: int) -> str:
    """Answers that take long enough for a kill to meet them."""
    return "status:429/0" if number % 31 == 5 else "slow:0.01"


def flags(server: Hostile, method: str, in_flight: int, budget: int) -> list[str]:
    more = ["--method.name", method, "--method.batch-size", "200", "--teacher.max-batch", str(MOST)]
    more += ["--teacher.in-flight", str(in_flight), "--checkpoint-seconds", "0.3"]
    more += [
        "--evaluation.dataset",
        "digits",
        "--evaluation.limit",
        "300",
        "--evaluation.points",
        "5",
    ]
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
    print(
        f"{case}: {kills} kills, {ledger.lost} images lost, {server.images} served, budget {budget}"
    )

    # The same student, bit by bit, the same scores, and the budget spent to the last image.
    assert killed.student("run") == whole.student("run")
    expected, summary = whole.summary("run"), killed.summary("run")
    expected["config_hash"] = summary["config_hash"]  # of another port
    assert {key: summary[key] for key in SAME} == {key: expected[key] for key in SAME}
    assert scores(killed.evaluations("run")) == scores(whole.evaluations("run"))

    # The server counted no more than the ledger says was sent, and at least what was answered; what
    # was charged and killed before it was sent is all that may be missing. What was lost is in
    # flight at a kill, and no more.
    assert (ledger.spent, ledger.failed) == (budget, 0)
    assert ledger.lost <= kills * in_flight * MOST
    paid = ledger.spent + ledger.evaluation_queries
    assert paid <= server.images <= paid + ledger.lost
    served_twice_is_lost(server.served, ledger.lost)


def kill_and_resume(
    bench: Bench, first: list[str], case: str, budget: int, undisturbed: Totals
) -> tuple[int, Totals]:
    """Kill and resume until all strikes were dealt out, then go on to the end; the kills, and the
    ledger.
    """
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
    assert all(len(item) == 1 for item in keys.values())


def test_a_run_that_is_stopped_in_the_middle_of_requests_goes_on(tmp_path: Path) -> None:
    """Three times, each for twice as long as a request may take."""
    impatient, ledger = (
        ("--teacher.timeout", "0.5", "--teacher.attempts", "9"),
        tmp_path / "run/ledger.jsonl",
    )
    with Hostile(lambda number: "slow:0.02") as server:
        run = Bench(tmp_path).start(words(server.url, "run", *impatient, budget=800))
        for number in (1, 2, 3):
            while not ledger.exists() or ledger.read_bytes().count(b'"charge"') < 4 * number:
                assert run.poll() is None
                time.sleep(0.002)
            run.send_signal(signal.SIGSTOP)
            time.sleep(1)
            run.send_signal(signal.SIGCONT)
        _, err = run.communicate(timeout=100)
    assert run.returncode == 0, err
    assert "Traceback" not in err
    totals = audit(ledger)
    # Stopped between head and body of a request, it cannot know that nobody could serve it: it
    # stays charged.
    assert totals.spent == 800
    assert server.images <= totals.spent <= server.images + totals.failed
    assert server.questions <= totals.requests
