"""A run that trains in rounds goes on under a larger budget: the rounds taken stay, later ones have as many steps."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_runs import BUDGET, Metered, break_down, clone, ctrl_c, no_pictures, student

from dfme.errors import RunError, TeacherError
from dfme.run.checkpoint import load_checkpoint, save_checkpoint
from dfme.students.trainer import StudentTrainer

STUDENT = {"arch": "cnn_small", "lr": 0.01, "steps": 8, "replay_batch": 8, "average": 0.9}
ROUNDS: dict[str, Any] = {"student": {**STUDENT, "rounds": (0.25, 0.5, 1.0)}}
"""Of 400 images: 3 steps at 100, 2 at 200 and 3 at 400, which is 8 thirds of a step for each round, rounded."""


@pytest.fixture(scope="module", autouse=True)
def _no_pictures() -> Iterator[None]:
    with no_pictures():
        yield


def steps(out: Path) -> list[tuple[int, int]]:
    """Queries and student steps of every evaluation."""
    records = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return [(record["queries"], int(record["student_steps"])) for record in records if "seconds" in record]


@pytest.fixture(scope="module")
def pilot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("pilot") / "run"
    assert clone(out, Metered(), **ROUNDS).summary["student_steps"] == 8
    return out


@pytest.mark.parametrize(
    ("budget", "rounds"),
    [
        (800, {800: 11}),  # of 200, 400 and 800 images only the last lies beyond those spent
        (1_000, {500: 11, 1_000: 13}),
        (2_000, {500: 11, 1_000: 13, 2_000: 16}),
    ],
)
def test_the_rounds_beyond_what_is_spent_are_taken(
    budget: int, rounds: dict[int, int], pilot: Path, tmp_path: Path
) -> None:
    out, teacher = tmp_path / "run", Metered()
    shutil.copytree(pilot, out)
    assert clone(out, teacher, budget, resume=True, **ROUNDS).finished
    assert teacher.served == budget - BUDGET
    taken = dict(steps(out))  # of several at the same queries, the last
    assert {queries: taken[queries] for queries in (100, 200, 400, *rounds)} == {100: 3, 200: 5, 400: 8, **rounds}
    assert set(taken.values()) == {3, 5, 8, *rounds.values()}


def test_twice_enlarged_a_run_keeps_all_of_its_rounds(pilot: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(pilot, out)
    clone(out, Metered(), 800, resume=True, **ROUNDS)
    assert clone(out, Metered(), 1_000, resume=True, **ROUNDS).summary["student_steps"] == 13  # a fifth one, at 1,000
    assert dict(steps(out))[800] == 11


def test_a_pilot_stopped_between_two_rounds_is_gone_on_with(tmp_path: Path) -> None:
    out, rounds = tmp_path / "run", {"student": {**STUDENT, "rounds": (0.25, 0.7, 1.0)}}
    assert clone(out, Metered({8: ctrl_c}), **rounds).summary["spent"] == 200
    clone(out, Metered(), 1_000, resume=True, **rounds)  # of it 250 lies in the step up to 300
    taken = dict(steps(out))
    assert [taken[queries] for queries in (100, 300, 700, 1_000)] == [3, 5, 8, 11]


@pytest.mark.parametrize("stops", [(3, 5), (6, 2), (9, 12)])
def test_killed_beyond_the_pilot_it_ends_bit_for_bit_as_if_nobody_had(
    stops: tuple[int, int], pilot: Path, tmp_path: Path
) -> None:
    whole, out, through = tmp_path / "whole", tmp_path / "run", Metered()
    for each in (whole, out):
        shutil.copytree(pilot, each)
    clone(whole, through, 1_000, resume=True, **ROUNDS)
    first, second, third = Metered({stops[0]: ctrl_c}), Metered({stops[1]: break_down}), Metered()
    assert not clone(out, first, 1_000, resume=True, **ROUNDS).finished
    with pytest.raises(TeacherError):  # leaves answers in the journal, and no checkpoint
        clone(out, second, 1_000, resume=True, **ROUNDS)
    assert clone(out, third, resume=True, budget=1_000, **ROUNDS).finished
    assert first.served + second.served + third.served == through.served == 600
    assert student(out) == student(whole)
    one, other = (load_checkpoint(each / "checkpoint.pt")["trainer"] for each in (whole, out))
    assert one["rounds"] == other["rounds"] == {"budget": 1_000, "taken": 3, "since": 0.4}


def test_stopped_in_the_steps_of_a_later_round_it_ends_as_if_nobody_had(
    pilot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, out, taken = tmp_path / "whole", tmp_path / "run", list[int]()
    for each in (whole, out):
        shutil.copytree(pilot, each)
    proper = StudentTrainer.train_pending

    def train(trainer: StudentTrainer, most: int) -> Any:
        taken.append(trainer.steps)
        if trainer.steps == 9:
            ctrl_c()
        return proper(trainer, most)

    clone(whole, Metered(), 1_000, resume=True, **ROUNDS)
    monkeypatch.setattr("dfme.run.loop.STEPS_AT_ONCE", 1)
    monkeypatch.setattr(StudentTrainer, "train_pending", train)
    stopped = clone(out, Metered(), 1_000, resume=True, **ROUNDS)
    assert (stopped.finished, stopped.summary["spent"], stopped.summary["student_steps"]) == (False, 500, 10)
    assert clone(out, Metered(), 1_000, resume=True, **ROUNDS).finished
    assert taken == [8, 9, 10, 11, 12]
    assert student(out) == student(whole)


@pytest.mark.parametrize(
    "rounds", [{"budget": 9, "taken": 1 << 40, "since": 0.5}, {"budget": 9, "taken": 0, "since": float("nan")}, {}]
)
def test_a_checkpoint_whose_rounds_are_none_of_a_run_is_refused(
    rounds: dict[str, Any], pilot: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(pilot, out)
    state = load_checkpoint(out / "checkpoint.pt")
    save_checkpoint(out / "checkpoint.pt", {**state, "trainer": {**state["trainer"], "rounds": rounds}})
    with pytest.raises(RunError, match="rounds"):
        clone(out, Metered(), 1_000, resume=True, **ROUNDS)


def test_a_finished_run_of_rounds_says_that_a_larger_budget_goes_on(
    pilot: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clone(pilot, Metered(), resume=True, progress=True, **ROUNDS)
    assert "to go on, give a larger --budget" in capsys.readouterr().err
