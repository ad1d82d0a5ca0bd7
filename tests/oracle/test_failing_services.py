"""Runs on services that misbehave: every image accounted for, and where one fails for good one line and then on."""

import ctypes
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
    Bench,
    Ended,
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

from dfme.oracle.ledger import Totals, audit
from dfme.run.loop import Interrupt

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("at_once")]

AT = 17
"""The question from which on a server fails."""
ONE = ("--teacher.in-flight", "1")


def from_then_on(fault: str) -> Callable[[int], str | None]:
    return lambda number: fault if number >= AT else None


def explains(ended: Ended, out: Path, *reasons: str) -> None:
    """The run ended in one line that says why, that nothing is lost, and how to go on; and it can
    go on.
    """
    assert ended.code == 3, ended.err
    assert all(reason in ended.line for reason in reasons), ended.line
    assert "all that was paid is kept" in ended.line
    assert ended.line.endswith(f"--resume --out {out}"), ended.line
    assert (out / "checkpoint.pt").exists()
    assert not (out / "summary.json").exists()


def goes_on(server: Hostile, out: Path, like: Path | None, unseen: int = 0) -> Totals:
    """Once the service is mended, the run ends, with the student of the run that met no fault."""
    server.plan = {}
    finished(resume(out))
    totals = meters_agree(server, out, unseen)
    assert totals.spent == 400
    assert like is None or student(out) == student(like)
    return totals


@pytest.mark.parametrize(
    "fault", ["status:401", "redirect", *exhaustive("status:403", "status:404")]
)
def test_refused_for_good_on_the_way(fault: str, quiet: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with Hostile() as other, Hostile(from_then_on(fault)) as server:
        if fault == "redirect":
            server.plan = from_then_on(f"redirect:{other.url}/v2/models/m/infer")
        explains(extract(server, out), out, fault.removeprefix("status:"))
        assert server.questions < AT + 25
        totals = meters_agree(server, out)
        assert (totals.spent, totals.failed, totals.lost) == (server.images, 0, 0)
        goes_on(server, out, quiet)
        assert server.images == 400
        assert other.requests == []


@pytest.mark.parametrize("in_flight", [1, 4])
def test_a_server_that_is_gone_and_comes_back(in_flight: int, quiet: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with Hostile(from_then_on("die")) as server:  # also on connections that were open already
        ended = extract(
            server, out, "--teacher.patience", "0.3", "--teacher.in-flight", str(in_flight)
        )
        explains(ended, out, "connection", server.url)
        meters_agree(
            server, out, unseen=in_flight - 1
        )  # they may wait in the backlog when the port closes
        assert resume(out).code == 2  # what the model is cannot be asked either
        server.up()
        # What was reset in the backlog may have been served, for all that the client knows: it
        # stays charged.
        failed = goes_on(server, out, None, unseen=in_flight - 1).failed
        assert failed <= (in_flight - 1) * MOST
        assert server.images == 400 - failed
        assert failed or student(out) == student(quiet)


@pytest.mark.parametrize(
    "fault",
    [
        "nan",
        "garbage_json",
        *exhaustive("one_image_less", "garbage_bytes", "swapped", "not_http"),
    ],
)
def test_an_unusable_answer_is_asked_for_again_a_few_times_only(fault: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with Hostile(from_then_on(fault)) as server:
        explains(extract(server, out, *ONE), out, "attempts")
        totals = meters_agree(server, out)
        assert 2 <= server.questions - (AT - 1) <= 5
        assert totals.failed == (server.questions - (AT - 1)) * server.served[-1].images
        goes_on(server, out, None)
        assert server.images == 400


@pytest.mark.parametrize("attempts", ["1", "4"])
def test_who_never_answers_is_asked_as_often_as_the_options_say(
    attempts: str, tmp_path: Path
) -> None:
    with Hostile(from_then_on("reset_served")) as server:
        ended = extract(server, tmp_path / "run", "--teacher.attempts", attempts, *ONE)
        explains(ended, tmp_path / "run")
        assert server.questions == AT - 1 + int(attempts)
        meters_agree(server, tmp_path / "run")


def refused_at_once(ended: Ended, out: Path, *reasons: str) -> None:
    assert ended.code == 2, ended.err
    assert all(reason in ended.line for reason in reasons), ended.line
    assert not out.exists()


@pytest.mark.parametrize(("page", "reason"), [(404, "404"), ({"name": "m"}, "m")])
def test_a_service_without_the_model(page: object, reason: str, tmp_path: Path) -> None:
    with Hostile(pages={"/v2/models/m": page}) as server:
        refused_at_once(extract(server, tmp_path / "run"), tmp_path / "run", reason)
        assert server.questions == 0
    refused_at_once(extract(server, tmp_path / "run"), tmp_path / "run", server.url)  # nobody there


def test_a_torn_record_loses_that_part_of_the_batch_alone(quiet: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with Hostile({AT: "status:404"}) as server:
        assert extract(server, out, *ONE).code == 3
        segment, torn = max((out / "journal").iterdir()), server.served[-1].images
        segment.write_bytes(segment.read_bytes()[:-3])
        assert goes_on(server, out, quiet).lost == torn
        assert server.images == 400 + torn
        assert server.served[AT - 1].queries == server.served[AT - 2].queries


@pytest.mark.exhaustive
def test_a_run_directory_that_became_read_only(quiet: Path, tmp_path: Path) -> None:
    """A process of its own, without the privilege of root to write all the same."""
    out = tmp_path / "run"
    with Hostile({AT: "status:404"}) as server:
        assert extract(server, out, *ONE).code == 3
        asked, modes = (
            server.questions,
            {out / "ledger.jsonl": 0o444, out / "journal": 0o555, out: 0o555},
        )
        for path, mode in modes.items():
            path.chmod(mode)
        code, _, err = Bench(tmp_path).run(
            ["--resume", "--out", str(out)], preexec_fn=without_privilege
        )
        for path, mode in modes.items():
            path.chmod(mode | 0o200)
        assert (code, server.questions) == (2, asked), err
        assert [line for line in err.splitlines() if line.startswith("dfme: ")] == err.splitlines()[
            -1:
        ]
        assert "denied" in err
        goes_on(server, out, quiet)


def without_privilege() -> None:
    """Root as anybody else before the permissions of files."""
    ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)


SLOW = "silent dripping dripping_head hints crash gzip_bomb endless".split()
QUICK = [name for name in (*UNANSWERED, *UNUSABLE) if name not in SLOW]
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
    third = every(3, [*REFUSALS, "status:408", "status:425", "die:0.03"])
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
