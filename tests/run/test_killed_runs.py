"""Runs killed with SIGKILL, again and again, at every kind of moment, end as if nothing had happened.

``DFME_KILLS`` is the number of kills planned per case (4 by default; a long proof: DFME_KILLS=70).
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from kills import KILLS, plan, scores, strike
from processes import Bench

from dfme.oracle.ledger import audit

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(7200)]

IMAGES_PER_KILL = 1_400
BATCH = 64  # of so small a budget the default is 16, whose many iterations are no other moments to be killed at

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


@pytest.mark.parametrize("case", CASES)
def test_killed_again_and_again_a_run_ends_as_if_never_killed(case: str, tmp_path: Path) -> None:
    budget = IMAGES_PER_KILL * KILLS + 1  # the last batch is a lone image
    flags = [*CASES[case], "--method.batch-size", str(BATCH), "--budget", str(budget), "--evaluation.points", "7"]
    flags += ["--checkpoint-seconds", "0.2"]
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

    # No more than the batch in flight, an evaluation's among them, is lost to a kill, and the teacher's own meter
    # says so too: what was charged and killed before it was sent is all that may be missing from it.
    ledger = audit(run / "ledger.jsonl")
    assert ledger.lost <= kills * max(map(int, (whole.folder / "run.log").read_text().split()))
    paid = ledger.spent + ledger.evaluation_queries
    assert paid <= killed.served("run") <= paid + ledger.lost
    assert whole.served("run") == undisturbed.spent + undisturbed.evaluation_queries
    assert undisturbed.lost == 0
