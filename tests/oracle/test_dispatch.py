"""What the oracle makes of a service that refuses, fails and dies: charges, answers."""

import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from known_teachers import SHAPE, Interrupted, ScriptedTeacher
from processes import no_waiting

from dfme.errors import BatchTooLarge, BudgetExhausted, Refused, TeacherError
from dfme.oracle.journal import Journal
from dfme.oracle.ledger import CHARGED, Ledger, Purpose, audit
from dfme.oracle.oracle import Oracle
from dfme.oracle.retry import RateLimiter
from dfme.spec import RequestPolicy

PAUSE = RateLimiter.pause


def images(count: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(seed))


def raising(error: Exception) -> Any:
    def ask(images: torch.Tensor, key: str) -> torch.Tensor:
        raise error

    return ask


def test_a_refusal_is_given_back_and_asked_again_with_the_same_key() -> None:
    service, ledger = ScriptedTeacher(["429", "429", "ok"]), Ledger(10)
    x = images(10)
    assert torch.equal(Oracle(service, ledger)(x), service.truth(x))
    assert (ledger.spent, ledger.refused, ledger.failed) == (10, 20, 0)
    assert (ledger.requests, service.served) == (3, 10)
    assert len(set(service.keys)) == 1
    assert ledger.reasons == {"refused": {"429": 2}}


def test_a_failure_stays_charged_and_is_charged_again() -> None:
    service, ledger = ScriptedTeacher(["500", "nan", "ok"]), Ledger(100)
    x = images(10)
    assert torch.equal(Oracle(service, ledger)(x), service.truth(x))
    assert (ledger.spent, ledger.failed, ledger.useful, service.served) == (30, 20, 10, 30)
    assert ledger.reasons == {"failed": {"500": 1, "unusable answer": 1}}


def test_the_same_images_asked_again_on_purpose_are_another_request() -> None:
    service = ScriptedTeacher()
    oracle = Oracle(service, Ledger(100))
    for _ in range(2):
        oracle(images(5))
    Oracle(service, Ledger(100))(images(5))
    assert len(set(service.keys)) == 3


@pytest.mark.parametrize(
    ("plan", "requests"),
    [(["500"] * 9, 5), (["nan"] * 9, 3), (["nan", "500"] * 9, 5), (["429", "nan"] * 9, 6)],
)
def test_what_never_comes_is_given_up(plan: list[str], requests: int) -> None:
    service, ledger = ScriptedTeacher(plan), Ledger(1000)
    with no_waiting(), pytest.raises(TeacherError, match=rf"given up after {requests} attempts"):
        Oracle(service, ledger)(images(4))
    assert service.requests == requests
    assert ledger.spent == ledger.failed == service.served


def test_a_wait_longer_than_the_patience_is_not_begun() -> None:
    service = ScriptedTeacher(wire=RequestPolicy(patience=2.0))
    service.ask = raising(Refused("busy", "429", retry_after=3600))
    oracle = Oracle(service, Ledger(100))
    with pytest.raises(TeacherError, match=r"busy; .* 3,600 s, .* patience$"):
        oracle(images(4))
    assert oracle.service["seconds_waited"] == 0


def test_patience_that_ends_between_refusals_is_said_to_have_ended() -> None:
    service = ScriptedTeacher(wire=RequestPolicy(patience=0.2))
    service.ask = raising(Refused("busy", "429", retry_after=0.0))
    with pytest.raises(TeacherError, match=r"busy; given up after \d+ attempts in 0\.[2-9] s$"):
        Oracle(service, Ledger(100))(images(4))


def test_a_service_that_takes_less_is_asked_for_less() -> None:
    service, ledger = ScriptedTeacher([4] * 99), Ledger(100)
    x = images(10)
    oracle = Oracle(service, ledger)
    assert torch.equal(oracle(x), service.truth(x))
    assert (ledger.spent, ledger.refused, service.requests) == (10, 10, 4)
    oracle(x)
    assert service.requests == 7, "the limit is remembered"


def test_a_limit_that_is_taken_back_again_and_again_is_halved() -> None:
    """Else a batch of B would be sent B / 2 times, for nothing in the ledger and with a B-fold
    recursion.
    """
    asked = list[int]()

    class Wavering(ScriptedTeacher):
        def ask(self, query: torch.Tensor, key: str) -> torch.Tensor:
            asked.append(len(query))
            if len(query) > 1:
                raise BatchTooLarge("service: one less", len(query) - 1)
            return self.truth(query)

    service, ledger, x = Wavering([]), Ledger(1_024), images(1_024)
    assert torch.equal(Oracle(service, ledger)(x), service.truth(x))
    assert ledger.spent == 1_024
    assert sum(asked) < 1_024 * 12


@pytest.mark.parametrize("limit", [1.5, 0, None])
def test_a_limit_that_is_none_is_an_error_of_the_teacher(limit: object) -> None:
    service = ScriptedTeacher()
    service.ask = raising(BatchTooLarge("service: no", limit))  # type: ignore[arg-type]
    with pytest.raises(TeacherError, match="cannot be made smaller"):
        Oracle(service, Ledger(16))(images(16))


@pytest.mark.parametrize("in_flight", [1, 3])
def test_several_in_flight_give_the_answers_of_one(in_flight: int) -> None:
    policy = RequestPolicy(in_flight=in_flight)
    service = ScriptedTeacher(["ok", "500", "ok", "429", "nan"], policy, max_batch=2)
    service.delay = lambda number: 0.004 * (number * 7 % 5)
    x, ledger = images(21), Ledger(100)
    with no_waiting():
        assert torch.equal(Oracle(service, ledger)(x), service.truth(x))
    assert service.most_at_once == in_flight
    assert (ledger.spent, ledger.useful) == (service.served, 21)


@pytest.mark.exhaustive
def test_a_rate_is_kept_and_no_request_carries_more_than_a_second_of_it() -> None:
    service = ScriptedTeacher(wire=RequestPolicy(in_flight=4, images_per_second=40.0))
    started = time.monotonic()
    Oracle(service, Ledger(100))(images(48))
    seconds = time.monotonic() - started
    assert service.requests == 2
    assert 1.0 <= seconds < 3.0


def test_what_was_waited_for_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RateLimiter, "pause", PAUSE)
    service = ScriptedTeacher(["429", "ok"])
    first, second = [Refused("busy", "429", retry_after=0.1)], service.ask

    def ask(query: torch.Tensor, key: str) -> torch.Tensor:
        if first:
            raise first.pop()
        return second(query, key)

    service.ask, lines = ask, list[str]()
    oracle = Oracle(service, Ledger(100), tell=lines.append)
    started = time.monotonic()
    oracle(images(4))
    elapsed, service_record = time.monotonic() - started, oracle.service
    assert service_record["refused"] == {"429": 2}
    assert lines == ["busy; asking again in 0.1 s"] * 2, "a second failure for the same reason"
    assert 0.1 <= service_record["seconds_waited"] <= elapsed


@pytest.mark.exhaustive
@given(
    st.lists(
        st.tuples(st.integers(1, 9), st.sampled_from(["student", "generator", "evaluation"])),
        min_size=1,
        max_size=6,
    ),
    st.lists(
        st.sampled_from(["ok", "ok", "429", "500", "nan", "stop before", "stop after", 2]),
        max_size=24,
    ),
    st.integers(5, 60),
    st.integers(1, 3),
    st.sampled_from([None, 2, 3]),
)
@settings(max_examples=200, deadline=None)
def test_whatever_happens_nothing_is_lost_invented_or_overspent(
    batches: list[tuple[int, Purpose]],
    plan: list[str | int],
    budget: int,
    in_flight: int,
    most: int | None,
) -> None:
    """Batches are asked for in order; whoever is interrupted starts again, from the journal
    alone.
    """
    service = ScriptedTeacher(
        plan, RequestPolicy(in_flight=in_flight, patience=5.0), max_batch=most
    )
    with no_waiting(), tempfile.TemporaryDirectory() as folder:
        ended: str = "stopped"
        sessions: list[list[str]] = []
        while ended == "stopped":
            ledger = Ledger(budget, Path(folder) / "l")
            oracle = Oracle(service, ledger, Journal(Path(folder) / "j"))
            seen: list[str] = []
            ended = ask_all(oracle, service, batches, seen)
            assert ledger.spent <= budget
            oracle.close()
            sessions.append(seen)
        totals = audit(Path(folder) / "l")
    assert totals == ledger.totals()
    assert totals.spent == sum(totals.spent_by_purpose[name] for name in CHARGED)
    assert (
        totals.spent + totals.evaluation_queries
        == totals.served
        == service.served + service.unserved
    )
    stops = [
        outcome for outcome in service.plan[: service.requests] if str(outcome).startswith("stop")
    ]
    assert totals.lost == 0
    assert len(sessions) <= len(stops) + 1
    for before, after in pairwise(sessions):
        assert after[: len(before)] == before, (
            "a replay repeats what was answered and what was given up"
        )


def ask_all(
    oracle: Oracle, service: ScriptedTeacher, batches: list[tuple[int, Purpose]], seen: list[str]
) -> str:
    for number, (count, purpose) in enumerate(batches):
        x = images(count, number)
        try:
            assert torch.equal(oracle(x, purpose), service.truth(x))
            seen.append(f"answered at {oracle.ledger.spent} failed {oracle.ledger.failed}")
        except BudgetExhausted:
            seen.append(f"too little at {oracle.ledger.spent} failed {oracle.ledger.failed}")
        except TeacherError:
            return "given up"
        except Interrupted:
            return "stopped"
    return "done"
