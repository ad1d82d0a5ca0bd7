"""Every paid answer is learnt from; and the generator is trained only while that pays, by arithmetic."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from toys import LinearTeacher, make_method, make_parts

from dfme.config.settings import QueriesConfig
from dfme.methods.worth import WINDOW, TrainingWorth
from dfme.spec import ImageSpec

SPEC = ImageSpec((1, 8, 8))
HALF = QueriesConfig(base="procedural", procedural=0.5)
CPU = torch.device("cpu")


def begun(name: str = "dfme", budget: int = 10_000, queries: QueriesConfig | None = None, **options: Any) -> Any:
    teacher = LinearTeacher(SPEC, mode="probabilities")
    parts = make_parts(teacher, budget, queries=queries or QueriesConfig(), replay_steps=1, replay_capacity=10_000)
    return teacher, parts, make_method(name, parts, **options)


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("form", ["forward", "central"])
@pytest.mark.parametrize(("name", "store"), [("dfme", {}), ("maze", {"store": "all"})])
def test_every_answer_that_is_paid_for_is_learnt_from_once(
    name: str, store: dict[str, str], form: str, reuse: bool
) -> None:
    options = {
        "form": form,
        "directions": 3,
        "generator_steps": 2,
        "student_steps": 3,
        "reuse": reuse and form != "central",
    }
    teacher, parts, method = begun(name, learn_from="all", **options, **store)
    for step in (1, 2):
        method.step()
        assert len(parts.students.replay) == teacher.images == parts.oracle.ledger.spent == step * method.cost
    assert parts.students.steps == 2 * method.cost // 8 * 2, "a step on each batch, and a replay step"
    images, answers = zip(*parts.students.replay.batches(8), strict=True)
    assert torch.allclose(torch.cat(answers), teacher(torch.cat(images)), atol=1e-6)


def test_mazes_neighbours_are_held_beside_the_last_student_batch() -> None:
    _, parts, method = begun("maze", learn_from="all", directions=2, student_steps=3, store="last")
    method.step()
    assert len(parts.students.replay) == 8 * 3 + 8, "the generator's images, two neighbours each, and the last batch"


# When training pays


def trial(worth: TrainingWorth, first: float, second: float, neighbours: int = 10, to_come: float = 1200.0) -> None:
    """A trial whose ratios are ``first`` in its first half, then ``second``: a program's images have a loss of 2."""
    for number in range(WINDOW):
        assert worth.training
        made = 2.0 * (first if number < WINDOW // 2 else second)
        worth.watch(torch.tensor([made - 0.5, made, made + 0.5, 1.5, 2.5]), drawn=2)
        worth.end_iteration(neighbours, to_come)


def test_a_trial_pays_by_what_it_gains_for_the_images_left() -> None:
    worth = TrainingWorth(CPU)  # a trial's neighbours are 120 of the 1,200 images to come: a gain above a tenth pays
    trial(worth, 1.0, 1.11)
    assert worth.training
    assert worth.facts == {"trials": 1, "paid_off": 1, "gain": pytest.approx(0.11), "trains": True}
    trial(worth, 1.11, 1.20)
    assert not worth.training
    assert worth.facts["paid_off"] == 1
    said = worth.news()
    assert len(said) == 2
    assert "trial 1 of its training gained +0.110, 0.100 is its price" in said[0]
    assert "trial 2 of its training gained +0.090" in said[1]
    assert worth.news() == ()


def test_near_the_end_of_the_budget_the_same_gain_pays_no_longer() -> None:
    worth = TrainingWorth(CPU)
    trial(worth, 1.0, 1.11, to_come=1000.0)
    assert not worth.training


def test_pauses_double_and_a_new_trial_follows_each() -> None:
    worth, pauses = TrainingWorth(CPU), list[int]()
    for _ in range(3):
        trial(worth, 1.0, 0.9)
        pauses.append(0)
        while not worth.training:
            pauses[-1] += 1
            worth.watch(torch.full((4,), 99.0), drawn=2)  # of no effect
            worth.end_iteration(10, 1200.0)
    assert pauses == [WINDOW, 2 * WINDOW, 4 * WINDOW]


def test_what_is_planned_is_an_upper_bound_and_exact_of_the_next_iteration() -> None:
    worth = TrainingWorth(CPU)
    trial(worth, 1.0, 0.9)
    for left in range(WINDOW, 0, -1):
        assert [worth.trains(ahead) for ahead in range(WINDOW + 3)] == [ahead >= left for ahead in range(WINDOW + 3)]
        worth.end_iteration(10, 1200.0)
    assert worth.trains(0)


def test_a_kept_state_goes_on_as_the_first_would() -> None:
    worth, other = TrainingWorth(CPU), TrainingWorth(CPU)
    for number in range(WINDOW + 3):
        worth.watch(torch.tensor([3.0 + number, 2.0, 1.0]), drawn=1)
        worth.end_iteration(1, 1200.0)
    other.load_state_dict(worth.state_dict())
    for each in (worth, other):
        for number in range(2 * WINDOW):
            each.watch(torch.tensor([9.0 - number, 2.0, 1.0]), drawn=1)
            each.end_iteration(1, 1200.0)
    assert other.facts == worth.facts
    with pytest.raises(ValueError, match="training_worth"):
        other.load_state_dict({**worth.state_dict(), "so_far": {"training": 3}})


@pytest.mark.parametrize("name", ["dfme", "maze"])
def test_while_it_rests_an_iteration_costs_the_students_batches_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, parts, method = begun(
        name, queries=HALF, training="while_it_pays", learn_from="all", directions=1, student_steps=3
    )
    with_steps, without = 8 * (2 + 3 - method.config.reuse), 8 * 3
    monkeypatch.setattr(TrainingWorth, "_decide", lambda self, so_far, needed: so_far._replace(training=False, left=2))
    before = [each.clone() for each in method.generator.parameters()]
    spent, costs = 0, list[int]()
    for number in range(WINDOW + 3):
        costs.append(method.cost)
        assert sum(ask.images for ask in method.asks()) == method.cost
        if number == WINDOW:
            assert any(not torch.equal(*pair) for pair in zip(before, method.generator.parameters(), strict=True))
            before = [each.clone() for each in method.generator.parameters()]
        if number == WINDOW + 2:
            assert all(torch.equal(*pair) for pair in zip(before, method.generator.parameters(), strict=True))
        method.step()
        spent += costs[-1]
        assert parts.oracle.ledger.spent == spent
    assert costs == [with_steps] * WINDOW + [without] * 2 + [with_steps]


def test_what_the_student_makes_of_both_halves_is_measured_before_it_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Tensor, int]] = []
    monkeypatch.setattr(TrainingWorth, "watch", lambda self, loss_N, drawn: seen.append((loss_N, drawn)))
    _, parts, method = begun(queries=HALF, training="while_it_pays", student_steps=2)
    told: list[Tensor] = []
    learn = parts.students.learn

    def learning(images: Tensor, answers: Tensor, keep: bool = True) -> Any:
        with torch.no_grad():
            method.student.eval()
            told.append(method.students.distance(method.student(images).double(), answers.double()))
            method.student.train()
        return learn(images, answers, keep)

    monkeypatch.setattr(parts.students, "learn", learning)
    method.step()
    assert [drawn for _, drawn in seen] == [4, 4]
    for (loss_N, _), own_N in zip(seen, told, strict=True):
        assert torch.allclose(loss_N, own_N)


@pytest.mark.parametrize("queries", [{}, {"procedural": 1.0}, {"procedural": 0.5, "pool": 2}])
def test_without_a_programs_images_to_hold_its_own_against_it_trains_always_and_says_so(
    queries: dict[str, Any],
) -> None:
    _, _, method = begun(queries=QueriesConfig(**queries), training="while_it_pays")
    (line,) = method.prepare()
    assert "trained in every iteration" in line
    assert method.steps_due() == method.steps_due(1000) == 1
    assert "generator_training" not in method.facts
