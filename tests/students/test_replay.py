"""The replay holds what was paid for, exactly, and the newest of it when it is full; in memory as
on disk.
"""

import io
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dfme.spec import ImageSpec
from dfme.students.replay import Replay

SPEC = ImageSpec((1, 2, 2))
SIZES = [[3], [4, 4], [7, 7, 7], [10], [25], [1] * 13, [6, 0, 9]]


def numbered(first: int, count: int) -> tuple[Tensor, Tensor]:
    numbers = torch.arange(first, first + count)
    return (numbers / 1000.0).view(-1, 1, 1, 1).expand(-1, 1, 2, 2).clone(), numbers


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(params=["memory", "disk"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "replay" if request.param == "disk" else None


@pytest.mark.parametrize("sizes", SIZES)
def test_keeps_the_newest_and_draws_them_as_a_ring_by_place(
    sizes: list[int], folder: Path | None
) -> None:
    """One ``randint`` over a ring that is written from its start."""
    replay, ring, added, total = Replay(10, SPEC, rng(5), folder=folder), [-1] * 10, 0, 0
    reference = rng(5)
    for size in sizes:
        replay.add(*numbered(total, size))
        for number in range(total, total + size)[-10:]:
            ring[added % 10] = number
            added += 1
        total += size
        places = torch.randint(min(added, 10), (7,), generator=reference)
        images, answers = replay.sample(7)
        assert answers.tolist() == [ring[place] for place in places.tolist()]
        assert torch.equal((images[:, 0, 0, 0] * 1000).round().long(), answers), (
            "an image lost its own answer"
        )
    assert len(replay) == min(total, 10)
    batches = list(replay.batches(4))
    assert all(len(images) == len(answers) == 4 for images, answers in batches[:-1])
    assert torch.cat([answers for _, answers in batches]).tolist() == list(
        range(max(0, total - 10), total)
    )
    replay.close()


@pytest.mark.parametrize("levels", [2, 17, 256])
def test_images_and_answers_of_every_form_come_back_bit_for_bit(
    levels: int, folder: Path | None
) -> None:
    spec = ImageSpec((3, 4, 5), bounds=(-1.0, 1.0), levels=levels)
    images = spec.quantise(torch.rand(64, 3, 4, 5, generator=rng()) * 2 - 1)
    answers = torch.randn(64, 4, generator=rng())
    answers[::3, 1:] = math.nan  # top_k does not reveal these
    answers[:, 0] = torch.arange(64)
    replay = Replay(64, spec, rng(), folder)
    replay.add(images, answers)
    drawn, told = replay.sample(500)
    index = told[:, 0].long()
    assert torch.equal(drawn, images[index])
    assert torch.equal(told.nan_to_num(9.0), answers[index].nan_to_num(9.0))
    assert replay._coding.dtype == torch.uint8


def test_what_is_added_may_change_afterwards(folder: Path | None) -> None:
    replay = Replay(5, SPEC, rng(), folder=folder)
    images, answers = numbered(0, 5)
    replay.add(images, answers)
    images.zero_(), answers.zero_()
    replay.sample(5)[0].zero_()
    ((images, answers),) = replay.batches(5)
    assert torch.equal(images[:, 0, 0, 0] * 1000, answers)
    assert answers.tolist() == list(range(5))


@pytest.mark.parametrize("added", [0, 4, 10, 13])
def test_state_round_trips_into_the_same_draws(added: int, folder: Path | None) -> None:
    rngs = rng(), rng()
    first, second = (Replay(10, SPEC, each, folder) for each in rngs)
    if added:
        first.add(*numbered(0, added))
        first.sample(5)
    state, kept = first.state_dict(), io.BytesIO()
    torch.save(state, kept)
    kept.seek(0)
    second.load_state_dict(torch.load(kept, weights_only=True))
    rngs[1].set_state(rngs[0].get_state())
    assert len(first) == len(second)
    for replay in (first, second):
        if (
            folder is None or not added
        ):  # two that write into one folder would not be one after the other
            replay.add(*numbered(added, 4))
    again = first.sample(50)
    first.close()
    assert all(torch.equal(one, other) for one, other in zip(again, second.sample(50), strict=True))


@pytest.mark.parametrize("levels", [256, None])
@pytest.mark.parametrize("ever", [500, 600])
def test_its_size_is_planned(levels: int | None, ever: int, folder: Path | None) -> None:
    spec = ImageSpec((3, 8, 8), levels=levels)
    replay = Replay(500, spec, rng(), folder)
    for _ in range(3):
        replay.state_dict()
        replay.add(torch.rand(ever // 3, 3, 8, 8), torch.rand(ever // 3, 10))
    file = io.BytesIO()
    torch.save(replay.state_dict(), file)
    if folder is None:
        assert replay.size(40) * 0.99 <= len(file.getvalue()) <= replay.size(40) + 4_000
    else:
        assert len(file.getvalue()) <= 4_000
        assert (folder / "items.bin").stat().st_size == replay.size(40)


@pytest.mark.parametrize("capacity", [28, 65, 165])
def test_the_planned_size_is_an_upper_bound(capacity: int, folder: Path | None) -> None:
    """Of what is held at the fullest, with checkpoints at every batch."""
    spec = ImageSpec((1, 2, 2), levels=256)
    replay = Replay(capacity, spec, rng(), folder)
    for number in range(300):
        replay.add(spec.quantise(torch.rand(2, 1, 2, 2)), torch.rand(2, 4))
        replay.state_dict()
        if folder is not None:
            assert (folder / "items.bin").stat().st_size <= replay.size(16), number
    assert replay.size(16) == (24 * (capacity + capacity // 4 + 1) if folder else 20 * capacity)
