"""Every kind of run, stopped at every kind of moment and resumed, ends as if nobody had stopped it.

Methods, and what else a student's training keeps, are in tests/methods/test_methods_resume.py;
processes that are killed are in test_killed_runs.py.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from defended import Stopped, logging_watch
from known_teachers import Counting
from small_runs import BUDGET, Metered, break_down, clone, ctrl_c, lasting, queries, student
from tables import exhaustive_rows
from test_own_parts import OWN, PLAIN, Flat, Net

from dfme.errors import TeacherError
from dfme.oracle.ledger import audit
from dfme.run.retrain import paid_answers

SMALLER = {"batch_size": 5, "latent_size": 16}
DIGITS: dict[str, Any] = {"evaluation": {"dataset": "digits", "limit": 60, "points": 4}}
TWICE = {
    "answers": {"repeat": 2, "learn": "label"},
    "method_options": {**SMALLER, "batch_size": 10},
}
CHECKED = {
    "method": "dfme",
    "method_options": {"batch_size": 20, "latent_size": 16},
    "estimator": {"kind": "auto", "directions": 2},
    "queries": {"programs": ("noise",)},
    "levels": 256,
}
"""The check asks eight times."""
ROUNDS = {"arch": "cnn_small", "lr": 0.01, "steps": 8, "replay_batch": 8, "average": 0.9}
STACK = "modelguard_s:epsilon=0.6+noise:sigma=0.1:key_env=DFME_TEST_KEY"


@dataclass(frozen=True)
class Kind:
    """A configuration, its teacher, and the budget that a run of 400 images goes on under, if
    larger.
    """

    changes: dict[str, Any] = field(default_factory=dict)
    teacher: Callable[..., Any] = Metered
    budget: int = BUDGET
    enlarged: int = 0


def answers(budget: int = BUDGET + 3, **ways: Any) -> Kind:
    """Of the budget a rest is too little for an image."""
    return Kind({"answers": ways, "method_options": SMALLER}, budget=budget)


KINDS: dict[str, Kind] = {
    "plain": Kind(),
    "scored on images": Kind(DIGITS),
    "answers averaged": answers(repeat=2, vote=2),
    "answers recovered": answers(203, repeat=2, recover="table", knows="reverse_sigmoid:beta=0.7"),
    "labels learnt": answers(vote=2, learn="label"),
    "kept on disk": Kind(
        {"student": {"lr": 0.01, "replay_steps": 1, "replay_batch": 8, "replay_store": "disk"}}
    ),
    "in rounds, enlarged": Kind({"student": {**ROUNDS, "rounds": (0.25, 0.5, 1.0)}}, enlarged=800),
    "two students of one's own": Kind(OWN),
    "a module of one's own": Kind({**OWN, "student": Net(width=3)}),
    "a generator of one's own": Kind(
        {**OWN, "method": "dfme", "method_options": {**PLAIN, "generator": Flat}}
    ),
    "checked before its first step": Kind(CHECKED, budget=900),
    "to a goal": Kind(DIGITS | {"until_agreement": 0.8}, budget=500),
    "defended": Kind(DIGITS, Counting),
    "defended, learnt twice": Kind(DIGITS | TWICE, Counting),
    "defended, parts of batches": Kind(DIGITS | {"max_batch": 7}, Counting),
    "defended, not scored": Kind({"evaluation": {"dataset": "none"}}, Counting),
    "behind noise": Kind(DIGITS, partial(Stopped, defences=STACK, mode="probabilities:2")),
    "behind noise, top k": Kind(DIGITS, partial(Stopped, defences=STACK, mode="top_k:3")),
    "watched": Kind(DIGITS, partial(Stopped, watching=logging_watch)),
}
MOMENTS: dict[str, list[dict[int, Callable[[], object]]]] = {
    "with a checkpoint, then beyond it": [{9: ctrl_c}, {4: break_down}],
    "before the first checkpoint": [{5: break_down}],
    "at the first question, then the second": [{1: ctrl_c}, {2: break_down}],
    "thrice": [{6: ctrl_c}, {2: break_down}, {3: ctrl_c}],
}
FIRST = next(iter(MOMENTS))
SELDOM = [
    "labels learnt",
    "answers averaged",
    "a module of one's own",
    "two students of one's own",
    "defended, not scored",
    "defended, parts of batches",
    "behind noise, top k",
    "answers recovered",
    "defended, learnt twice",
    "a generator of one's own",
]
SELDOM += ["plain", "scored on images", "kept on disk", "defended"]  # below, or elsewhere
USUAL = [(name, FIRST) for name in KINDS if name not in SELDOM]
USUAL += [("defended", "before the first checkpoint"), ("plain", "thrice")]
OTHERS = [(name, moment) for name in KINDS for moment in MOMENTS if (name, moment) not in USUAL]


def to_its_end(out: Path, kind: Kind, moments: list[dict[int, Callable[[], object]]]) -> list[Any]:
    """Run it, stopped and resumed at these moments of each stretch; the teachers of the
    stretches.
    """
    teachers, begun = [], False
    if kind.enlarged:
        teachers.append(kind.teacher())
        begun = clone(out, teachers[0], **kind.changes).finished
    for at in [*moments, {}]:
        teachers.append(kind.teacher(at))
        try:
            ended = clone(
                out, teachers[-1], kind.enlarged or kind.budget, begun, **kind.changes
            ).finished
            assert ended is not bool(at)
        except (TeacherError, KeyboardInterrupt):
            assert at, "it was to end"
        begun = True
    return teachers


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, int]]:
    """A run of each kind that nobody stopped, and the images that its teacher served."""
    runs: dict[str, tuple[Path, int]] = {}

    def run(name: str) -> tuple[Path, int]:
        if name not in runs:
            out = tmp_path_factory.mktemp("whole") / "run"
            runs[name] = out, sum(teacher.images for teacher in to_its_end(out, KINDS[name], []))
        return runs[name]

    return run


def paid(out: Path) -> list[bytes]:
    """What the run keeps of its answers, in order."""
    return [
        part.numpy().tobytes() for pair in paid_answers(out).replay.batches(10_000) for part in pair
    ]


@pytest.mark.parametrize(("name", "moment"), [*USUAL, *exhaustive_rows(OTHERS)])
def test_it_ends_as_if_nobody_had_stopped_it(
    name: str,
    moment: str,
    tmp_path: Path,
    undisturbed: Callable[[str], tuple[Path, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DFME_TEST_KEY", "a key for tests, long enough")
    (whole, images), out = undisturbed(name), tmp_path / "run"
    teachers = to_its_end(out, KINDS[name], MOMENTS[moment])
    assert student(out) == student(whole)
    assert lasting(out) == lasting(whole)
    if not KINDS[name].enlarged:  # evaluations come at shares of what is left
        assert queries(out) == queries(whole)
    assert paid(out) == paid(whole)
    if name == "watched":
        assert (out / "watch.jsonl").read_text() == (whole / "watch.jsonl").read_text()
    # The ledger is the teacher's own count, and no image was served twice.
    ledger = audit(out / "ledger.jsonl")
    assert (ledger.spent, ledger.lost) == (audit(whole / "ledger.jsonl").spent, 0)
    assert (
        sum(teacher.images for teacher in teachers)
        == images
        == ledger.spent + ledger.evaluation_queries
    )


# Under a larger budget


STUDENT = {"arch": "cnn_small", "lr": 0.01, "steps": 8, "replay_batch": 8, "average": 0.9}
PILOT: dict[str, Any] = {"student": {**STUDENT, "rounds": (0.25, 0.5, 1.0)}}
"""Of 400 images: 2 steps at 100, 2 at 200 and 4 at 400: 8 steps like the roots of 1, 2 and 4,
rounded.
"""


def steps(out: Path) -> list[tuple[int, int]]:
    """Queries and student steps of every evaluation."""
    records = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return [
        (record["queries"], int(record["student_steps"]))
        for record in records
        if "seconds" in record
    ]


@pytest.mark.parametrize(
    ("budget", "rounds"),
    [
        (1_000, {500: 10, 1_000: 14}),
        # of 200, 400 and 800 images only the last lies beyond those spent
        *exhaustive_rows([(800, {800: 12})]),
    ],
)
def test_the_rounds_beyond_what_is_spent_are_taken(
    budget: int, rounds: dict[int, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, teacher = tmp_path / "run", Metered()
    assert clone(out, Metered(), **PILOT).summary["student_steps"] == 8
    clone(out, teacher, resume=True, progress=True, **PILOT)
    assert "to go on, give a larger --budget" in capsys.readouterr().err
    assert clone(out, teacher, budget, resume=True, **PILOT).finished
    assert teacher.served == budget - BUDGET
    steps_at = dict(steps(out))  # of several at the same queries, the last
    expected = {100: 2, 200: 4, 400: 8, **rounds}
    assert {queries: steps_at[queries] for queries in expected} == expected
    assert set(steps_at.values()) == {*expected.values()}


PASSES: dict[str, Any] = {
    "student": {**PILOT["student"], "steps": 0, "passes": 1, "replay_batch": 40}
}
"""Of 400 images, 40 in a step: 18 steps at 100 (7 passes), 25 at 200 and 36 at 400."""


def test_under_a_larger_budget_passes_are_over_what_is_held_then(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert clone(out, Metered(), **PASSES).summary["student_steps"] == 79
    assert clone(out, Metered(), 800, resume=True, **PASSES).summary["student_steps"] == 129
    steps_at = dict(steps(out))
    assert [steps_at[queries] for queries in (100, 200, 400, 800)] == [18, 43, 79, 129]
