"""The traffic that `research.traffic` makes: who asks what, and how its looks are counted."""

import pytest
import torch
from watched import benign, drawn

from dfme.teachers.owner.watch.detector import Observation
from dfme.teachers.owner.watch.traffic import MmdDetector
from research.traffic import Looks, OfFeatures, in_turn, mixed


def numbered(first: int, count: int) -> Observation:
    """Images of which each knows its number."""
    number_N = torch.arange(first, first + count).double()
    return Observation(number_N.float().view(-1, 1, 1, 1), torch.stack([number_N, -number_N], 1))


def test_accounts_ask_in_bursts_each_image_once_and_in_their_order() -> None:
    accounts = [numbered(1_000 * account, 60) for account in range(5)]
    traffic = in_turn(accounts, torch.Generator().manual_seed(0))
    number_N = traffic.p_BK[:, 0].long()
    assert torch.equal(traffic.images_BCHW.flatten().long(), number_N)
    whose_N = number_N // 1_000
    for account in range(5):
        assert number_N[whose_N == account].tolist() == [
            *range(1_000 * account, 1_000 * account + 60)
        ]
    bursts = whose_N.view(-1, 10)
    assert torch.equal(bursts, bursts[:, :1].expand(-1, 10))
    assert bursts[:, 0].diff().count_nonzero() > 15


def test_each_image_of_mixed_traffic_is_the_attacks_with_the_probability_said() -> None:
    rng = torch.Generator().manual_seed(0)
    traffic = mixed(numbered(0, 100), numbered(1_000, 5_000), 0.25, 4_000, rng)
    number_N = traffic.p_BK[:, 0].long()
    attacks_N = number_N < 1_000
    assert float(attacks_N.float().mean()) == pytest.approx(0.25, abs=0.02)
    asked = number_N[attacks_N].tolist()
    assert asked == [place % 100 for place in range(len(asked))]
    assert number_N[~attacks_N].tolist() == [*range(1_000, 1_000 + 4_000 - len(asked))]


def test_looks_are_those_at_multiples_and_of_attacks_at_full_windows() -> None:
    every = Looks()
    full = Looks()
    for looks, only in ((every, False), (full, True)):
        looks.take(MmdDetector(benign()), drawn("text"), only)
    assert (every.count, full.count) == (1_500 // 128, 1 + (1_500 - 512) // 128)
    assert 0 < full.above <= every.above <= every.count


def test_features_behind_the_scores_are_what_the_kernel_sees() -> None:
    detector = OfFeatures(benign())
    p_NK = torch.tensor([[0.2, 0.8, *[0.0] * 8, 5.0, 7.0]])
    assert detector.tops(p_NK).tolist() == [1]
    assert detector.place(p_NK).tolist() == [[5, 7]]
