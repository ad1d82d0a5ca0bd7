"""The loop: the budget to the last image, evaluations at even shares, and a method held to its
word.
"""

import pytest
import torch
from small_runs import run
from tables import exhaustive
from toys import LinearTeacher, make_method, make_parts

from dfme.errors import DfmeError
from dfme.methods import METHODS
from dfme.run import loop
from dfme.run.evaluation import EvaluationSet, score_all
from dfme.run.loop import halvings
from dfme.spec import ImageSpec

SPEC = ImageSpec((1, 8, 8))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("budget", [1, 33, *exhaustive(7, 8, 9, 31, 32, 64, 100)])
def test_the_budget_is_used_to_the_last_image_and_never_exceeded(name, budget):
    teacher = LinearTeacher(SPEC)
    parts = make_parts(teacher, budget, count=METHODS[name].students)
    finished, listener = run(make_method(name, parts), parts)
    assert finished
    assert teacher.images == parts.oracle.ledger.spent == budget
    assert (listener.evaluated[-1], listener.sheets[-1]) == (budget, budget)


def test_evaluations_come_at_the_first_step_past_each_even_share_and_its_halves_before():
    parts = make_parts(LinearTeacher(SPEC), 160)
    _, listener = run(make_method("static", parts), parts, points=4)
    # steps of 16 images: past 10, 20, then 40, 80, 120, 160
    assert listener.evaluated == [16, 32, 48, 80, 128, 160]
    assert listener.sheets == [48, 80, 128, 160]  # as before 0.7.0


def reached(spent, budget, points):
    return halvings(spent, budget, points) < halvings(spent - 1, budget, points)


@pytest.mark.parametrize(("points", "early"), [(1, [8]), (2, [4, 2]), (8, [1]), (16, [])])
def test_evaluations_at_the_start_halve_and_are_no_more_than_the_others(points, early):
    assert [spent for spent in range(1, 16 // points) if reached(spent, 16, points)] == sorted(
        early
    )


def test_a_stop_is_obeyed_after_the_step_and_kept():
    parts = make_parts(LinearTeacher(SPEC), 160)
    checkpoints: list[int] = []
    finished, _ = run(
        make_method("static", parts),
        parts,
        stopped=lambda: parts.oracle.ledger.spent >= 40,
        kept=checkpoints,
    )
    assert not finished
    assert parts.oracle.ledger.spent == 48
    assert checkpoints == [48]


class ReachedAt:
    """A goal that is reached once so many images are paid for."""

    def __init__(self, parts, images):
        self._ledger, self._images = parts.oracle.ledger, images

    @property
    def reached(self):
        return self._ledger.spent >= self._images

    def look(self, student, scored):
        return {}


@pytest.mark.parametrize(("images", "spent", "steps"), [(80, 80, 150), (160, 160, 300)])
def test_a_goal_saves_queries_and_no_training_that_is_paid_for(images, spent, steps):
    parts = make_parts(LinearTeacher(SPEC), 160, steps=300)
    checkpoints: list[int] = []
    finished, _ = run(
        make_method("static", parts), parts, kept=checkpoints, goal=ReachedAt(parts, images)
    )
    assert (finished, parts.oracle.ledger.spent, parts.students.steps) == (True, spent, steps)
    assert checkpoints == [spent]


def test_several_students_are_scored_alone_and_as_a_vote():
    parts = make_parts(LinearTeacher(SPEC), 8 * 50, count=2)
    images = torch.rand(50, 1, 8, 8)
    labels = parts.oracle(images, "evaluation").argmax(1)
    examination = EvaluationSet(
        "toy",
        images,
        labels,
        parts.oracle.label_mode,
        lambda part: parts.oracle(part, "evaluation"),
    )
    examination.prepare()
    figures = score_all(examination, parts.students.delivered, parts.students.vote)
    names = (
        "accuracy teacher_accuracy agreement kl vote_accuracy vote_agreement vote_kl"
        " constant_agreement agreement_balanced vote_agreement_balanced"
    )
    assert set(figures) == set(names.split())
    with torch.no_grad():
        mean_NK = torch.stack([net.eval()(images).softmax(1) for net in parts.students.nets]).mean(
            0
        )
    assert figures["vote_agreement"] == pytest.approx(
        (mean_NK.argmax(1) == labels).double().mean().item()
    )


def test_a_method_that_spends_something_else_than_it_says_is_named(monkeypatch):
    parts = make_parts(LinearTeacher(SPEC), 1_000)
    method = make_method("static", parts)
    monkeypatch.setattr(type(method), "cost", 24)
    method.step = lambda: parts and method.finish(16)
    with pytest.raises(DfmeError, match="Static spent 16 images in a step that costs 24"):
        run(method, parts)


def test_a_step_is_held_to_what_it_was_to_cost_before_it(monkeypatch):
    """The next one may cost something else: recipes with predicted gradients ended here in
    0.4.0.
    """
    parts = make_parts(LinearTeacher(SPEC), 24)
    method = make_method("static", parts)
    due = [16]
    monkeypatch.setattr(type(method), "cost", property(lambda self: due[-1]))

    def step():
        metrics = method.pay_in_batches(due[-1])
        due.append(8)
        return metrics

    method.step = step
    assert run(method, parts)[0]
    assert parts.oracle.ledger.spent == 24


def test_a_metric_that_must_be_worked_out_takes_a_hundredth_of_the_time(monkeypatch):
    costs = {"difference_snr": 0.1, "generator_grad_norm": 0.001, "probe_alignment": 3.0}
    now, read = [0.0], []
    monkeypatch.setattr(loop.time, "monotonic", lambda: now[0])

    def worked_out(name):
        def value():
            now[0] += costs[name]
            read.append(name)
            return torch.tensor(1.5)

        return value

    reader, steps = loop.MetricReader(), 2_000
    for _ in range(steps):
        now[0] += 0.5
        values = reader(
            {"student_loss": torch.tensor(2.0), **{name: worked_out(name) for name in costs}}
        )
        assert values["student_loss"] == 2.0
    for name, seconds in costs.items():
        assert (
            0.8 * now[0] / (100 * max(0.005, seconds))
            < read.count(name)
            <= 1 + now[0] / (100 * seconds)
        )
    assert read.count("generator_grad_norm") == steps  # a cheap one is in every record


def test_what_is_learnt_depends_on_no_log(monkeypatch):
    def final(seconds):
        monkeypatch.setattr(loop, "LOG_SECONDS", seconds)
        parts = make_parts(LinearTeacher(SPEC), 640)
        run(make_method("dfme", parts), parts)
        return parts.students.net.state_dict()

    always, never = final(0.0), final(float("inf"))
    assert all(torch.equal(always[key], never[key]) for key in always)
