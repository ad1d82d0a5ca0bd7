"""Losses by hand on small numbers, for every label mode."""

import math

import pytest
import torch

from dfme.errors import UserError
from dfme.losses import log_probabilities, make_distance, recovered_logits, top_class
from dfme.spec import LabelMode

PROBABILITIES = LabelMode("probabilities")


def test_recovered_logits_are_the_logits_up_to_a_constant_per_image():
    logits = torch.tensor([[1.0, -2.0, 4.0], [0.5, 0.25, -7.0]])
    expected = logits - logits.mean(dim=1, keepdim=True)
    torch.testing.assert_close(recovered_logits(logits.softmax(dim=1), PROBABILITIES), expected)
    torch.testing.assert_close(recovered_logits(logits, LabelMode("logits")), expected)


def test_l1_by_hand():
    answers = torch.tensor([[0.5, 0.25, 0.25]])
    rec = [math.log(0.5), math.log(0.25), math.log(0.25)]
    mean = sum(rec) / 3
    scores = torch.tensor([[1.0, 0.0, -1.0]])
    expected = sum(abs(s - (r - mean)) for s, r in zip([1.0, 0.0, -1.0], rec, strict=True)) / 3
    assert make_distance("l1", PROBABILITIES)(scores, answers).item() == pytest.approx(expected, rel=1e-6)


def test_kl_by_hand():
    answers = torch.tensor([[0.75, 0.25]])
    scores = torch.tensor([[0.0, 0.0]])
    expected = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    assert make_distance("kl", PROBABILITIES)(scores, answers).item() == pytest.approx(expected, rel=1e-6)


def test_cross_entropy_on_labels_by_hand():
    scores = torch.tensor([[2.0, 0.0], [0.0, 0.0]])
    distances = make_distance("auto", LabelMode("label"))(scores, torch.tensor([0, 1]))
    assert distances.tolist() == pytest.approx([math.log(1 + math.exp(-2.0)), math.log(2.0)], rel=1e-6)


def test_rounded_zero_is_floored_at_half_a_rounding_step():
    answers = torch.tensor([[1.0, 0.0]])
    log_p = log_probabilities(answers, LabelMode("probabilities", decimals=4))
    assert log_p[0, 1].item() == pytest.approx(math.log(0.00005), rel=1e-6)


def test_underflowed_probability_stays_finite_without_rounding():
    answers = torch.tensor([[1.0, 0.0]])
    assert torch.isfinite(make_distance("l1", PROBABILITIES)(torch.zeros(1, 2), answers)).all()


def test_top_k_spreads_the_mass_that_was_not_revealed():
    nan = math.nan
    log_p = log_probabilities(torch.tensor([[0.6, nan, 0.2, nan]]), LabelMode("top_k", k=2))
    assert log_p.exp()[0].tolist() == pytest.approx([0.6, 0.1, 0.2, 0.1], rel=1e-5)


def test_top_class_ignores_unrevealed_classes():
    assert top_class(torch.tensor([[math.nan, 0.3, 0.2]])).tolist() == [1]
    assert top_class(torch.tensor([2, 0])).tolist() == [2, 0]


@pytest.mark.parametrize(
    ("loss", "mode"),
    [("l1", LabelMode("label")), ("l1", LabelMode("top_k", k=1)), ("kl", LabelMode("label"))],
)
def test_a_loss_that_needs_more_than_the_mode_reveals_is_refused_with_alternatives(loss, mode):
    with pytest.raises(UserError, match=r"use one of .*cross_entropy"):
        make_distance(loss, mode)


def test_l1_gradient_does_not_depend_on_the_constant_lost_in_recovery():
    logits = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    scores = torch.zeros(4, 5, requires_grad=True)
    grads = []
    for shift in (0.0, 100.0):
        distance = make_distance("l1", LabelMode("logits"))(scores, logits + shift).sum()
        grads.append(torch.autograd.grad(distance, scores)[0])
    torch.testing.assert_close(grads[0], grads[1])
