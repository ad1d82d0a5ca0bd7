"""Hard-first replay: what the student gets wrong comes more often, what is new before all, nothing without end."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from dfme.spec import ImageSpec
from dfme.students.replay import Replay
from dfme.students.replay.hardness import Hardness

SPEC = ImageSpec((1, 1, 1))


def items(first: int, count: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(count, 1, 1, 1), torch.arange(first, first + count)


def hard_replay(capacity: int, added: int, seed: int = 0) -> Replay:
    replay = Replay(capacity, SPEC, torch.Generator().manual_seed(seed), order="hard")
    replay.add(*items(0, added))
    return replay


def test_new_items_count_as_infinitely_hard() -> None:
    replay = hard_replay(100, 90)
    replay.note(torch.arange(90), torch.linspace(1, 1e6, 90))
    replay.add(*items(90, 5))
    slots = replay.sample(1_000).slots_B
    assert (slots >= 90).sum() == pytest.approx(2_000 * 5 / 95, rel=0.3), "all that were drawn, and twice as many are"
    replay.note(torch.arange(90, 95), torch.zeros(5))
    assert (replay.sample(1_000).slots_B >= 90).sum() == 0, "known now, and the easiest"


def test_the_harder_half_of_what_is_drawn_is_taken() -> None:
    """Against the definition, written out: the same draws, sorted by the last loss."""
    replay = hard_replay(50, 50, seed=3)
    loss = torch.rand(50, generator=torch.Generator().manual_seed(1))
    replay.note(torch.arange(50), loss)
    drawn = torch.randint(50, (40,), generator=torch.Generator().manual_seed(3)).tolist()
    taken = sorted(drawn, key=lambda item: -float(loss[item]))[:20]
    assert replay.sample(20).slots_B.tolist() == taken


def test_no_item_comes_more_than_twice_as_often_as_its_share() -> None:
    replay = hard_replay(100, 100)
    replay.note(torch.arange(100), torch.tensor([1e9] + [1.0] * 99))
    taken = sum(int((replay.sample(50).slots_B == 0).sum()) for _ in range(400))
    assert taken == pytest.approx(2 * 400 * 50 / 100, rel=0.15)


def test_the_last_loss_counts_and_the_largest_of_one_batch() -> None:
    hardness = Hardness(4, torch.device("cpu"))
    hardness.note(torch.arange(4), torch.tensor([9.0, 8.0, 7.0, 6.0]), oldest=0)
    hardness.note(torch.tensor([1, 1, 3, 1]), torch.tensor([0.2, 0.4, 0.3, 0.1]), oldest=0)
    assert hardness.state(4).tolist() == pytest.approx([9.0, 0.4, 7.0, 0.3])


def test_a_loss_of_an_item_that_is_gone_is_dropped() -> None:
    hardness = Hardness(4, torch.device("cpu"))
    hardness.note(torch.arange(4), torch.ones(4), oldest=0)
    hardness.renew(4, 1)  # item 4 takes the place of item 0
    hardness.note(torch.tensor([0, 1]), torch.tensor([0.5, 0.5]), oldest=1)
    assert hardness.state(4).tolist() == [math.inf, 0.5, 1.0, 1.0]


@pytest.mark.parametrize(("first", "count"), [(0, 10), (7, 5), (10, 10), (13, 1), (29, 3)])
def test_new_items_take_the_places_of_the_ring(first: int, count: int) -> None:
    hardness = Hardness(10, torch.device("cpu"))
    hardness.load(torch.zeros(10))
    hardness.renew(first, count)
    new = {number % 10 for number in range(first, first + count)}
    assert hardness.state(10).tolist() == [math.inf if place in new else 0.0 for place in range(10)]


def test_a_uniform_replay_does_not_listen() -> None:
    draws = []
    for noted in (False, True):
        replay = Replay(10, SPEC, torch.Generator().manual_seed(0))
        replay.add(*items(0, 10))
        if noted:
            replay.note(torch.arange(10), torch.arange(10.0))
        draws.append(replay.sample(100).slots_B)
    assert torch.equal(*draws)


def test_what_is_hard_survives_a_checkpoint() -> None:
    replay = hard_replay(10, 4)
    replay.add(*items(4, 10))
    replay.note(torch.arange(4, 14), torch.arange(4.0, 14.0))
    other = Replay(10, SPEC, torch.Generator().manual_seed(0), order="hard")
    other.load_state_dict(replay.state_dict())
    assert int(other.sample(30).slots_B.min()) > 7, "sixty draws of ten items, of which the harder half is taken"
