"""Choosing what to pay for: usefulness by hand, balance on candidates whose order is known."""

import math

import pytest
import torch
from torch import Tensor

from dfme.queries import sampler as choice


def usefulness(scores_ENK: Tensor, by: choice.By) -> Tensor:
    return choice.usefulness(scores_ENK.softmax(2).mean(0), by, torch.Generator().manual_seed(0))


def choose(scores_ENK: Tensor, count: int, by: choice.By, *, balance: bool) -> Tensor:
    return choice.choose(scores_ENK, count, by, balance, torch.Generator().manual_seed(0))


def scores_of(*probabilities: list[float]) -> Tensor:
    """One student's scores with these probabilities, (1, N, K)."""
    return torch.tensor(probabilities).clamp_min(1e-30).log()[None]


def test_entropy_is_that_of_the_mean_probabilities():
    scores_ENK = torch.cat([scores_of([1.0, 0.0], [0.5, 0.5]), scores_of([0.0, 1.0], [0.5, 0.5])])
    assert torch.allclose(usefulness(scores_ENK, "entropy"), torch.full((2,), math.log(2)))
    one = usefulness(scores_of([0.9, 0.1]), "entropy").item()
    assert one == pytest.approx(-0.9 * math.log(0.9) - 0.1 * math.log(0.1), abs=1e-6)


def test_margin_is_between_the_two_likeliest_classes_of_the_vote():
    """By entropy the second image is less certain, by margin the first."""
    scores_ENK = scores_of([0.5, 0.49, 0.01], [0.5, 0.25, 0.25])
    assert torch.allclose(usefulness(scores_ENK, "margin"), torch.tensor([-0.01, -0.25]), atol=1e-6)
    assert choose(scores_ENK, 1, "margin", balance=False).tolist() == [0]
    assert choose(scores_ENK, 1, "entropy", balance=False).tolist() == [1]


def test_the_most_uncertain_are_chosen_in_the_order_they_came():
    scores_ENK = scores_of([0.99, 0.01], [0.5, 0.5], [0.8, 0.2], [0.6, 0.4])
    assert choose(scores_ENK, 2, "entropy", balance=False).tolist() == [1, 3]
    assert choose(scores_ENK, 3, "entropy", balance=False).tolist() == [1, 2, 3]
    assert choose(scores_ENK, 4, "entropy", balance=False).tolist() == [0, 1, 2, 3]


def test_balance_gives_every_class_its_turn_and_a_rare_one_all_it_has():
    """Class 0 has the six most uncertain candidates, class 1 two surer ones, class 2 one."""
    uncertain = [[0.4 + 0.01 * step, 0.3, 0.3 - 0.01 * step] for step in range(6)]
    scores_ENK = scores_of(*uncertain, [0.1, 0.8, 0.1], [0.1, 0.85, 0.05], [0.05, 0.05, 0.9])
    assert choose(scores_ENK, 3, "entropy", balance=True).tolist() == [0, 6, 8]
    assert choose(scores_ENK, 7, "entropy", balance=True).tolist() == [0, 1, 2, 3, 6, 7, 8]
    assert choose(scores_ENK, 3, "entropy", balance=False).tolist() == [0, 1, 2]


@pytest.mark.parametrize("balance", [False, True])
def test_equal_candidates_are_still_chosen_once_each(balance):
    assert len(set(choose(torch.zeros(2, 50, 4), 20, "entropy", balance=balance).tolist())) == 20


def test_without_a_measure_only_balance_chooses():
    """Nine of ten candidates are of one class; half of those chosen are."""
    scores_ENK = scores_of(*[[0.9, 0.1]] * 90, *[[0.1, 0.9]] * 10)
    chosen = choose(scores_ENK, 20, "random", balance=True).tolist()
    assert sum(index >= 90 for index in chosen) == 10
    assert chosen[:10] != list(range(10))
