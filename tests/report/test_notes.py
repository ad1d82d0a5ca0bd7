"""Lines that come again and again are said once and counted, whatever fails."""

import itertools

import pytest
import torch
from scripted_teacher import ScriptedTeacher

from dfme.errors import Refused, Unanswered
from dfme.oracle.ledger import Ledger
from dfme.oracle.oracle import Oracle
from dfme.oracle.retry import RateLimiter
from dfme.report.terminal import Notes


def test_a_line_is_said_once_and_then_counted_before_the_next_one_and_at_the_end() -> None:
    said = list[str]()
    with Notes(said.append) as note:
        for line in [
            "429",
            "429",
            "429",
            "a warning",
            "429",
            "503",
            "a warning",
            "a warning",
            "429",
        ]:
            note(line)
    assert said[:4] == [
        "429",
        "the same 2 more times: 429",
        "a warning",
        "the same 1 more time: 429",
    ]
    assert said[4:] == ["503", "the same 1 more time: 429", "the same 2 more times: a warning"]


def test_what_goes_on_and_on_is_counted_every_five_minutes_in_bounded_memory() -> None:
    said, seconds = list[str](), itertools.count()
    note = Notes(said.append, clock=lambda: float(next(seconds)))
    for _ in range(1_000):
        note("busy")
    assert len(said) == 4
    assert said[0] == "busy"
    assert all(line.endswith(" more times: busy") for line in said[1:])
    for number in range(1_000):
        note(f"line {number}")
    assert len(vars(note)["_again"]) <= 100


@pytest.mark.parametrize(
    "failure",
    [
        lambda n: Refused(f"busy, your request is {n:x}", "425"),
        lambda n: Refused(f"no route {n}", "no connection"),
        lambda n: Unanswered(f"broken, see {n}", "500"),
    ],
    ids=["refused", "no connection", "failed"],
)
def test_no_failure_floods_the_terminal(failure: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """However it is worded: 40 requests in flight four at a time, of which each fails twice."""
    said, number = list[str](), itertools.count()
    service, attempts = ScriptedTeacher(max_batch=1), dict[str, int]()
    ask = service.ask

    def failing(query: torch.Tensor, key: str) -> torch.Tensor:
        attempts[key] = attempts.get(key, 0) + 1
        if attempts[key] <= 2:
            raise failure(next(number))  # type: ignore[operator]
        return ask(query, key)

    service.ask = failing
    monkeypatch.setattr(RateLimiter, "pause", lambda self, seconds: None)
    with Notes(said.append) as note:
        Oracle(service, Ledger(1_000), tell=note)(torch.rand(40, 1, 2, 2))
    assert len(said) == 2
    assert said[1].startswith("the same 79 more times: ")
