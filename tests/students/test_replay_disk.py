"""A replay on disk: the draws of one in memory, exact over kills and resumptions, and explained when it is damaged."""

from __future__ import annotations

import os
import resource
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import dfme.students.replay.disk
import dfme.students.replay.layout
from dfme.errors import RunError
from dfme.spec import ImageSpec
from dfme.students.replay import Replay

SPEC = ImageSpec((1, 3, 5), levels=256)
ITEM = 15 + 4 * 4 + 4
PER_SEGMENT = 7


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dfme.students.replay.layout, "SEGMENT_BYTES", PER_SEGMENT * ITEM + 3)


def paid(first: int, count: int) -> tuple[Tensor, Tensor]:
    """Items whose every value follows from their number."""
    numbers = torch.arange(first, first + count)
    images = ((numbers[:, None] * 7 + torch.arange(15)) % 256 / 255.0).view(-1, 1, 3, 5)
    return SPEC.quantise(images), numbers[:, None] + torch.tensor([0.25, 0.5, 0.75, torch.nan])


def on_disk(folder: Path, capacity: int = 20, seed: int = 0) -> Replay:
    return Replay(capacity, SPEC, torch.Generator().manual_seed(seed), folder=folder)


def everything(replay: Replay) -> list[float]:
    return [float(answers[0]) - 0.25 for _, batch in replay.batches(3) for answers in batch]


def files(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in sorted(folder.glob("*.items"))}


def test_it_draws_bit_for_bit_what_memory_draws(tmp_path: Path) -> None:
    disk, memory = on_disk(tmp_path), Replay(20, SPEC, torch.Generator().manual_seed(0))
    for first in range(0, 66, 6):
        for each in (disk, memory):
            each.add(*paid(first, 6))
        ours, theirs = disk.sample(9), memory.sample(9)
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(ours[1].nan_to_num(-1.0), theirs[1].nan_to_num(-1.0))
    assert ours[0].is_contiguous()


def test_items_lie_one_after_the_other(tmp_path: Path) -> None:
    """A file read with nothing of ours: the image's bytes, the answer's, and a checksum that starts at the number."""
    disk = on_disk(tmp_path)
    disk.add(*paid(0, 16))
    assert files(tmp_path) == {"000000.items": 7 * ITEM, "000001.items": 7 * ITEM, "000002.items": 2 * ITEM}
    content = (tmp_path / "000001.items").read_bytes()
    item = content[2 * ITEM : 3 * ITEM]
    image, answer, checksum = item[:15], item[15:31], item[31:]
    assert list(image) == [(9 * 7 + pixel) % 256 for pixel in range(15)]
    assert torch.frombuffer(bytearray(answer), dtype=torch.float32)[:3].tolist() == [9.25, 9.5, 9.75]
    assert int.from_bytes(checksum, "little") == zlib.crc32(image + answer, 9)


def test_a_resumed_run_writes_the_same_files(tmp_path: Path) -> None:
    """Stopped after a checkpoint with items beyond it, and gone on with from that checkpoint."""
    whole, cut = on_disk(tmp_path / "whole", 100), on_disk(tmp_path / "cut", 100)
    for first in range(0, 40, 4):
        whole.add(*paid(first, 4))
    for first in range(0, 28, 4):
        cut.add(*paid(first, 4))
        if first == 8:
            state = cut.state_dict()
    resumed = on_disk(tmp_path / "cut", 100)
    resumed.load_state_dict(state)
    assert sum(files(tmp_path / "cut").values()) == 28 * ITEM, "loading changes nothing"
    resumed.add(*paid(12, 4))
    assert sum(files(tmp_path / "cut").values()) == 16 * ITEM, "what came after the checkpoint is cut"
    for first in range(16, 40, 4):
        resumed.add(*paid(first, 4))
    contents = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("whole", "cut")]
    assert contents[0] == contents[1]


def test_a_run_that_starts_again_begins_empty(tmp_path: Path) -> None:
    """One killed before its first checkpoint leaves files behind."""
    on_disk(tmp_path).add(*paid(0, 20))
    again = on_disk(tmp_path)
    again.add(*paid(100, 3))
    assert everything(again) == [100, 101, 102]
    assert files(tmp_path) == {"000000.items": 3 * ITEM}


def test_both_kept_checkpoints_find_their_items_and_older_files_go(tmp_path: Path) -> None:
    disk, kept = on_disk(tmp_path), []
    for first in range(0, 200, 5):
        disk.add(*paid(first, 5))
        if first % 3 == 0:
            kept = [*kept[-1:], (disk.state_dict(), everything(disk))]
        for state, items in kept:
            other = on_disk(tmp_path)
            other.load_state_dict(state)
            assert everything(other) == items
            other.close()
    assert len(files(tmp_path)) < 60 / PER_SEGMENT + 3, "a window of 20, and that of 30 items before"


def test_states_that_are_not_saved_in_between_drop_nothing_more(tmp_path: Path) -> None:
    disk = on_disk(tmp_path)
    disk.add(*paid(0, 20))
    older = disk.state_dict()
    disk.add(*paid(20, 20))
    states = [disk.state_dict() for _ in range(4)]
    assert states[0] == states[3]
    other = on_disk(tmp_path)
    other.load_state_dict(older)
    assert everything(other) == list(range(20))


def test_after_a_resumption_the_checkpoint_before_is_still_served(tmp_path: Path) -> None:
    disk = on_disk(tmp_path)
    disk.add(*paid(0, 30))
    disk.state_dict()
    disk.add(*paid(30, 30))
    before = disk.state_dict(), everything(disk)
    disk.add(*paid(60, 30))
    last = disk.state_dict()
    resumed = on_disk(tmp_path)
    resumed.load_state_dict(last)
    resumed.add(*paid(90, 30))
    resumed.state_dict()
    for state, items in (before, (last, list(range(70, 90)))):
        other = on_disk(tmp_path)
        other.load_state_dict(state)
        assert everything(other) == items


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a segment gone": (lambda folder: (folder / "000001.items").unlink(), r"000001.items: cannot read .*No such file"),
    "a segment short": (
        lambda folder: os.truncate(folder / "000001.items", 5),
        rf"000001.items: expected at least {7 * ITEM} bytes of kept answers, got 5; restore",
    ),
    "the last short": (lambda folder: os.truncate(folder / "000002.items", ITEM), "000002.items: expected at least"),
    "a pipe": (
        lambda folder: ((folder / "000001.items").unlink(), os.mkfifo(folder / "000001.items")),
        "000001.items: cannot read .*no regular file",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_explained_in_one_line(damage: str, tmp_path: Path) -> None:
    disk = on_disk(tmp_path)
    disk.add(*paid(0, 16))
    state = disk.state_dict()
    do, message = DAMAGES[damage]
    do(tmp_path)
    with pytest.raises(RunError, match=message) as caught:
        on_disk(tmp_path).load_state_dict(state)
    assert "\n" not in str(caught.value)
    assert "start a new run in another --out" in str(caught.value)


def test_a_file_cut_short_in_use_is_an_error_and_no_crash(tmp_path: Path) -> None:
    disk = on_disk(tmp_path)
    disk.add(*paid(0, 16))
    os.truncate(tmp_path / "000001.items", 5)
    with pytest.raises(RunError, match=r"000001\.items, item \d+: is cut short, or not as it was written; restore"):
        disk.sample(100)


@pytest.mark.parametrize("place", [0, 14, 15, 30, 31, 34])
def test_a_flipped_bit_is_found_wherever_it_is(place: int, tmp_path: Path) -> None:
    """In an image, an answer or the checksum itself, and named by file and item before anything is learnt from it."""
    disk, path = on_disk(tmp_path), tmp_path / "000001.items"
    disk.add(*paid(0, 16))
    content = bytearray(path.read_bytes())
    content[3 * ITEM + place] ^= 0x10
    path.write_bytes(content)
    with pytest.raises(
        RunError, match=r"000001\.items, item 10: is cut short, or not as it was written; restore"
    ) as caught:
        everything(disk)
    assert "\n" not in str(caught.value)


def test_an_item_in_the_place_of_another_is_found(tmp_path: Path) -> None:
    """A file that was restored under another's name holds whole items, of other numbers."""
    disk = on_disk(tmp_path)
    disk.add(*paid(0, 16))
    (tmp_path / "000001.items").write_bytes((tmp_path / "000000.items").read_bytes())
    with pytest.raises(RunError, match=r"000001\.items, item 7: "):
        everything(disk)


def test_items_of_an_earlier_version_are_refused_in_words(tmp_path: Path) -> None:
    disk = on_disk(tmp_path)
    disk.add(*paid(0, 16))
    state = disk.state_dict()
    state["items"]["layout"] = state["items"]["layout"][:4]
    with pytest.raises(ValueError, match="expected items with checksums, got those of an earlier version"):
        on_disk(tmp_path).load_state_dict(state)


@pytest.mark.parametrize(
    "layout", [[[3, 5, 1], "|u1", [4], "<f4"], [[1, 3, 5], "<f4", [4], "<f4"], [[1, 3, 5], "|u1", [], "|O"]]
)
def test_the_state_of_other_items_is_refused(layout: list[object], tmp_path: Path) -> None:
    disk = on_disk(tmp_path)
    disk.add(*paid(0, 16))
    state = disk.state_dict()
    assert state["items"]["layout"] == [[1, 3, 5], "|u1", [4], "<f4", "crc32"]
    state["items"]["layout"] = [*layout, "crc32"]
    with pytest.raises(ValueError, match="of another replay"):
        on_disk(tmp_path).load_state_dict(state)


@pytest.mark.parametrize("name", ["", "000000.items"])
def test_nothing_is_written_through_a_link(name: str, tmp_path: Path) -> None:
    precious, folder = tmp_path / "precious", tmp_path / "replay"
    precious.mkdir()
    (precious / "file").write_text("secret")
    if name:
        folder.mkdir()
        (folder / name).symlink_to(precious / "file")
    else:
        folder.symlink_to(precious)
    replay = on_disk(folder)
    with pytest.raises(RunError, match="is a link"):
        replay.add(*paid(0, 3))
    assert {path.name: path.read_text() for path in precious.iterdir()} == {"file": "secret"}


def test_a_folder_that_became_a_link_is_read_and_not_written(tmp_path: Path) -> None:
    disk = on_disk(tmp_path / "replay")
    disk.add(*paid(0, 3))
    state = disk.state_dict()
    (tmp_path / "replay").rename(tmp_path / "elsewhere")
    (tmp_path / "replay").symlink_to(tmp_path / "elsewhere")
    again = on_disk(tmp_path / "replay")
    again.load_state_dict(state)
    assert everything(again) == [0, 1, 2]
    with pytest.raises(RunError, match="is a link"):
        again.add(*paid(3, 1))


def test_a_full_disk_is_explained_and_the_batch_can_come_again(tmp_path: Path) -> None:
    disk = on_disk(tmp_path)
    disk.add(*paid(0, 5))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6 * ITEM, hard))
    try:
        with pytest.raises(RunError, match=r"cannot write .*000000.items: File too large"):
            disk.add(*paid(5, 5))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert everything(disk) == list(range(5))
    disk.add(*paid(5, 5))
    assert everything(disk) == list(range(10))


def test_few_files_are_open_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dfme.students.replay.disk, "MAX_OPEN", 3)

    def opened() -> int:
        """Of this test alone: others' files may be closed meanwhile."""
        found = [f"/proc/self/fd/{each}" for each in os.listdir("/proc/self/fd")]
        return sum(os.readlink(each).startswith(str(tmp_path)) for each in found if os.path.lexists(each))

    disk = on_disk(tmp_path, 200)
    disk.add(*paid(0, 100))
    assert everything(disk) == list(range(100))
    assert 0 < opened() <= 4, "one to write, three to read"
    disk.close()
    disk.close()
    assert opened() == 0
