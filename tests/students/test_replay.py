"""The replay holds what was paid for, exactly, and the newest of it when it is full; in memory as on disk."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dfme.errors import RunError
from dfme.run.checkpoint import _require_plain
from dfme.spec import ImageSpec
from dfme.students.replay import Replay

SPEC = ImageSpec((1, 2, 2))
SIZES = [[3], [4, 4], [7, 7, 7], [10], [25], [1] * 13, [6, 0, 9]]


def numbered(first: int, count: int) -> tuple[Tensor, Tensor]:
    numbers = torch.arange(first, first + count)
    return (numbers / 1000.0).view(-1, 1, 1, 1).expand(-1, 1, 2, 2).clone(), numbers


def held(replay: Replay) -> set[int]:
    images, answers = replay.sample(2_000)
    assert torch.equal((images[:, 0, 0, 0] * 1000).round().long(), answers), "an image lost its own answer"
    return set(answers.tolist())


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(params=["memory", "disk"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "replay" if request.param == "disk" else None


@pytest.mark.parametrize("sizes", SIZES)
def test_keeps_the_newest_with_their_own_answers(sizes: list[int], folder: Path | None) -> None:
    replay = Replay(10, SPEC, rng(), folder=folder)
    total = 0
    for size in sizes:
        replay.add(*numbered(total, size))
        total += size
    assert len(replay) == min(total, 10)
    assert held(replay) == set(range(max(0, total - 10), total))
    batches = list(replay.batches(4))
    assert all(len(images) == len(answers) == 4 for images, answers in batches[:-1])
    assert torch.cat([answers for _, answers in batches]).tolist() == list(range(max(0, total - 10), total))
    replay.close()


@pytest.mark.parametrize("sizes", SIZES)
def test_draws_are_those_of_a_ring_by_place(sizes: list[int], folder: Path | None) -> None:
    """The draws that earlier versions made: one ``randint`` over a ring that is written from its start."""
    replay, ring, added, total = Replay(10, SPEC, rng(5), folder=folder), [-1] * 10, 0, 0
    reference = rng(5)
    for size in sizes:
        images, numbers = numbered(total, size)
        replay.add(images, numbers)
        total += size
        for number in numbers.tolist()[-10:]:
            ring[added % 10] = number
            added += 1
        places = torch.randint(min(added, 10), (7,), generator=reference)
        assert replay.sample(7)[1].tolist() == [ring[place] for place in places.tolist()]
    replay.close()


@pytest.mark.parametrize("levels", [2, 17, 256])
def test_images_of_up_to_256_levels_come_back_bit_for_bit(levels: int, folder: Path | None) -> None:
    spec = ImageSpec((3, 4, 5), bounds=(-1.0, 1.0), levels=levels)
    images = spec.quantise(torch.rand(64, 3, 4, 5, generator=rng()) * 2 - 1)
    replay = Replay(64, spec, rng(), folder)
    replay.add(images, torch.arange(64))
    back, index = replay.sample(500)
    assert torch.equal(back, images[index])
    assert replay._coding.dtype == torch.uint8


def test_answers_of_every_form_come_back_as_they_were(folder: Path | None) -> None:
    answers = torch.randn(20, 4, generator=rng())
    answers[::3, 1:] = math.nan  # top_k does not reveal these
    replay = Replay(20, SPEC, rng(), folder)
    replay.add(numbered(0, 20)[0], answers)
    ((_, back),) = replay.batches(20)
    assert torch.equal(back.nan_to_num(9.0), answers.nan_to_num(9.0))
    assert back.dtype == torch.float32


def test_what_is_added_may_change_afterwards(folder: Path | None) -> None:
    replay = Replay(5, SPEC, rng(), folder=folder)
    images, answers = numbered(0, 5)
    replay.add(images, answers)
    images.zero_(), answers.zero_()
    assert held(replay) == set(range(5))
    replay.sample(5)[0].zero_()
    assert held(replay) == set(range(5))


def taken_up(first: Replay, second: Replay, states: tuple[torch.Generator, torch.Generator]) -> None:
    state = first.state_dict()
    _require_plain(state, "replay")
    kept = io.BytesIO()
    torch.save(state, kept)
    kept.seek(0)
    second.load_state_dict(torch.load(kept, weights_only=True))
    states[1].set_state(states[0].get_state())


@pytest.mark.parametrize("added", [0, 4, 10, 13])
def test_state_round_trips_into_the_same_draws(added: int, folder: Path | None) -> None:
    rngs = rng(), rng()
    first, second = (Replay(10, SPEC, each, folder) for each in rngs)
    if added:
        first.add(*numbered(0, added))
        first.sample(5)
    taken_up(first, second, rngs)
    assert len(first) == len(second)
    if folder is None or not added:  # two that write into one folder would not be one after the other
        first.add(*numbered(added, 4))
        again = first.sample(50)
        first.close()
        second.add(*numbered(added, 4))
    else:
        again = first.sample(50)
        first.close()
    assert all(torch.equal(one, other) for one, other in zip(again, second.sample(50), strict=True))


@pytest.mark.parametrize(
    "change",
    [
        {"capacity": 7},
        {"spec": ImageSpec((1, 3, 2))},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_state_of_another_replay_is_refused(change: dict[str, object], folder: Path | None) -> None:
    first = Replay(10, SPEC, rng(), folder=folder)
    first.add(*numbered(0, 13))
    options = {"capacity": 10, "spec": SPEC, "rng": rng(), "folder": folder, **change}
    with pytest.raises(
        (ValueError, RunError), match=r"of another|replay, images: expected torch\.float32 \(10, 1, 3, 2\)"
    ):
        Replay(**options).load_state_dict(first.state_dict())


def test_memory_and_disk_do_not_take_each_other_s_state(tmp_path: Path) -> None:
    stores = [Replay(10, SPEC, rng(), folder=each) for each in (None, tmp_path / "replay")]
    for each in stores:
        each.add(*numbered(0, 3))
    with pytest.raises(ValueError, match="expected items kept on disk, got items kept in memory"):
        stores[1].load_state_dict(stores[0].state_dict())
    with pytest.raises(ValueError, match="expected items kept in memory, got items kept on disk"):
        stores[0].load_state_dict(stores[1].state_dict())


@pytest.mark.parametrize("levels", [256, None])
def test_its_size_in_a_checkpoint_is_foretold(levels: int | None, folder: Path | None) -> None:
    spec = ImageSpec((3, 8, 8), levels=levels)
    replay = Replay(500, spec, rng(), folder)
    replay.add(torch.rand(600, 3, 8, 8), torch.rand(600, 10))
    file = io.BytesIO()
    torch.save(replay.state_dict(), file)
    assert replay.full_size(40) <= len(file.getvalue()) <= replay.full_size(40) + 4_000
    if folder is not None:
        on_disk = sum(path.stat().st_size for path in folder.glob("*.items"))
        assert on_disk <= replay.disk_size(40, 500) <= 3 * on_disk + 4_000
    else:
        assert replay.disk_size(40, 500) == 0
