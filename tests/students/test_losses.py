"""Losses by hand on small numbers, for every label mode."""

import math

import pytest
import torch

from dfme.errors import UserError
from dfme.spec import LabelMode
from dfme.students.losses import log_probabilities, make_distance, recovered_logits, unresolved

PROBABILITIES = LabelMode("probabilities")
FOUR_DECIMALS = LabelMode("probabilities", decimals=4)
TWO_DECIMALS = LabelMode("probabilities", decimals=2)


def confident_teacher(images: int = 400, classes: int = 10) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of a teacher that is sure of itself, and scores of a student that has learnt a good
    part of them."""
    rng = torch.Generator().manual_seed(3)
    logits = 5.0 * torch.randn(images, classes, generator=rng)
    return logits, logits + torch.randn(images, classes, generator=rng)


def recovered(answers: torch.Tensor, mode: LabelMode) -> torch.Tensor:
    """The logits behind answers, their bounds unmarked."""
    return recovered_logits(answers, unresolved(answers), mode)


def published_l1(scores: torch.Tensor, probabilities: torch.Tensor, floor: float) -> torch.Tensor:
    """The loss as published, zeros raised to a floor and taken at their word."""
    log_p = probabilities.clamp_min(floor).log()
    return (scores - (log_p - log_p.mean(dim=1, keepdim=True))).abs().mean(dim=1)


def gradient(distance, scores: torch.Tensor, *answers: object) -> torch.Tensor:
    """Of the summed distance in the scores, free of the constant per image that no loss here
    sees.
    """
    scores = scores.clone().requires_grad_()
    (grad,) = torch.autograd.grad(distance(scores, *answers).sum(), scores)
    return grad - grad.mean(dim=1, keepdim=True)


def test_recovered_logits_are_the_logits_up_to_a_constant_per_image():
    logits = torch.tensor([[1.0, -2.0, 4.0], [0.5, 0.25, -7.0]])
    expected = logits - logits.mean(dim=1, keepdim=True)
    torch.testing.assert_close(recovered(logits.softmax(dim=1), PROBABILITIES), expected)
    torch.testing.assert_close(make_distance("l1", LabelMode("logits")).target(logits), expected)


def test_by_hand():
    scores, answers = torch.tensor([[1.0, 0.0, -1.0]]), torch.tensor([[0.5, 0.25, 0.25]])
    log_p = [math.log(0.5), math.log(0.25), math.log(0.25)]
    l1 = (
        sum(abs(s - (p - sum(log_p) / 3)) for s, p in zip([1.0, 0.0, -1.0], log_p, strict=True)) / 3
    )
    assert make_distance("l1", PROBABILITIES)(scores, answers).item() == pytest.approx(l1, rel=1e-6)
    kl = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    assert make_distance("kl", PROBABILITIES)(
        torch.zeros(1, 2), torch.tensor([[0.75, 0.25]])
    ).item() == pytest.approx(kl, rel=1e-6)
    distances = make_distance("auto", LabelMode("label"))(
        torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1])
    )
    assert distances.tolist() == pytest.approx(
        [math.log(1 + math.exp(-2.0)), math.log(2.0)], rel=1e-6
    )


def test_a_zero_counts_as_half_a_rounding_step_in_logits_and_as_nothing_in_probabilities():
    answers = torch.tensor([[1.0, 0.0]])
    log_p, logits = log_probabilities(answers, FOUR_DECIMALS), recovered(answers, FOUR_DECIMALS)
    assert (logits[0, 0] - logits[0, 1]).item() == pytest.approx(-math.log(0.00005), rel=1e-6)
    assert log_p.exp()[0].tolist() == pytest.approx([1.0, 0.0], abs=1e-30)
    assert torch.isfinite(log_p).all()


def test_a_zero_of_no_declared_rounding_stands_for_no_more_than_the_least_answer_beside_it():
    logits = recovered(torch.tensor([[1.0, 0.0, 0.25], [1.0, 0.0, 1e-20]]), PROBABILITIES)
    assert (logits[0, 0] - logits[0, 1]).item() == pytest.approx(-math.log(1e-7), rel=1e-6)
    assert (logits[1, 0] - logits[1, 1]).item() == pytest.approx(-math.log(1e-20), rel=1e-6)


def test_l1_at_a_zero_is_one_sided_by_hand():
    answers, log_floor = torch.tensor([[0.75, 0.25, 0.0]]), math.log(0.005)
    mean = (math.log(0.75) + math.log(0.25) + log_floor) / 3
    rec = [math.log(0.75) - mean, math.log(0.25) - mean, log_floor - mean]
    below = torch.tensor([[rec[0] + 1.0, rec[1] - 0.5, rec[2] - 30.0]])
    above = torch.tensor([[rec[0], rec[1], rec[2] + 0.3]])
    distance = make_distance("l1", TWO_DECIMALS)
    assert distance(below, answers).item() == pytest.approx(1.5 / 3, abs=1e-4)
    assert distance(above, answers).item() == pytest.approx(0.3 / 3, abs=1e-4)


def test_the_true_logits_have_no_error_whatever_rounding_hid():
    true_p = torch.tensor(
        [[0.5, 0.5 - 1e-9, 1e-9, 1e-12], [0.25, 0.75, 1e-5, 3e-20]], dtype=torch.float64
    )
    answers = true_p.float().round(decimals=4)
    assert (answers == 0).tolist() == [[False, False, True, True]] * 2
    lost_by_recovery = true_p[:, :1].log() - recovered(answers, FOUR_DECIMALS)[:, :1]
    scores = (true_p.log() - lost_by_recovery).float()
    distance = make_distance("l1", FOUR_DECIMALS)
    assert distance(scores, answers).max().item() < 1e-6
    assert distance(scores - 3.0, answers).max().item() < 1e-5, (
        "a constant is no error where it is not known"
    )
    apart = scores + torch.tensor(
        [2.0, 0.0, 0.0, 0.0]
    )  # against the mean of the two resolved: 1 and -1
    assert distance(apart, answers).tolist() == pytest.approx([0.5, 0.5], abs=1e-5)


@pytest.mark.parametrize(
    ("mode", "floor"),
    [(PROBABILITIES, torch.finfo(torch.float32).tiny), (FOUR_DECIMALS, 5e-5)],
    ids=str,
)
def test_without_a_zero_l1_is_the_published_one_bit_for_bit_with_its_gradient(mode, floor):
    logits, scores = confident_teacher()
    p = logits.softmax(dim=1)
    answers = p if mode.decimals is None else p.round(decimals=mode.decimals).clamp_min(1e-4)
    distance = make_distance("l1", mode)
    assert torch.equal(distance(scores, answers), published_l1(scores, answers, floor))
    assert torch.equal(
        gradient(distance, scores, answers), gradient(published_l1, scores, answers, floor)
    )


@pytest.mark.parametrize("mode", ["probabilities:2", "top_k:3", "top_k:3:2"])
def test_a_stored_target_gives_the_same_distance(mode):
    logits, scores = confident_teacher(images=16)
    label_mode, p = LabelMode.parse(mode), logits.softmax(dim=1)
    answers = p if label_mode.decimals is None else p.round(decimals=label_mode.decimals)
    if label_mode.k is not None:
        answers = answers.masked_fill(p < p.topk(label_mode.k).values[:, -1:], math.nan)
    distance = make_distance("l1", label_mode)
    targets = distance.target(answers)
    assert (targets.shape, targets.dtype) == (answers.shape, torch.float32)
    assert targets.isfinite().all()
    direct = distance(scores, answers)
    assert torch.equal(distance.between(scores, targets), direct)
    if label_mode.decimals is not None:  # float32 keeps a mark's bound to four decimals
        in_double = distance(scores.double(), answers.double())
        torch.testing.assert_close(direct.double(), in_double, rtol=0, atol=1e-4)


def test_top_k_spreads_the_mass_that_was_not_revealed():
    nan = math.nan
    assert log_probabilities(torch.tensor([[0.6, nan, 0.2, nan]]), LabelMode("top_k", k=2)).exp()[
        0
    ].tolist() == pytest.approx([0.6, 0.1, 0.2, 0.1], rel=1e-5)


def test_top_k_l1_by_hand_an_unrevealed_class_is_at_most_its_share():
    nan = math.nan
    answers = torch.tensor([[0.6, nan, 0.2, nan]])
    log_p = [math.log(value) for value in (0.6, 0.1, 0.2, 0.1)]
    rec = [value - sum(log_p) / 4 for value in log_p]
    scores = torch.tensor([[rec[0] - 1.0, rec[1] + 0.5, rec[2], rec[3] - 9.0]])
    # The two revealed are off by -1 and 0, a shift of 0.5: errors -0.5 and 0.5, and 0.5 + 0.5 above
    # the first bound.
    assert make_distance("l1", LabelMode("top_k", k=2))(scores, answers).item() == pytest.approx(
        2 / 4, abs=1e-4
    )


def test_an_unrevealed_class_is_never_more_likely_than_the_least_revealed_one():
    nan, mode = math.nan, LabelMode("top_k", k=2, decimals=1)
    answers = torch.tensor(
        [[0.7, 0.1, nan], [0.9, 0.0, nan]]
    )  # the rest is .2 and .1, by rounding alone
    log_p, logits = log_probabilities(answers, mode), recovered(answers, mode)
    assert log_p.exp()[:, 2].tolist() == pytest.approx([0.1, 0.05], rel=1e-5)
    assert (logits[:, 2] <= logits[:, 1]).all()
    assert make_distance("l1", mode)(logits, answers).tolist() == pytest.approx(
        [0.0, 0.0], abs=1e-4
    )


@pytest.mark.parametrize("loss", ["l1", "kl"])
def test_a_loss_that_needs_more_than_the_mode_reveals_is_refused_with_alternatives(loss):
    with pytest.raises(UserError, match=r"use one of .*cross_entropy"):
        make_distance(loss, LabelMode("label"))
