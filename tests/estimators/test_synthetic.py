"""Synthetic gradients: what they cost, that they are learnt and not made up."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tables import exhaustive
from torch import Tensor
from toys import agreement, of_answers, point, rng

from dfme.config.sections import EstimatorConfig
from dfme.estimators.base import Objective
from dfme.estimators.build import make_estimator
from dfme.estimators.synthetic import PAID_FIRST, Synthetic
from dfme.run.checkpoint import load_checkpoint, save_checkpoint
from dfme.spec import ImageSpec

SPEC = ImageSpec((1, 4, 4), (-1.0, 1.0))
BATCH = 64
WAVES = 2.0


class Wavy:
    """f(x) = sum over pixels of sin(2 x) / 2, whose gradient cos(2 x) the image alone tells."""

    def __init__(self, classes: int = 3) -> None:
        self.asked = 0
        weights = torch.randn(SPEC.numel, classes, generator=rng(5))
        self.net = torch.nn.Linear(SPEC.numel, classes)
        self.net.load_state_dict({"weight": weights.T, "bias": torch.zeros(classes)})

    def objective(self) -> Objective:
        return Objective(self.observe, lambda x_NCHW, answers_N: answers_N, scores=self.scores)

    def observe(self, x_NCHW: Tensor) -> Tensor:
        self.asked += len(x_NCHW)
        return (WAVES * x_NCHW.double()).sin().div(WAVES).sum((1, 2, 3))

    def scores(self, x_NCHW: Tensor) -> Tensor:
        return self.net(x_NCHW.flatten(1))

    @staticmethod
    def gradient(u_BCHW: Tensor) -> Tensor:
        u_BCHW = u_BCHW.detach().requires_grad_()
        return torch.autograd.grad((WAVES * u_BCHW.tanh()).sin().div(WAVES).sum(), u_BCHW)[0]


def synthetic(every: int = 4, seed: int = 0, **options: Any) -> Synthetic:
    config = EstimatorConfig(kind="synthetic", every=every, **options)
    estimator = make_estimator(config, SPEC, torch.tanh, None, seed)
    assert isinstance(estimator, Synthetic)
    return estimator


def plain() -> Any:
    return make_estimator(EstimatorConfig(), SPEC, torch.tanh, None, 0)


def train(estimator: Synthetic, wavy: Wavy, estimates: int, first: int = 0) -> list[Tensor]:
    """Estimates one after the other, each at points and with draws of its own."""
    grads = []
    for number in range(first, first + estimates):
        u_BCHW = point(BATCH, SPEC.shape, seed=100 + number)
        grads.append(estimator.estimate(wavy.objective(), u_BCHW, rng(number)).grad_BCHW)
    return grads


@pytest.mark.parametrize("every", [1, 3, 4])
def test_one_in_so_many_is_paid_and_the_others_ask_for_nothing(every):
    estimator, wavy = synthetic(every), Wavy()
    foreseen = [estimator.cost(BATCH, ahead) for ahead in range(PAID_FIRST + 9)]
    for number in range(PAID_FIRST + 9):
        asked, expected = wavy.asked, estimator.cost(BATCH)
        estimate = estimator.estimate(
            wavy.objective(), point(BATCH, SPEC.shape, number), rng(number)
        )
        assert expected == foreseen[number]
        paid = number < PAID_FIRST or number % every == 0
        assert wavy.asked - asked == estimate.queries == expected == (2 * BATCH if paid else 0)
        assert estimate.differences_BM.shape == (BATCH, 1 if paid else 0)
        assert estimate.value_B.shape == (BATCH,)
        assert bool(estimate.value_B.any()) == paid


def test_all_paid_is_the_inner_estimator_itself():
    estimator, wavy = synthetic(1), Wavy()
    for number in range(3):
        u_BCHW, ours, theirs = point(BATCH, SPEC.shape, number), rng(number), rng(number)
        estimate = estimator.estimate(wavy.objective(), u_BCHW, ours)
        expected = plain().estimate(wavy.objective(), u_BCHW, theirs)
        assert torch.equal(estimate.grad_BCHW, expected.grad_BCHW)
        assert torch.equal(ours.get_state(), theirs.get_state())


@pytest.mark.exhaustive
def test_a_prediction_comes_closer_to_the_truth_than_what_it_was_learnt_from():
    estimator, wavy = synthetic(every=2, synthetic_lr=3e-3), Wavy()
    train(estimator, wavy, 160)
    u_BCHW = point(256, SPEC.shape, seed=1)
    truth_BCHW = Wavy.gradient(u_BCHW)
    predicted, scale = agreement(estimator.predict(wavy.objective(), u_BCHW), truth_BCHW)
    paid, _ = agreement(plain().estimate(wavy.objective(), u_BCHW, rng(9)).grad_BCHW, truth_BCHW)
    # One direction of 16 has a cosine of about sqrt(1 / 16) over a whole batch.
    assert paid == pytest.approx(0.25, abs=0.06)
    assert predicted > 0.8
    assert scale == pytest.approx(1, abs=0.25)


def test_it_sees_the_student_where_there_is_one():
    estimator, wavy = synthetic(), Wavy()
    train(estimator, wavy, PAID_FIRST + 1)
    u_BCHW = point(BATCH, SPEC.shape)
    before = estimator.predict(wavy.objective(), u_BCHW)
    wavy.net.weight.data.neg_()
    assert not torch.allclose(before, estimator.predict(wavy.objective(), u_BCHW))


@pytest.mark.parametrize("scale", [1e6, *exhaustive(1e-6)])
def test_the_size_of_the_objective_does_not_matter(scale):
    """Of one without a student, too."""

    def course(factor: float) -> Tensor:
        estimator, wavy = synthetic(), Wavy()
        for number in range(PAID_FIRST + 2):
            objective = of_answers(lambda x_NCHW: factor * wavy.observe(x_NCHW))
            estimate = estimator.estimate(objective, point(BATCH, SPEC.shape, number), rng(number))
        assert (estimate.queries, bool(estimate.grad_BCHW.any())) == (0, True)
        return estimate.grad_BCHW / factor

    torch.testing.assert_close(course(scale), course(1.0), rtol=1e-3, atol=1e-4)


def test_nothing_global_is_touched_and_no_graph_is_left():
    wavy = Wavy()
    state, estimator = torch.get_rng_state(), synthetic()
    with torch.no_grad():
        grads = train(estimator, wavy, PAID_FIRST + 2)
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(grad_BCHW.requires_grad for grad_BCHW in grads)
    assert all(parameter.grad is None for parameter in wavy.net.parameters())


def test_the_seed_decides_the_weights():
    def last(seed: int) -> Tensor:
        return train(synthetic(seed=seed), Wavy(), PAID_FIRST + 2)[-1]

    assert torch.equal(last(1), last(1))
    assert not torch.equal(last(1), last(2))


@pytest.mark.parametrize("before", [0, PAID_FIRST + 2])
def test_a_resumed_one_goes_on_bit_for_bit(before, tmp_path: Path):
    whole, wavy = synthetic(), Wavy()
    train(whole, wavy, before)
    save_checkpoint(tmp_path / "checkpoint.pt", {"estimator": whole.state_dict()})
    expected = train(whole, wavy, 9, first=before)
    resumed = synthetic(seed=99)
    resumed.load_state_dict(load_checkpoint(tmp_path / "checkpoint.pt")["estimator"])
    assert resumed.cost(BATCH) == (2 * BATCH if before < PAID_FIRST else 0)
    for ours, theirs in zip(train(resumed, wavy, 9, first=before), expected, strict=True):
        assert torch.equal(ours, theirs)
