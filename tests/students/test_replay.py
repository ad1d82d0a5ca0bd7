"""The replay holds what was paid for, exactly, and the newest of it when it is full; on disk it is exact
over kills and resumptions.
"""

import io
import json
import math
import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from damage import file_size_limit
from torch import Tensor

from dfme.errors import RunError
from dfme.run.job import PROJECT as ROOT
from dfme.spec import ImageSpec
from dfme.students.replay import Replay

SPEC = ImageSpec((1, 2, 2))


def numbered(first: int, count: int) -> tuple[Tensor, Tensor]:
    numbers = torch.arange(first, first + count)
    return (numbers / 1000.0).view(-1, 1, 1, 1).expand(-1, 1, 2, 2).clone(), numbers


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(params=["memory", "disk"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "replay" if request.param == "disk" else None


@pytest.mark.parametrize("sizes", [[3], [4, 4], [7, 7, 7], [10], [25], [1] * 13, [6, 0, 9]])
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
    replay = Replay(500, ImageSpec((3, 8, 8), levels=levels), rng(), folder)
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
    for number in range(capacity):
        replay.add(spec.quantise(torch.rand(2, 1, 2, 2)), torch.rand(2, 4))
        replay.state_dict()
        if folder is not None:
            assert (folder / "items.bin").stat().st_size <= replay.size(16), number
    assert replay.size(16) == (24 * (capacity + capacity // 4 + 1) if folder else 20 * capacity)


# On disk

BYTES = ImageSpec((1, 3, 5), levels=256)
ITEM = 15 + 4 * 4 + 4
ROWS = 26
"""Rows of a file for the last 20 items."""


def paid(first: int, count: int) -> tuple[Tensor, Tensor]:
    """Items whose every value follows from their number."""
    numbers = torch.arange(first, first + count)
    return BYTES.quantise(
        ((numbers[:, None] * 7 + torch.arange(15)) % 256 / 255.0).view(-1, 1, 3, 5)
    ), numbers[:, None] + torch.tensor([0.25, 0.5, 0.75, torch.nan])


def on_disk(folder: Path, capacity: int = 20, seed: int = 0) -> Replay:
    return Replay(capacity, BYTES, torch.Generator().manual_seed(seed), folder=folder)


def everything(replay: Replay) -> list[float]:
    return [float(answers[0]) - 0.25 for _, batch in replay.batches(3) for answers in batch]


def test_items_lie_in_rows_by_number(tmp_path: Path) -> None:
    """A file read with nothing of ours: the image's bytes, the answer's, a checksum."""
    on_disk(tmp_path).add(*paid(0, 16))
    content = (tmp_path / "items.bin").read_bytes()
    assert len(content) == ROWS * ITEM
    item = content[9 * ITEM : 10 * ITEM]
    image, answer, checksum = item[:15], item[15:31], item[31:]
    assert list(image) == [(9 * 7 + pixel) % 256 for pixel in range(15)]
    assert torch.frombuffer(bytearray(answer), dtype=torch.float32)[:3].tolist() == [
        9.25,
        9.5,
        9.75,
    ]
    assert int.from_bytes(checksum, "little") == zlib.crc32(image + answer, 9)


@pytest.mark.parametrize("capacity", [100, 20])
def test_a_resumed_run_draws_as_if_never_stopped(capacity: int, tmp_path: Path) -> None:
    """Stopped after a checkpoint with items beyond it, and resumed from that checkpoint."""
    whole, cut = on_disk(tmp_path / "whole", capacity), on_disk(tmp_path / "cut", capacity)
    for first in range(0, 60, 4):
        whole.add(*paid(first, 4))
    for first in range(0, 48, 4):
        cut.add(*paid(first, 4))
        if first == 8:
            state = cut.state_dict()
    before = (tmp_path / "cut/items.bin").read_bytes()
    resumed = on_disk(tmp_path / "cut", capacity)
    resumed.load_state_dict(state)
    assert (tmp_path / "cut/items.bin").read_bytes() == before, "loading changes nothing"
    assert everything(resumed) == list(range(12))
    for first in range(12, 60, 4):
        resumed.add(*paid(first, 4))
    assert everything(resumed) == everything(whole) == list(range(max(0, 60 - capacity), 60))


def test_a_run_that_starts_again_begins_empty(tmp_path: Path) -> None:
    """One killed before its first checkpoint leaves a file behind."""
    on_disk(tmp_path).add(*paid(0, 20))
    again = on_disk(tmp_path)
    again.add(*paid(100, 3))
    assert everything(again) == [100, 101, 102]
    again.close()
    again.close()


def test_both_kept_checkpoints_find_their_items(tmp_path: Path) -> None:
    disk, kept = on_disk(tmp_path), []
    for first in range(0, 200, 5):
        disk.add(*paid(first, 5))
        if first % 3 == 0:
            kept = [*kept[-1:], (disk.state_dict(), everything(disk))]
            if first % 2:  # a resumed run serves the checkpoint before, too
                disk = on_disk(tmp_path)
                disk.load_state_dict(kept[-1][0])
        for state, items in kept:
            other = on_disk(tmp_path)
            other.load_state_dict(state)
            assert everything(other) == items
            other.close()
    assert ((tmp_path / "items.bin").stat().st_size // ITEM) <= 20 + 30 + 10, (
        "a window of 20, and the items between three checkpoints"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["items.bin"]


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "gone": (lambda file: file.unlink(), "items.bin: cannot read .*No such file"),
    "short": (
        lambda file: os.truncate(file, 5),
        "items.bin: expected at least 16 .*, got 5 bytes; restore",
    ),
    "torn": (
        lambda file: os.truncate(file, 20 * ITEM + 1),
        "items.bin: expected at least 16 kept answers",
    ),
    "a pipe": (
        lambda file: (file.unlink(), os.mkfifo(file)),
        "items.bin: cannot read .*no regular file",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_explained_in_one_line(damage: str, tmp_path: Path) -> None:
    disk = on_disk(tmp_path)
    disk.add(*paid(0, 16))
    state = disk.state_dict()
    do, message = DAMAGES[damage]
    do(tmp_path / "items.bin")
    with pytest.raises(RunError, match=message) as caught:
        on_disk(tmp_path).load_state_dict(state)
    assert "\n" not in str(caught.value)
    assert "start a new run in another --out" in str(caught.value)


@pytest.mark.parametrize("place", [0, 14, 15, 30, 31, 34])
def test_a_flipped_bit_is_found_wherever_it_is(place: int, tmp_path: Path) -> None:
    """In an image, an answer or the checksum itself."""
    disk, path = on_disk(tmp_path), tmp_path / "items.bin"
    disk.add(*paid(0, 16))
    content = bytearray(path.read_bytes())
    content[10 * ITEM + place] ^= 0x10
    path.write_bytes(content)
    with pytest.raises(
        RunError, match=r"items\.bin, item 10: is cut short, or not as it was written; restore"
    ):
        everything(disk)


def test_an_item_in_the_place_of_another_and_a_file_cut_short_are_found(tmp_path: Path) -> None:
    disk, path = on_disk(tmp_path), tmp_path / "items.bin"
    disk.add(*paid(0, 16))
    content = path.read_bytes()
    path.write_bytes(content[ITEM : 8 * ITEM] + content[7 * ITEM :])
    with pytest.raises(RunError, match=r"items\.bin, item 0: "):
        everything(disk)
    path.write_bytes(content)
    os.truncate(path, 5)
    with pytest.raises(RunError, match=r"items\.bin, item \d+: is cut short"):
        disk.sample(100)


def test_a_full_disk_is_explained_and_the_batch_can_come_again(tmp_path: Path) -> None:
    disk = on_disk(tmp_path)
    disk.add(*paid(0, 5))
    with (
        file_size_limit(6 * ITEM),
        pytest.raises(RunError, match=r"cannot write .*items.bin: File too large"),
    ):
        disk.add(*paid(5, 5))
    assert everything(disk) == list(range(5))
    disk.add(*paid(5, 5))
    assert everything(disk) == list(range(10))


# It takes disk and hardly any memory: metered by the system, in a process of its own

FILL = """
import json, sys
from pathlib import Path

import torch

from dfme.students.replay import Replay
from dfme.spec import ImageSpec


def status(entry):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(entry)) * 1024


folder, items = Path(sys.argv[1]), int(sys.argv[2])
spec = ImageSpec((3, 32, 32), levels=256)
replay = Replay(items, spec, torch.Generator().manual_seed(0), folder=folder)
images, answers = torch.rand(250, 3, 32, 32), torch.rand(250, 10)
before = status("VmRSS:")
for _ in range(items // 250):
    replay.add(images, answers)
replay.state_dict()
for _ in range(50):
    replay.sample(256)
print(json.dumps({"held": len(replay), "memory": status("VmHWM:") - before}))
"""


def fill(folder: Path, items: int) -> tuple[dict[str, float], int]:
    """What the process says, and the bytes that the folder really takes on the disk."""
    filled = subprocess.run(
        [sys.executable, "-c", FILL, str(folder), str(items)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=110,
    )
    assert filled.returncode == 0, filled.stderr[-2_000:]
    return json.loads(filled.stdout), sum(path.stat().st_blocks * 512 for path in folder.iterdir())


@pytest.mark.integration
def test_images_take_their_disk_and_not_their_memory(tmp_path: Path) -> None:
    process, disk = fill(tmp_path / "replay", 40_000)
    assert process["held"] == 40_000
    assert disk == pytest.approx(40_000 * (3 * 32 * 32 + 4 * 10), rel=0.01)
    assert process["memory"] < 0.3 * disk
