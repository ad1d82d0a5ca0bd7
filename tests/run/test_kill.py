"""Runs killed with SIGKILL, again and again, at every kind of moment, end as if nothing had happened.

``DFME_KILLS`` is the number of kills planned per case (9 by default; a long proof: DFME_KILLS=70).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from processes import Bench

from dfme.oracle.ledger import audit

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(7200)]

KILLS = int(os.environ.get("DFME_KILLS", "9"))
IMAGES_PER_KILL = 1_400
BATCH = 256

CASES = {
    "dfme with replay and average": [
        *("--method.name", "dfme", "--student.replay-steps", "2", "--student.average", "0.9"),
        *("--evaluation.dataset", "digits", "--student.replay-capacity", "3000"),
    ],
    "static on 8-bit images": [
        *("--method.name", "static", "--teacher.levels", "256", "--evaluation.dataset", "digits"),
    ],
    "held-back queries": [
        *("--method.name", "dfme", "--method.student-steps", "3", "--evaluation.dataset", "none"),
        *("--student.optimizer", "adam", "--student.lr", "0.001"),
    ],
}

OF_THE_SESSIONS = {"seconds", "queries_per_second", "requests", "refused", "lost"}
"""What a record says of how the run went, which kills do change."""

WRITE_UP = ("checkpoint.pt", "student.safetensors", "curve.png", "losses.png", "samples.png", "report.html")


@dataclass(frozen=True)
class Strike:
    """When to kill: ``delay`` seconds after the run directory first satisfies ``moment``."""

    moment: Callable[[Path, float], bool]
    delay: float


def at_once(run: Path, started: float) -> bool:
    return True


def after(requests: int) -> Callable[[Path, float], bool]:
    """Once so many requests are on the ledger, and at least one of them is of this session."""
    return lambda run, started: (
        written(run / "ledger.jsonl", started) and (run / "ledger.jsonl").read_bytes().count(b'"charge"') >= requests
    )


def saving(run: Path, started: float) -> bool:
    """In the middle of the save of a checkpoint."""
    return (run / "checkpoint.pt.tmp").exists()


def writing_up(name: str, budget: int) -> Callable[[Path, float], bool]:
    """Once a file of the end of a run is there, of this session."""
    return lambda run, started: written(run / name, started) and audit(run / "ledger.jsonl").spent == budget


def written(path: Path, started: float) -> bool:
    return path.exists() and path.stat().st_mtime > started


def plan(rng: random.Random, kills: int, budget: int, requests: int) -> list[Strike]:
    """Kills in the order in which a run meets them: at its start, on its way, at the end of its budget."""
    early, late = max(1, kills // 9), max(1, kills // 5)
    # Loading torch takes two seconds at least: later than this, a fast machine is done before it is struck.
    strikes = [Strike(at_once, rng.uniform(0.0, 2.5)) for _ in range(early)]
    for target in sorted(rng.randrange(requests) for _ in range(kills - early - late)):
        moment = saving if rng.random() < 0.2 else after(target)
        strikes.append(Strike(moment, rng.choice([0.0, rng.uniform(0.0, 0.08)])))
    names = sorted((rng.choice(WRITE_UP) for _ in range(late)), key=WRITE_UP.index)
    return strikes + [Strike(writing_up(name, budget), rng.uniform(0.0, 0.1)) for name in names]


def strike(process: subprocess.Popen[str], run: Path, when: Strike, started: float) -> bool:
    """Kill the process at the moment; says whether it was still alive then, or else had ended well."""
    while process.poll() is None and not when.moment(run, started):
        time.sleep(0.001)
    time.sleep(when.delay)
    process.send_signal(signal.SIGKILL)
    _, err = process.communicate()
    assert process.returncode in (0, -signal.SIGKILL), err
    return process.returncode != 0


def scores(records: list[dict[str, float]]) -> list[dict[str, float]]:
    """Records without what only says how the run went."""
    return [{key: value for key, value in record.items() if key not in OF_THE_SESSIONS} for record in records]


@pytest.mark.parametrize("case", CASES)
def test_killed_again_and_again_a_run_ends_as_if_never_killed(case: str, tmp_path: Path) -> None:
    budget = IMAGES_PER_KILL * KILLS + 1  # the last batch is a lone image
    flags = [*CASES[case], "--budget", str(budget), "--checkpoint-seconds", "0.3", "--evaluation.points", "7"]
    whole, killed = Bench(tmp_path / "whole"), Bench(tmp_path / "killed")
    code, _, err = whole.run(whole.flags("run", *flags))
    assert code == 0, err
    undisturbed = audit(whole.folder / "run" / "ledger.jsonl")

    # Kill and resume until all strikes were dealt out; go on to the end then.
    run, kills, resume = killed.folder / "run", 0, ["--resume", "--out", "run"]
    for when in plan(random.Random(case), KILLS, budget, undisturbed.requests):
        started, born = time.time(), (run / "config.yaml").exists()
        process = killed.start(resume if born else killed.flags("run", *flags))
        kills += strike(process, run, when, started)
        if (run / "ledger.jsonl").exists():
            assert audit(run / "ledger.jsonl").spent <= budget
    code, _, err = killed.run(resume)
    assert code == 0, err
    print(f"{case}: {kills} kills, {audit(run / 'ledger.jsonl').lost} images lost of {budget}")
    assert kills >= KILLS * 3 // 4

    # The same student, bit by bit, the same scores, and the budget spent to the last image.
    assert killed.student("run") == whole.student("run")
    expected, summary = whole.summary("run"), killed.summary("run")
    same = ("budget", "spent", "spent_by_purpose", "evaluation_queries", "accuracy", "agreement", "kl")
    same += ("teacher_accuracy", "student_steps", "config_hash")
    assert {key: summary[key] for key in same} == {key: expected[key] for key in same}
    assert summary["spent"] == budget

    # Records without gap or repetition.
    records = killed.evaluations("run")
    assert scores(records) == scores(whole.evaluations("run"))
    queries, seconds = ([record[axis] for record in records] for axis in ("queries", "seconds"))
    assert queries == sorted(set(queries))
    assert seconds == sorted(seconds)
    assert seconds[-1] <= summary["wall_seconds"] + 0.001  # which is rounded

    # No more than the batch in flight is lost to a kill, and the teacher's own meter says so too: what was
    # charged and killed before it was sent is all that may be missing from it.
    ledger = audit(run / "ledger.jsonl")
    assert ledger.lost <= kills * BATCH
    paid = ledger.spent + ledger.evaluation_queries
    assert paid <= killed.served("run") <= paid + ledger.lost
    assert whole.served("run") == undisturbed.spent + undisturbed.evaluation_queries
    assert undisturbed.lost == 0
