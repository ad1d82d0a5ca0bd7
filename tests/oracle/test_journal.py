"""The journal: what was appended comes back bitwise, torn ends are cut, damage is found."""

from pathlib import Path

import pytest
import torch
from damage import file_size_limit
from hypothesis import given, settings
from hypothesis import strategies as st

from dfme.errors import RunError
from dfme.oracle.journal import HEAD_BYTES, Journal, Record, digest


def record(seq: int, rows: int = 3, labels: bool = False) -> Record:
    rng = torch.Generator().manual_seed(seq)
    answers = torch.randint(0, 9, (rows,), generator=rng) if labels else torch.rand(rows, 4, generator=rng)
    return Record(seq, digest(torch.rand(rows, 1, 2, 2, generator=rng)), answers, seq, rows)


def rest(journal: Journal) -> list[Record]:
    found = []
    while journal.replaying:
        found.append(journal.peek())
        journal.advance()
    return found


def same(left: list[Record], right: list[Record]) -> bool:
    return len(left) == len(right) and all(
        (a.seq, a.digest, a.start, a.batch) == (b.seq, b.digest, b.start, b.batch)
        and a.answers.dtype == b.answers.dtype
        and a.answers.shape == b.answers.shape
        and a.answers.numpy().tobytes() == b.answers.numpy().tobytes()
        for a, b in zip(left, right, strict=True)
    )


def test_records_come_back_bitwise_and_in_order(tmp_path: Path) -> None:
    written = [record(1), record(2, labels=True), record(5, rows=1)]
    written.append(Record(6, written[0].digest, torch.tensor([[float("nan"), -0.0, 1e-45, 1.0]]), 0, 1))
    journal = Journal(tmp_path / "journal")
    assert not journal.replaying
    for item in written:
        journal.append(item)
    again = Journal(tmp_path / "journal")
    assert same(rest(again), written)
    again.append(record(7))
    assert same(rest(Journal(tmp_path / "journal")), [*written, record(7)])


def test_the_digest_names_bytes_shape_and_dtype() -> None:
    x = torch.rand(2, 1, 4, 4)
    other = x.clone()
    other[1, 0, 3, 3] += 1e-7
    variants = [x, other, x.reshape(2, 1, 2, 8), x.view(torch.int32), x.transpose(2, 3)]
    codes = {digest(variant) for variant in variants}
    assert len(codes) == len(variants)
    assert digest(x) == digest(x.clone(memory_format=torch.channels_last))
    assert len(digest(x)) == 16


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_torn_last_record_is_cut_off(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("journal")
    journal = Journal(folder)
    count = data.draw(st.integers(1, 3))
    sizes = [0]
    for seq in range(count):
        journal.append(record(seq))
        sizes.append((folder / "000000.bin").stat().st_size)
    whole = (folder / "000000.bin").read_bytes()
    end = data.draw(st.integers(sizes[-2], sizes[-1] - 1))
    (folder / "000000.bin").write_bytes(whole[:end])
    again = Journal(folder)
    assert same(rest(again), [record(seq) for seq in range(count - 1)])
    assert (folder / "000000.bin").stat().st_size == sizes[-2]
    again.append(record(9))
    assert same(rest(Journal(folder)), [*(record(seq) for seq in range(count - 1)), record(9)])


@pytest.mark.parametrize("begun", [0, HEAD_BYTES])
def test_a_last_record_that_a_power_cut_left_as_zeros_is_cut_off(tmp_path: Path, begun: int) -> None:
    journal = Journal(tmp_path)
    journal.append(record(1))
    whole = (tmp_path / "000000.bin").stat().st_size
    journal.append(record(2))
    content = (tmp_path / "000000.bin").read_bytes()
    (tmp_path / "000000.bin").write_bytes(content[: whole + begun] + bytes(len(content) - whole - begun))
    assert same(rest(Journal(tmp_path)), [record(1)])


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_changed_byte_before_the_last_record_is_found(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    journal = Journal(folder)
    journal.append(record(1))
    end = (folder / "000000.bin").stat().st_size
    journal.append(record(2))
    content = bytearray((folder / "000000.bin").read_bytes())
    content[data.draw(st.integers(0, end - 1))] ^= data.draw(st.integers(1, 255))
    (folder / "000000.bin").write_bytes(content)
    with pytest.raises(RunError, match=r"000000.bin, byte 0: expected a whole record"):
        Journal(folder)


def test_a_torn_record_before_the_last_segment_is_found(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(record(1))
    journal.rotate()
    journal.append(record(2))
    first = tmp_path / "000000.bin"
    first.write_bytes(first.read_bytes()[:-1])
    with pytest.raises(RunError, match="answers are damaged"):
        Journal(tmp_path)
    first.unlink()
    with pytest.raises(RunError, match=r"000000.bin: missing, with other segments there"):
        Journal(tmp_path)


def test_each_of_the_last_two_checkpoints_finds_its_records(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    states = [journal.state_dict()]
    for seq in range(1, 7):
        journal.append(record(seq))
        if seq % 2 == 0:
            states.append(journal.state_dict())
            journal.rotate()
    journal.append(record(7))
    assert same(rest(Journal(tmp_path, states[3])), [record(7)])
    assert same(rest(Journal(tmp_path, states[2])), [record(seq) for seq in (5, 6, 7)])
    assert len(list(tmp_path.glob("*.bin"))) <= 3


def test_a_kill_between_checkpoint_and_rotation_loses_and_repeats_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(record(1))
    state = journal.state_dict()
    again = Journal(tmp_path, state)
    assert not again.replaying
    again.append(record(2))
    assert same(rest(Journal(tmp_path, state)), [record(2)])


def test_a_checkpoint_during_a_replay_keeps_what_is_still_to_be_read(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for seq in (1, 2, 3):
        journal.append(record(seq))
    again = Journal(tmp_path)
    again.advance()
    state = again.state_dict()
    again.rotate()
    assert same(rest(Journal(tmp_path, state)), [record(2), record(3)])


def test_a_fallback_to_the_previous_checkpoint_is_kept_by_the_next_rotation(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(record(1))
    previous = journal.state_dict()
    journal.rotate()
    journal.append(record(2))
    journal.rotate()  # its checkpoint is then found damaged
    journal.append(record(3))
    again = Journal(tmp_path, previous)
    assert same(rest(again), [record(2), record(3)])
    again.append(record(4))
    again.rotate()
    assert same(rest(Journal(tmp_path, previous)), [record(2), record(3), record(4)])


def test_a_deleted_journal_starts_afresh_where_the_checkpoint_says(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.append(record(1))
    state = journal.state_dict()
    for path in (tmp_path / "j").iterdir():
        path.unlink()
    (tmp_path / "j").rmdir()
    again = Journal(tmp_path / "j", state)
    assert not again.replaying
    again.append(record(2))
    assert same(rest(Journal(tmp_path / "j", state)), [record(2)])


def test_a_full_disk_leaves_whole_records(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(record(1))
    size = (tmp_path / "000000.bin").stat().st_size
    with file_size_limit(size + 50), pytest.raises(RunError, match=r"000000.bin"):
        journal.append(record(2))
    journal.append(record(3))
    assert same(rest(Journal(tmp_path)), [record(1), record(3)])


def test_a_folder_that_cannot_be_made_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="cannot create"):
        Journal(tmp_path / "file" / "journal")
