"""DFME with every kind of estimator: what it pays, what it reuses, what it leaves to the check."""

import math

import pytest
import torch
from tables import exhaustive
from toys import LinearTeacher, goes_on_bit_for_bit, make_method, make_parts

from dfme.config.sections import EstimatorConfig
from dfme.estimators.preflight.measure import preflight_images
from dfme.report.metrics import METRICS
from dfme.run.loop import numbers
from dfme.spec import ImageSpec

SPEC = ImageSpec((1, 8, 8))
EIGHT_BIT = ImageSpec((1, 8, 8), levels=256)

SETTINGS = {
    "central": ({"form": "central", "directions": 2}, 2 * 2),
    "orthogonal": ({"direction": "orthogonal", "directions": 3}, 3 + 1),
    "dct": ({"direction": "dct"}, 1 + 1),
    "range": ({"direction": "range"}, 1 + 1),
    "image": ({"space": "image"}, 1 + 1),
    "lattice": ({"space": "lattice", "step": 2.0, "direction": "dct"}, 1 + 1),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_step_spends_its_cost_and_the_teacher_counts_as_much(name):
    options, per_image = SETTINGS[name]
    teacher = LinearTeacher(EIGHT_BIT)
    parts = make_parts(teacher, 10_000)
    method = make_method("dfme", parts, **options)
    assert method.prepare() == ()
    assert method.cost == 8 * (per_image + 2)
    before = [parameter.clone() for parameter in parts.generator.parameters()]
    for step in (1, 2):
        metrics = method.step()
        assert teacher.images == parts.oracle.ledger.spent == step * method.cost
    assert set(metrics) <= set(METRICS)
    assert all(math.isfinite(value) for value in numbers(metrics).values())
    assert any(
        not torch.equal(*pair) for pair in zip(before, parts.generator.parameters(), strict=True)
    )


@pytest.mark.parametrize(
    "options", [{"kind": "synthetic"}, {"kind": "auto"}, *exhaustive(SETTINGS["range"][0])]
)
def test_k_steps_a_round_trip_and_the_rest_are_n_steps_bit_for_bit(options):
    goes_on_bit_for_bit(
        lambda seed: make_method(
            "dfme", make_parts(LinearTeacher(EIGHT_BIT), 10_000, seed=seed), **options
        )
    )


def test_predicted_steps_cost_nothing_and_the_cost_says_so_beforehand():
    teacher = LinearTeacher(SPEC)
    parts = make_parts(teacher, 100_000)
    method = make_method("dfme", parts, kind="synthetic", every=4)
    costs, spent = [], []
    for _ in range(17):
        before = teacher.images
        costs.append(method.cost)
        metrics = numbers(method.step())
        spent.append(teacher.images - before)
        assert ("generator_loss" in metrics) == (spent[-1] == 8 * 4)
        assert metrics["generator_grad_norm"] > 0
    assert spent == costs
    assert set(spent[8:]) == {8 * 2, 8 * 4}
    assert spent[8:].count(8 * 4) == 3


@pytest.mark.parametrize("steps", [1, 3])
def test_reuse_pays_one_batch_less_and_the_student_learns_from_the_generators(steps):
    teacher = LinearTeacher(SPEC)
    parts = make_parts(teacher, 10_000, replay_steps=1)
    method = make_method(
        "dfme", parts, reuse=True, directions=2, student_steps=3, generator_steps=steps
    )
    assert method.cost == 8 * (steps * (2 + 1) + 3 - 1)
    method.step()
    ledger = parts.oracle.ledger
    assert ledger.spent_by_purpose["generator"] == 8 * 3 * steps
    assert ledger.spent_by_purpose["student"] == 8 * 2
    assert parts.students.steps == 2 * 3, "three batches with a replay step each"
    images, answers = method.last_objective.first_asked(8)
    assert torch.equal(answers, teacher(images)), (
        "the generator's points with the answers that were paid for"
    )


def test_looking_at_the_metrics_changes_nothing_that_is_learnt():
    def final(look):
        parts = make_parts(LinearTeacher(EIGHT_BIT), 10_000)
        method = make_method("dfme", parts)
        for _ in range(3):
            metrics = method.step()
            if look:
                numbers(metrics)
        return parts.students.net.state_dict()

    one, two = final(True), final(False)
    assert all(torch.equal(one[key], two[key]) for key in one)


def test_the_metrics_tell_a_wire_that_hides_the_published_step():
    published = make_method("dfme", make_parts(LinearTeacher(EIGHT_BIT), 10_000))
    lattice = make_method(
        "dfme", make_parts(LinearTeacher(EIGHT_BIT), 10_000), space="lattice", step=1.0
    )
    hidden, visible = numbers(published.step()), numbers(lattice.step())
    assert hidden["probe_alignment"] < 0.3
    assert visible["probe_alignment"] == pytest.approx(1, abs=1e-5)
    assert visible["difference_snr"] > 100


def test_auto_checks_once_charges_it_as_check_and_walks_on_the_lattice():
    teacher = LinearTeacher(EIGHT_BIT)
    parts = make_parts(teacher, 10_000)
    method = make_method("dfme", parts, kind="auto")
    assert "lattice" in method.prepare()[0]
    asked = preflight_images(EstimatorConfig("auto"), EIGHT_BIT)
    assert parts.oracle.ledger.spent_by_purpose["check"] == teacher.images == asked
    assert method.facts["estimator"]["space"] == "lattice"
    assert isinstance(method.facts["estimator"]["step"], float)
    assert method.prepare() == ()
    assert teacher.images == asked


@pytest.mark.parametrize("options", [{}, {"form": "central", "directions": 2}])
def test_the_signal_to_noise_costs_one_forward_of_the_first_rows(options):
    parts = make_parts(LinearTeacher(SPEC), 10_000)
    read = make_method("dfme", parts, **options).step()["difference_snr"]
    seen: list[int] = []
    parts.students.net.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    assert read() > 1
    assert seen == [8]
