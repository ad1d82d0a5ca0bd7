"""The replay holds what was paid for, exactly, and the newest of it when it is full."""

import pytest
import torch

from dfme.replay import Replay
from dfme.spec import ImageSpec

SPEC = ImageSpec((1, 2, 2))


def numbered(first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    numbers = torch.arange(first, first + count)
    return (numbers / 1000.0).view(-1, 1, 1, 1).expand(-1, 1, 2, 2).clone(), numbers


def held(replay: Replay) -> set[int]:
    images, answers = replay.sample(2_000)
    assert torch.equal((images[:, 0, 0, 0] * 1000).round().long(), answers), "an image lost its own answer"
    return set(answers.tolist())


@pytest.mark.parametrize("sizes", [[3], [4, 4], [7, 7, 7], [10], [25], [1] * 13, [6, 0, 9]])
def test_keeps_the_newest_with_their_own_answers(sizes):
    replay = Replay(10, SPEC, torch.Generator().manual_seed(0))
    total = 0
    for size in sizes:
        replay.add(*numbered(total, size))
        total += size
    assert len(replay) == min(total, 10)
    assert held(replay) == set(range(max(0, total - 10), total))


def test_eight_bit_images_come_back_bit_for_bit():
    spec = ImageSpec((3, 4, 4), bounds=(-1.0, 1.0), levels=256)
    images = spec.quantise(torch.rand(64, 3, 4, 4) * 2 - 1)
    replay = Replay(64, spec, torch.Generator().manual_seed(0))
    replay.add(images, torch.arange(64))
    back, index = replay.sample(500)
    assert torch.equal(back, images[index])
    assert replay.state_dict()["images"].dtype == torch.uint8


def test_state_round_trips_into_the_same_draws():
    first = Replay(10, SPEC, torch.Generator().manual_seed(0))
    first.add(*numbered(0, 13))
    second_rng = torch.Generator()
    second = Replay(10, SPEC, second_rng)
    second.load_state_dict(first.state_dict())
    second_rng.set_state(torch.Generator().manual_seed(0).get_state())
    assert torch.equal(first.sample(50)[1], second.sample(50)[1])
    first.add(*numbered(13, 4))
    second.add(*numbered(13, 4))
    assert held(first) == held(second) == set(range(7, 17))
