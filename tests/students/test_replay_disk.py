"""A replay on disk: the draws of one in memory, exact over kills and resumptions."""

import os
import resource
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dfme.errors import RunError
from dfme.spec import ImageSpec
from dfme.students.replay import Replay

SPEC = ImageSpec((1, 3, 5), levels=256)
ITEM = 15 + 4 * 4 + 4
ROWS = 26
"""Rows of a file for the last 20 items."""


def paid(first: int, count: int) -> tuple[Tensor, Tensor]:
    """Items whose every value follows from their number."""
    numbers = torch.arange(first, first + count)
    images = ((numbers[:, None] * 7 + torch.arange(15)) % 256 / 255.0).view(-1, 1, 3, 5)
    return SPEC.quantise(images), numbers[:, None] + torch.tensor([0.25, 0.5, 0.75, torch.nan])


def on_disk(folder: Path, capacity: int = 20, seed: int = 0) -> Replay:
    return Replay(capacity, SPEC, torch.Generator().manual_seed(seed), folder=folder)


def everything(replay: Replay) -> list[float]:
    return [float(answers[0]) - 0.25 for _, batch in replay.batches(3) for answers in batch]


def test_items_lie_in_rows_by_number(tmp_path: Path) -> None:
    """A file read with nothing of ours: the image's bytes, the answer's, a checksum."""
    disk = on_disk(tmp_path)
    disk.add(*paid(0, 16))
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
    rows = (tmp_path / "items.bin").stat().st_size // ITEM
    assert rows <= 20 + 30 + 10, "a window of 20, and the items between three checkpoints"
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
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6 * ITEM, hard))
    try:
        with pytest.raises(RunError, match=r"cannot write .*items.bin: File too large"):
            disk.add(*paid(5, 5))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert everything(disk) == list(range(5))
    disk.add(*paid(5, 5))
    assert everything(disk) == list(range(10))
