"""Runs over HTTP on a service that now and then gives no answer, interrupted at any of their questions, and resumed.

What the service failed to answer stays charged, and a resumed run must know so: its student is, bit by bit, that of the
run that nobody interrupted.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest
import small_runs
from hostile import Hostile
from http_runs import MOST, Witness, extract, finished, meters_agree, mostly, no_waiting, resume, student, summary

from dfme.oracle.ledger import audit
from dfme.run.interrupt import Interrupt

pytestmark = pytest.mark.integration

FLAKY = "flaky:5"
OFTEN = ("--checkpoint-seconds", "0.001")


@pytest.fixture(scope="module", autouse=True)
def _surroundings() -> Iterator[None]:
    with small_runs.no_pictures(), no_waiting():
        yield


@pytest.fixture(scope="module")
def through(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A run that nobody interrupted, and how many questions it asked."""
    out = tmp_path_factory.mktemp("through") / "run"
    with Hostile(lambda number: FLAKY) as server:
        finished(extract(server, out, "--teacher.in-flight", "1"))
        totals = meters_agree(server, out)
    assert totals.failed > 5 * MOST
    return out, server.questions


def at(question: int, act: Callable[[], str]) -> Callable[[int], str]:
    """Flaky, and at one question what ``act`` does and says."""
    return lambda number: act() if number == question else FLAKY


def refuse() -> str:
    return "status:404"


def ctrl_c() -> str:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    return FLAKY


@pytest.mark.parametrize("question", mostly([32, 59], {*range(1, 62)} - {32, 59}))
@pytest.mark.parametrize("more", [(), OFTEN], ids=["no checkpoint", "a checkpoint each step"])
def test_refused_for_good_at_any_question(
    question: int, more: tuple[str, ...], through: tuple[Path, int], tmp_path: Path
) -> None:
    out, (whole, questions) = tmp_path / "run", through
    with Hostile(at(question, refuse)) as server:
        ended = extract(server, out, "--teacher.in-flight", "1", *more)
        if question <= questions:
            assert ended.code == 3
            assert meters_agree(server, out).lost == 0
            finished(resume(out, *more))
        same_as(whole, out, server)
        assert server.questions == questions + (question <= questions)


def same_as(whole: Path, out: Path, server: Hostile) -> None:
    """The run ended as the one that nobody interrupted."""
    assert meters_agree(server, out).lost == 0
    assert student(out) == student(whole)
    same = ("spent", "spent_by_purpose", "evaluation_queries", "failed", "agreement", "student_steps")
    assert {name: summary(out)[name] for name in same} == {name: summary(whole)[name] for name in same}


@pytest.mark.parametrize("question", mostly([31], [5, 49]))
def test_ctrl_c_in_the_middle_of_a_batch(question: int, through: tuple[Path, int], tmp_path: Path) -> None:
    out = tmp_path / "run"
    with Hostile(at(question, ctrl_c)) as server:
        assert extract(server, out, "--teacher.in-flight", "1").code == 130
        assert meters_agree(server, out).lost == 0
        finished(resume(out))
        same_as(through[0], out, server)


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
        # What was charged and not yet sent has failed too, by the ledger: only one at a time leaves no doubt.
        assert server.images <= totals.spent
        assert in_flight != "1" or server.images == totals.spent
    assert (totals.spent, totals.lost) == (400, 0)
    assert 0 < totals.failed <= int(in_flight) * MOST


@pytest.mark.parametrize("method", mostly(["static"], ["dfme"]))
def test_the_last_batch_that_the_budget_does_not_reach(method: str, tmp_path: Path) -> None:
    """Failures near the end of the budget: it is never exceeded, and spent to the last image."""
    for budget in range(41, 61, 4):
        out = tmp_path / str(budget)
        with Hostile(lambda number: "flaky:2") as server, Witness().watching() as witness:
            finished(extract(server, out, "--method.name", method, "--teacher.in-flight", "1", budget=budget))
            totals = meters_agree(server, out)
        assert totals.spent == budget
        witness.all_true()
