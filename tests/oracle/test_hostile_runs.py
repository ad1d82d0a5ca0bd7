"""Runs over HTTP against a server that misbehaves: every answer true, every image accounted for, by two meters."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import small_runs
from faults import REFUSALS, UNANSWERED, UNUSABLE
from hostile import Hostile, every
from http_runs import BATCH, Witness, command, extract, finished, meters_agree, mostly, no_waiting, student, summary

pytestmark = pytest.mark.integration

REFUSED = (*REFUSALS, "status:408", "status:425")
SLOW = ("silent", "dripping", "dripping_head", "hints")
QUICK = [name for name in (*UNANSWERED, *UNUSABLE) if name not in (*SLOW, "crash", "gzip_bomb", "endless")]
EVERYTHING = [*REFUSED, *QUICK, *SLOW, "gzip_bomb", "endless", "failed:502", "slow:0.01", "hang_up", "chunked"]
EVERYTHING += ["twice", "overrun"]
AWAY = ["die:0.1", "crash:0.1"]
"""For one request at a time only: a socket that stops listening resets connections that it never saw."""
TWO_HUNDRED_BATCHES = 200 * BATCH


@pytest.fixture(scope="module", autouse=True)
def _no_pictures() -> Iterator[None]:
    with small_runs.no_pictures():
        yield


@pytest.mark.parametrize("encoding", ["binary", "json"])
def test_the_same_student_in_binary_and_json_with_evaluation_on_the_meter(
    encoding: str, quiet: Path, tmp_path: Path
) -> None:
    with Hostile() as server, Witness().watching() as witness:
        finished(extract(server, tmp_path / "run", "--teacher.encoding", encoding))
        assert meters_agree(server, tmp_path / "run").spent == 400 == server.images == witness.images
    witness.all_true()
    witness.all_served(server.served)
    assert student(tmp_path / "run") == student(quiet)


def test_evaluation_images_are_on_both_meters(tmp_path: Path) -> None:
    options = ("--evaluation.dataset", "digits", "--evaluation.limit", "30")
    with Hostile(every(3, ["status:429/0", "failed"])) as server, no_waiting():
        finished(extract(server, tmp_path / "run", *options))
        totals = meters_agree(server, tmp_path / "run")
    assert totals.spent == 400
    assert totals.evaluation_queries >= 30
    assert totals.refused
    assert totals.failed


@pytest.mark.parametrize("method", ["static", "dfme"])
def test_refusals_on_every_third_request_change_nothing(method: str, quiet: Path, tmp_path: Path) -> None:
    more = ("--method.name", method, "--teacher.in-flight", "1")
    if method != "static":
        quiet = tmp_path / "quiet"
        with Hostile() as server:
            finished(extract(server, quiet, *more))
    with Hostile(every(3, [*REFUSED, "die:0.03"])) as server, no_waiting():
        finished(extract(server, tmp_path / "run", *more))
        totals = meters_agree(server, tmp_path / "run")
        assert server.images == totals.spent == 400
        assert totals.refused >= 80
        assert totals.failed == 0
    assert student(tmp_path / "run") == student(quiet)


def test_a_storm_of_refusals_is_waited_out(quiet: Path, tmp_path: Path) -> None:
    """A hundred in a row, and the same student."""
    with Hostile(lambda number: REFUSED[number % 7] if 10 <= number < 110 else None) as server, no_waiting():
        finished(extract(server, tmp_path / "run"))
        totals = meters_agree(server, tmp_path / "run")
    assert (server.images, server.questions, totals.requests) == (400, 160, 160)
    assert student(tmp_path / "run") == student(quiet)


@pytest.mark.parametrize("method", ["static", "dfme"])
@pytest.mark.parametrize("in_flight", mostly([4], [1]))
def test_faults_on_every_third_request_and_yet_every_answer_is_the_true_one(
    method: str, in_flight: int, tmp_path: Path
) -> None:
    more = ("--method.name", method, "--teacher.in-flight", str(in_flight))
    with Hostile(every(often(in_flight), QUICK)) as server, Witness().watching() as witness, no_waiting():
        finished(extract(server, tmp_path / "run", *more, budget=1_000))
        totals = meters_agree(server, tmp_path / "run")
    account_for_all(server, witness, totals.spent, totals.failed)
    assert totals.lost == 0


def often(in_flight: int) -> int:
    """Each third request; each fifth of several at once, where one of three parts can be the third again and again."""
    return 3 if in_flight == 1 else 5


def account_for_all(server: Hostile, witness: Witness, spent: int, failed: int) -> None:
    """Every image used has its true answer, was served, and what was paid besides is what failed."""
    witness.all_true()
    witness.all_served(server.served)
    assert 0 < failed < spent
    # What came of a last batch that the budget no longer reached for was paid, and could not be used.
    assert 0 <= spent - failed - witness.images < BATCH
    assert len({entry.key for entry in server.served}) == len({(*entry.queries,) for entry in server.served})


@pytest.mark.exhaustive
def test_two_hundred_batches_with_a_refusal_on_every_third_request(tmp_path: Path) -> None:
    """Whatever the pace; what it does to the pace is in test_pace."""
    students = []
    for name, faults in {"without": ["slow:0"], "with": ["status:429/0", "status:503/0"]}.items():
        with Hostile(every(3, faults)) as server, no_waiting():
            finished(extract(server, tmp_path / name, "--teacher.max-batch", "20", budget=TWO_HUNDRED_BATCHES))
            totals = meters_agree(server, tmp_path / name)
        assert server.images == totals.spent == TWO_HUNDRED_BATCHES
        assert (totals.failed, totals.lost) == (0, 0)
        students.append(student(tmp_path / name))
    assert server.questions == totals.requests == 299
    assert totals.refused == 99 * BATCH
    assert students[0] == students[1]


@pytest.mark.exhaustive
@pytest.mark.parametrize("in_flight", [1, 4])
def test_two_hundred_batches_with_everything_on_every_third_request(in_flight: int, tmp_path: Path) -> None:
    more = ("--teacher.timeout", "2", "--teacher.in-flight", str(in_flight), "--teacher.attempts", "9")
    faults = EVERYTHING + (AWAY if in_flight == 1 else []) + 7 * QUICK
    with Hostile(every(often(in_flight), faults)) as server, Witness().watching() as witness, no_waiting():
        finished(extract(server, tmp_path / "run", *more, budget=TWO_HUNDRED_BATCHES))
        totals = meters_agree(server, tmp_path / "run")
    assert server.questions > len(EVERYTHING) * often(in_flight)
    account_for_all(server, witness, totals.spent, totals.failed)


@pytest.mark.parametrize("in_flight", [1, 4])
def test_the_student_does_not_depend_on_when_answers_come(in_flight: int, quiet: Path, tmp_path: Path) -> None:
    rng = random.Random(in_flight)
    delays = [rng.choice([0.0, rng.uniform(0.0, 0.01)]) for _ in range(400)]

    def plan(number: int) -> str:
        return "status:429/0" if number % 7 == 0 else f"slow:{delays[number]}"

    with Hostile(plan) as server, Witness().watching() as witness, no_waiting():
        finished(extract(server, tmp_path / "run", "--teacher.in-flight", str(in_flight)))
        totals = meters_agree(server, tmp_path / "run")
    witness.all_true()
    assert (totals.spent, totals.failed) == (400, 0)
    assert server.most_at_once == min(in_flight, 3)
    assert student(tmp_path / "run") == student(quiet)
    assert summary(tmp_path / "run")["refused"] > 0


def test_a_clock_that_jumps_changes_nothing(quiet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, rng = time.time, random.Random(0)
    monkeypatch.setattr(time, "time", lambda: real() + rng.choice([-1e6, 0.0, 1e6]))
    out = tmp_path / "run"
    with no_waiting(), Hostile(every(3, ["status:429/0"])) as server:
        finished(extract(server, out, "--teacher.timeout", "5"))
        assert meters_agree(server, out).spent == 400
    assert student(out) == student(quiet)
    assert 0 <= summary(out)["wall_seconds"] < 100
    assert command(["report", str(out)]).code == 0
