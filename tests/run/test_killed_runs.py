"""Runs killed with SIGKILL, again and again, at every kind of moment, end as if nothing had
happened.

``DFME_KILLS`` is the number of kills planned per case (3 by default; a long proof: DFME_KILLS=70).
"""

import random
import time
from pathlib import Path

import pytest
from defended import DETECTORS, WEIGHTS
from processes import KILLS, PROJECT, Bench, plan, scores, strike
from small_runs import lasting

from dfme.oracle.ledger import audit

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(7200)]

IMAGES_PER_KILL = 1_400
# of so small a budget the default is 16, whose many iterations are no other moments to be killed at
BATCH = 64

CASES = {
    "dfme with replay and average": "--method.name dfme --student.replay-steps 2 --student.average 0.9 "
    "--evaluation.dataset digits --student.replay-capacity 3000",
    "static on 8-bit images": "--method.name static --teacher.levels 256 --evaluation.dataset digits",
    "held-back queries": "--method.name dfme --method.student-steps 3 --evaluation.dataset none "
    "--student.optimizer adam --student.lr 0.001",
    "behind a defence": "--teacher known_teachers:metered --method.name static --teacher.max-batch 8 "
    "--evaluation.dataset digits --evaluation.limit 60 --budget 500 --checkpoint-seconds 0.02",
    "under a watch": f"--teacher torch --teacher.checkpoint {PROJECT / WEIGHTS} --method.name static "
    f"--teacher.watch {','.join(DETECTORS)} --teacher.benign digits --evaluation.dataset digits",
}


@pytest.mark.parametrize("case", CASES)
def test_killed_again_and_again_a_run_ends_as_if_never_killed(case: str, tmp_path: Path) -> None:
    budget = IMAGES_PER_KILL * KILLS + 1  # the last batch is a lone image
    flags = (
        f"--method.batch-size {BATCH} --budget {budget} --evaluation.points 7 "
        "--checkpoint-seconds 0.2"
    )
    whole, killed = Bench(tmp_path / "whole"), Bench(tmp_path / "killed")
    first = [*whole.flags("run", *flags.split()), *CASES[case].split()]
    if "torch" in first:
        first.remove("--teacher.log")
        first.remove("run.log")
    whole.here(first)
    undisturbed = audit(whole.folder / "run" / "ledger.jsonl")
    budget = undisturbed.budget

    # Kill and resume until all strikes were dealt out; go on to the end then.
    run, kills, resume = killed.folder / "run", 0, ["--resume", "--out", "run"]
    for when in plan(random.Random(case), KILLS, budget, undisturbed.requests):
        started, born = time.time(), (run / "config.yaml").exists()
        kills += strike(killed.start(resume if born else first), run, when, started)
        if (run / "ledger.jsonl").exists():
            assert audit(run / "ledger.jsonl").spent <= budget
    killed.here(resume)
    print(f"{case}: {kills} kills, {audit(run / 'ledger.jsonl').lost} images lost of {budget}")
    # beside other work a run may end before it is struck; of three planned kills two have
    assert kills >= max(1, KILLS * 3 // 4 - 1)

    # The same student, bit by bit, the same summary, and the budget spent to the last image.
    assert killed.student("run") == whole.student("run")
    assert lasting(run) == lasting(whole.folder / "run")
    assert audit(run / "ledger.jsonl").spent == budget
    if case == "under a watch":
        assert (run / "watch.jsonl").read_text() == (whole.folder / "run/watch.jsonl").read_text()
        return

    # Records without gap or repetition.
    records = killed.evaluations("run")
    assert scores(records) == scores(whole.evaluations("run"))
    queries, seconds = ([record[axis] for record in records] for axis in ("queries", "seconds"))
    assert queries == sorted(set(queries))
    assert seconds == sorted(seconds)
    assert seconds[-1] <= killed.summary("run")["wall_seconds"] + 0.001  # which is rounded

    # No more than the batch in flight, an evaluation's among them, is lost to a kill, and the
    # teacher's own meter says so too: what was charged and killed before it was sent is all that
    # may be missing from it.
    ledger = audit(run / "ledger.jsonl")
    assert ledger.lost <= kills * max(map(int, (whole.folder / "run.log").read_text().split()))
    paid = ledger.spent + ledger.evaluation_queries
    assert paid <= killed.served("run") <= paid + ledger.lost
    assert whole.served("run") == undisturbed.spent + undisturbed.evaluation_queries
    assert undisturbed.lost == 0
