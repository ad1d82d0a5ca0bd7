"""Runs over HTTP on a server that misbehaves, or interrupted: every answer true, every image
accounted for.

What the service failed to answer stays charged, and a resumed run must know so: its student is, bit
by bit, that of the run that nobody interrupted.
"""

import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
from faults import REFUSALS, UNANSWERED, UNUSABLE
from hostile import Hostile, every
from processes import (
    BATCH,
    MOST,
    Witness,
    extract,
    finished,
    meters_agree,
    no_waiting,
    resume,
    student,
    summary,
)
from tables import exhaustive

from dfme.oracle.ledger import audit
from dfme.run.loop import Interrupt

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("at_once")]

REFUSED = (*REFUSALS, "status:408", "status:425")
SLOW = "silent dripping dripping_head hints crash gzip_bomb endless".split()
QUICK = [name for name in (*UNANSWERED, *UNUSABLE) if name not in SLOW]
ONE = ("--teacher.in-flight", "1")
FOUR = ("--teacher.in-flight", "4")
FLAKY = "flaky:5"


def test_json_gives_the_student_of_binary_and_true_answers(quiet: Path, tmp_path: Path) -> None:
    with Hostile() as server, Witness().watching() as witness:
        finished(extract(server, tmp_path / "run", "--teacher.encoding", "json"))
        assert (
            meters_agree(server, tmp_path / "run").spent == 400 == server.images == witness.images
        )
    witness.all_true()
    witness.all_served(server.served)
    assert student(tmp_path / "run") == student(quiet)


@pytest.mark.exhaustive
def test_a_jumping_clock_changes_nothing(
    quiet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, rng = time.time, random.Random(0)
    monkeypatch.setattr(time, "time", lambda: real() + rng.choice([-1e6, 0.0, 1e6]))
    out = tmp_path / "run"
    with Hostile(every(3, ["status:429/0"])) as server:
        finished(extract(server, out, "--teacher.timeout", "5"))
        assert meters_agree(server, out).spent == 400
    assert student(out) == student(quiet)
    assert 0 <= summary(out)["wall_seconds"] < 100


def test_refusals_on_every_third_request_change_nothing(quiet: Path, tmp_path: Path) -> None:
    third = every(3, [*REFUSED, "die:0.03"])
    with Hostile(lambda number: "status:429/0" if 10 <= number < 110 else third(number)) as server:
        finished(extract(server, tmp_path / "run", *ONE))
        totals = meters_agree(server, tmp_path / "run")
        assert server.images == totals.spent == 400
        assert totals.refused >= 80
        assert totals.failed == 0
    assert student(tmp_path / "run") == student(quiet)


def account_for_all(server: Hostile, witness: Witness, out: Path) -> None:
    """Every image used has its true answer, was served, and what was paid besides is what
    failed.
    """
    totals = meters_agree(server, out)
    witness.all_true()
    witness.all_served(server.served)
    assert totals.lost == 0
    assert 0 < totals.failed < totals.spent
    # What came of a last batch that the budget no longer reached for was paid, and could not be
    # used.
    assert 0 <= totals.spent - totals.failed - witness.images < BATCH
    assert len({entry.key for entry in server.served}) == len(
        {(*entry.queries,) for entry in server.served}
    )


@pytest.mark.parametrize("method", ["static", "dfme"])
def test_faults_on_every_fifth_request_and_every_answer_is_true(
    method: str, tmp_path: Path
) -> None:
    with Hostile(every(5, QUICK)) as server, Witness().watching() as witness:
        finished(extract(server, tmp_path / "run", "--method.name", method, *FOUR, budget=1_000))
        account_for_all(server, witness, tmp_path / "run")


@pytest.mark.parametrize("in_flight", [1, 4])
def test_a_student_is_the_same_whenever_answers_come(
    in_flight: int, quiet: Path, tmp_path: Path
) -> None:
    rng = random.Random(in_flight)
    delays = [rng.choice([0.0, rng.uniform(0.0, 0.01)]) for _ in range(400)]
    delays[20:26] = [0.2] * 6  # long enough for a busy machine to ask the others meanwhile

    def plan(number: int) -> str:
        return "status:429/0" if number % 7 == 0 else f"slow:{delays[number]}"

    with Hostile(plan) as server, Witness().watching() as witness:
        finished(extract(server, tmp_path / "run", "--teacher.in-flight", str(in_flight)))
        totals = meters_agree(server, tmp_path / "run")
    witness.all_true()
    assert (totals.spent, totals.failed) == (400, 0)
    assert server.most_at_once == min(in_flight, 3)
    assert student(tmp_path / "run") == student(quiet)
    assert summary(tmp_path / "run")["refused"] > 0


@pytest.fixture(scope="module")
def through(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A run that nobody interrupted, on a service that now and then gives no answer; its
    questions.
    """
    out = tmp_path_factory.mktemp("through") / "run"
    with no_waiting(), Hostile(lambda number: FLAKY) as server:
        finished(extract(server, out, *ONE))
        totals = meters_agree(server, out)
    assert totals.failed > 5 * MOST
    return out, server.questions


def ctrl_c() -> str:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    return FLAKY


INTERRUPTIONS: dict[str, tuple[Callable[[], str], int]] = {
    "refused for good": (lambda: "status:404", 3),
    "ctrl-c": (ctrl_c, 130),
}


@pytest.mark.parametrize("question", [32, 59, *exhaustive(*range(1, 62, 3))])
@pytest.mark.parametrize("more", [(), *exhaustive(("--checkpoint-seconds", "0.001"))])
@pytest.mark.parametrize("how", INTERRUPTIONS)
def test_interrupted_at_any_question(
    question: int, more: tuple[str, ...], how: str, through: tuple[Path, int], tmp_path: Path
) -> None:
    out, (whole, questions), (act, code) = tmp_path / "run", through, INTERRUPTIONS[how]
    with Hostile(lambda number: act() if number == question else FLAKY) as server:
        ended = extract(server, out, *ONE, *more)
        if question <= questions and not (
            ended.code == 0 and how == "ctrl-c"
        ):  # after the last batch
            assert ended.code == code
            assert meters_agree(server, out).lost == 0
            finished(resume(out, *more))
        assert meters_agree(server, out).lost == 0
    assert student(out) == student(whole)
    same = (
        "spent",
        "spent_by_purpose",
        "evaluation_queries",
        "failed",
        "agreement",
        "student_steps",
    )
    assert {name: summary(out)[name] for name in same} == {
        name: summary(whole)[name] for name in same
    }


@pytest.mark.parametrize("in_flight", ["1", "4"])
def test_ctrl_c_twice_stops_at_once_and_what_was_on_its_way_stays_charged(
    in_flight: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, first = tmp_path / "run", threading.Event()
    receive = Interrupt._receive

    def noted(interrupt: Interrupt, number: int, frame: FrameType | None) -> None:
        try:
            receive(interrupt, number, frame)
        finally:
            first.set()

    def impatient(number: int) -> None:
        if number == 32:
            assert first.wait(10)
        if number in (31, 32):
            ctrl_c()

    monkeypatch.setattr(Interrupt, "_receive", noted)
    with Hostile({32: "silent"}) as server:
        server.when_served = impatient
        assert extract(server, out, "--teacher.in-flight", in_flight).code == 130
        finished(resume(out))
        totals = audit(out / "ledger.jsonl")
        # What was charged and not yet sent has failed too, by the ledger: only one at a time leaves
        # no doubt.
        assert server.images <= totals.spent
        assert in_flight != "1" or server.images == totals.spent
    assert (totals.spent, totals.lost) == (400, 0)
    assert 0 < totals.failed <= int(in_flight) * MOST


def test_the_last_batch_that_the_budget_does_not_reach(tmp_path: Path) -> None:
    """Failures near the end of the budget: it is never exceeded, and spent to the last image."""
    for budget in range(41, 61, 4):
        out = tmp_path / str(budget)
        with Hostile(lambda number: "flaky:2") as server, Witness().watching() as witness:
            finished(extract(server, out, *ONE, budget=budget))
            assert meters_agree(server, out).spent == budget
        witness.all_true()
