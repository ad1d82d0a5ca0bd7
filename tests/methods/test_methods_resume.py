"""Every method, killed in the middle and resumed through ``dfme.extract``, ends bit for bit as if
nobody had.

Each run is stopped twice: by Ctrl-C, which leaves a checkpoint at the end of its step, and by a
teacher that breaks down beyond it, which leaves answers in the journal.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import Metered, break_down, ctrl_c, small_options, student
from tables import exhaustive, exhaustive_rows
from torch import Tensor
from toys import differences

import dfme
from dfme.errors import Refused, TeacherError
from dfme.methods import METHODS
from dfme.queries import sampler
from dfme.queries.sampler import Evolution
from dfme.run.checkpoint import load_checkpoint
from dfme.run.run import Result
from dfme.students.trainer import StudentTrainer

BATCH, BUDGET = 8, 93

SIZES = {
    "batch_size": BATCH,
    "student_steps": 2,
    "latent_size": 6,
    "gan_steps": 3,
    "proxy_share": 0.4,
}
STUDENT = {"arch": "cnn_small", "lr": 0.02, "replay_steps": 1, "replay_batch": BATCH}
DRAWING = ("dfme", "procedural")
QUICK = {"programs": ("noise", "gradients")}
PLANNED = {"arch": "cnn_small", "lr": 0.02, "replay_batch": BATCH, "steps": 30}

# What else a run keeps or draws from, once each: method, its options, the student's, and those of
# queries.
VARIANTS: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "no replay": ("dfme", {}, {"replay_steps": 0, "replay_batch": 256}, {}),
    "reuse": ("dfme", {"reuse": True}, {}, {}),
    "partial data": (
        "maze",
        {"partial_data": "digits", "seed_images": 20, "critic_steps": 1},
        {},
        {},
    ),
    "adversarial": ("dfms", {"adversarial": 1.0}, {}, {}),
    "proxies, each once": ("dfms", {"proxy": "digits", "proxy_share": 1.0}, {}, {}),
    "a pool, each once": ("knockoff", {"pool": "digits"}, {}, {}),
    "knockoff's epochs": ("knockoff", {"epochs": 2}, {"replay_steps": 0}, {}),
    "spread": ("static", {}, PLANNED, {}),
    "all steps final": ("procedural", {}, {**PLANNED, "rounds": (1.0,)}, {}),
    "rounds": (
        "procedural",
        {},
        {**PLANNED, "rounds": (0.2, 0.5, 1.0), "average": 0.8},
        {"evolve": 0.5},
    ),
    "rounds, by margin": (
        "procedural",
        {},
        {**PLANNED, "rounds": (0.2, 0.5, 1.0), "replay_batch": "growing"},
        {"evolve": 0.5, "pool": 2, "choose": "margin", "balance": False},
    ),
    "all of a pool, by margin": (
        "procedural",
        {"pool": "digits"},
        {**PLANNED, "rounds": (0.2, 0.5, 1.0)},
        {"evolve": 0.5, "pool": "all", "choose": "margin", "balance": False},
    ),
    "all of a pool, evenly": (
        "procedural",
        {"pool": "digits"},
        {**PLANNED, "rounds": (0.2, 0.5, 1.0)},
        {"pool": "all", "choose": "random"},
    ),
    "all of a pool, by centres": (
        "procedural",
        {"pool": "digits"},
        {**PLANNED, "rounds": (0.2, 0.5, 1.0), "count": 2},
        {"pool": "all", "choose": "kcenter"},
    ),
    "logit adjustment": (
        "procedural",
        {},
        {**PLANNED, "rounds": (0.2, 0.5, 1.0), "logit_adjustment": 1.0, "replay_store": "disk"},
        {},
    ),
    "passes": (
        "procedural",
        {},
        {**PLANNED, "steps": 0, "passes": 2, "rounds": (0.2, 0.5, 1.0), "optimizer": "adamw"},
        {},
    ),
    "rounds of two": ("disguide", {}, {**PLANNED, "rounds": (0.3, 1.0), "optimizer": "adam"}, {}),
    "disk, overflowing": ("disguide", {}, {"replay_store": "disk", "replay_capacity": 50}, {}),
    "three students, adam": ("procedural", {}, {"count": 3, "optimizer": "adam"}, {}),
    "evolve": (
        "procedural",
        {},
        {},
        {"evolve": 0.5, "programs": ("leaves", "noise", "generators")},
    ),
    "pool": ("disguide", {}, {}, {"pool": 3}),
    "base": ("dfme", {}, {}, {"base": "procedural"}),
    "learning from all": (
        "dfme",
        {"learn_from": "all"},
        {},
        {"base": "procedural", "procedural": 0.5},
    ),
    "everything": (
        "disguide",
        {},
        {**PLANNED, "replay_store": "disk", "replay_capacity": 50, "augment": "shift"},
        {**QUICK, "base": "procedural", "procedural": 0.25, "evolve": 0.25, "pool": 2},
    ),
}


@pytest.fixture(autouse=True)
def bred(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Images bred, call by call: these runs are too small to breed any unless they may begin
    early.
    """
    counts: list[int] = []

    def draw(self: Evolution, most: int, rng: torch.Generator) -> Tensor:
        children = drawn(self, most, rng)
        counts.append(len(children))
        return children

    drawn = Evolution.draw
    monkeypatch.setattr(sampler, "READY", 16)
    monkeypatch.setattr(Evolution, "draw", draw)
    return counts


Clone = Callable[..., Result]


def cloning(
    method: str,
    hard: bool = False,
    options: Mapping[str, Any] | None = None,
    student: Mapping[str, Any] | None = None,
    queries: Mapping[str, Any] | None = None,
) -> Clone:
    """A run of one configuration, to be called with its directory and its teacher."""
    student = dict(student or {})
    planned = STUDENT if "steps" not in student else {}
    draws = method in DRAWING and "pool" not in (options or {})

    def clone(out: Path, teacher: Metered, resume: bool = False) -> Result:
        return dfme.extract(
            teacher,
            shape=(1, 8, 8),
            num_classes=10,
            budget=BUDGET,
            method=method,
            label_mode="label" if hard else None,
            method_options={**small_options(method, **SIZES), **(options or {})},
            estimator={"directions": 2} if "estimator" in METHODS[method].sections else None,
            queries={**(QUICK if draws else {}), **(queries or {})} or None,
            student={**planned, **student},
            evaluation={"dataset": "none", "points": 4},
            out=out,
            resume=resume,
        )

    return clone


def interrupted_twice(clone: Clone, tmp_path: Path) -> None:
    """Runs it through, and again with two stops: the student, and all that a run remembers, are the
    same.
    """
    whole, out, through = tmp_path / "whole", tmp_path / "run", Metered()
    assert clone(whole, through).finished
    assert through.served == BUDGET
    first = Metered({through.calls // 2: ctrl_c})
    second, third = Metered({through.calls // 4: break_down}), Metered()
    stopped = clone(out, first)
    assert not stopped.finished
    assert 0 < stopped.summary["spent"] < BUDGET
    with pytest.raises(TeacherError, match="ConnectionError: gone"):
        clone(out, second, resume=True)
    assert clone(out, third, resume=True).finished
    assert first.served + second.served + third.served == BUDGET
    assert second.served > 0, "there are answers beyond the checkpoint"
    same_end(whole, out)


def same_end(whole: Path, out: Path) -> None:
    assert student(out) == student(whole)
    one, other = load_checkpoint(whole / "checkpoint.pt"), load_checkpoint(out / "checkpoint.pt")
    for name in ("method", "trainer", "examination", "streams"):
        assert not differences(one[name], other[name], name)


def takes_labels(method: str) -> bool:
    return "label" in METHODS[method].load().label_modes


# Soft and hard labels in turn; hard where a method takes no other turn of them.
IN_TURN = [(name, number % 2 == 1 and takes_labels(name)) for number, name in enumerate(METHODS)]
OTHERS = [(name, not hard) for name, hard in IN_TURN if hard or takes_labels(name)]


@pytest.mark.parametrize(("method", "hard"), [*IN_TURN, *exhaustive_rows(OTHERS)])
def test_every_method_killed_in_the_middle_ends_as_if_nobody_had(
    method: str, hard: bool, tmp_path: Path
) -> None:
    interrupted_twice(cloning(method, hard), tmp_path)


# Each keeps something of its own kind; the others are these in other company.
TELLING = ["reuse", "partial data", "everything", "all of a pool, by centres"]


@pytest.mark.parametrize(
    "variant", [*TELLING, *exhaustive(*(name for name in VARIANTS if name not in TELLING))]
)
def test_whatever_else_a_run_keeps_is_taken_up_again(
    variant: str, tmp_path: Path, bred: list[int]
) -> None:
    method, options, student, queries = VARIANTS[variant]
    interrupted_twice(cloning(method, options=options, student=student, queries=queries), tmp_path)
    assert any(bred) == ("evolve" in queries)


class Conclusion:
    """The trainer's steps after the budget, two at a time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at: dict[int, Callable[[], object]] = {}
        self.times = 0
        proper = StudentTrainer.train_pending

        def conclude(trainer: StudentTrainer, most: int) -> Any:
            self.times += 1
            self.at.get(self.times, int)()
            return proper(trainer, most)

        monkeypatch.setattr("dfme.run.work.Work.steps_at_once", 2)
        monkeypatch.setattr(StudentTrainer, "train_pending", conclude)

    def begin(self, at: dict[int, Callable[[], object]]) -> None:
        self.at, self.times = at, 0


ROUNDS = {"rounds": (0.25, 1.0), "shrink": 0.5, "average": 0.8}
FINAL = {"rounds": (1.0,)}


@pytest.mark.parametrize(
    ("method", "plan", "time"),
    [
        ("procedural", ROUNDS, 5),
        ("disguide", {**FINAL, "replay_store": "disk"}, 9),
        *exhaustive_rows([("procedural", ROUNDS, time) for time in (1, 6, 14)]),
        *exhaustive_rows([("disguide", FINAL, time) for time in (1, 12)]),
    ],
)
def test_a_stop_in_steps_that_are_taken_two_at_a_time(
    method: str,
    plan: dict[str, Any],
    time: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """30 steps, in rounds of 10 and 20, or all of them on what is kept in the end."""
    clone, conclusion = cloning(method, student=PLANNED | plan), Conclusion(monkeypatch)
    whole, out = tmp_path / "whole", tmp_path / "run"
    clone(whole, Metered())
    assert conclusion.times == 15
    conclusion.begin({time: ctrl_c})
    teachers = [Metered()]
    stopped = clone(out, teachers[0])
    assert not stopped.finished
    assert stopped.summary["student_steps"] == 2 * time
    if time in (5, 9):  # and again, without a checkpoint
        conclusion.begin({2: break_down})
        teachers.append(Metered())
        with pytest.raises(Refused):
            clone(out, teachers[-1], resume=True)
    conclusion.begin({})
    teachers.append(Metered())
    assert clone(out, teachers[-1], resume=True).finished
    assert sum(teacher.served for teacher in teachers) == BUDGET
    assert plan["rounds"] != (1.0,) or teachers[0].served == BUDGET, (
        "everything was paid for before"
    )
    same_end(whole, out)
