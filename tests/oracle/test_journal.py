"""The journal: what was appended comes back bitwise, torn ends are cut, damage is found; and
--fsync.
"""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import small_runs
import torch
from command_line import parse_extract
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import Metered
from torch import Tensor, nn

from dfme.cli.main import main
from dfme.errors import RunError
from dfme.files import AppendFile
from dfme.oracle.journal import HEAD_BYTES, Journal, Record, digest
from dfme.run.build import run_job


def record(seq: int, rows: int = 3, labels: bool = False) -> Record:
    rng = torch.Generator().manual_seed(seq)
    answers = (
        torch.randint(0, 9, (rows,), generator=rng)
        if labels
        else torch.rand(rows, 4, generator=rng)
    )
    return Record(seq, digest(torch.rand(rows, 1, 2, 2, generator=rng)), answers, seq, rows)


def journal(folder: Path, *numbers: int) -> Journal:
    """A journal that these records were appended to."""
    written = Journal(folder)
    for seq in numbers:
        written.append(record(seq))
    return written


def plain(record: Record) -> tuple[object, ...]:
    answers = record.answers
    kind = answers.dtype, answers.shape, answers.numpy().tobytes()
    return record.seq, record.digest, record.start, record.batch, *kind


def rest(journal: Journal) -> list[tuple[object, ...]]:
    records = []
    while journal.replaying:
        records.append(plain(journal.peek()))
        journal.advance()
    return records


def records(*numbers: int) -> list[tuple[object, ...]]:
    return [plain(record(seq)) for seq in numbers]


def test_records_come_back_bitwise_and_in_order(tmp_path: Path) -> None:
    written = [record(1), record(2, labels=True), record(5, rows=1)]
    written.append(
        Record(6, written[0].digest, torch.tensor([[float("nan"), -0.0, 1e-45, 1.0]]), 0, 1)
    )
    first = Journal(tmp_path / "journal")
    assert not first.replaying
    for item in written:
        first.append(item)
    again = Journal(tmp_path / "journal")
    assert rest(again) == [plain(each) for each in written]
    again.append(record(7))
    assert rest(Journal(tmp_path / "journal")) == [plain(each) for each in (*written, record(7))]


def test_the_digest_names_bytes_shape_and_dtype() -> None:
    x = torch.rand(2, 1, 4, 4)
    other = x.clone()
    other[1, 0, 3, 3] += 1e-7
    variants = [x, other, x.reshape(2, 1, 2, 8), x.view(torch.int32), x.transpose(2, 3)]
    assert len({digest(variant) for variant in variants}) == len(variants)
    assert digest(x) == digest(x.clone(memory_format=torch.channels_last))
    assert len(digest(x)) == 16


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_torn_last_record_is_cut_off(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    segment, written = folder / "000000.bin", Journal(folder)
    count = data.draw(st.integers(1, 3))
    sizes = [0]
    for seq in range(count):
        written.append(record(seq))
        sizes.append(segment.stat().st_size)
    segment.write_bytes(segment.read_bytes()[: data.draw(st.integers(sizes[-2], sizes[-1] - 1))])
    again = Journal(folder)
    assert rest(again) == records(*range(count - 1))
    assert segment.stat().st_size == sizes[-2]
    again.append(record(9))
    assert rest(Journal(folder)) == records(*range(count - 1), 9)


@pytest.mark.parametrize("begun", [0, HEAD_BYTES])
def test_a_last_record_that_a_power_cut_left_as_zeros_is_cut_off(
    tmp_path: Path, begun: int
) -> None:
    segment = tmp_path / "000000.bin"
    written = journal(tmp_path, 1)
    size = segment.stat().st_size
    written.append(record(2))
    content = segment.read_bytes()
    segment.write_bytes(content[: size + begun] + bytes(len(content) - size - begun))
    assert rest(Journal(tmp_path)) == records(1)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_changed_byte_before_the_last_record_is_found(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    segment = tmp_path_factory.mktemp("journal") / "000000.bin"
    written = journal(segment.parent, 1)
    end = segment.stat().st_size
    written.append(record(2))
    content = bytearray(segment.read_bytes())
    content[data.draw(st.integers(0, end - 1))] ^= data.draw(st.integers(1, 255))
    segment.write_bytes(content)
    with pytest.raises(RunError, match=r"000000.bin, byte 0: expected a whole record"):
        Journal(segment.parent)


def test_a_torn_record_before_the_last_segment_is_found(tmp_path: Path) -> None:
    written, first = journal(tmp_path, 1), tmp_path / "000000.bin"
    written.rotate()
    written.append(record(2))
    first.write_bytes(first.read_bytes()[:-1])
    with pytest.raises(RunError, match="answers are damaged"):
        Journal(tmp_path)
    first.unlink()
    with pytest.raises(RunError, match=r"000000.bin, .* it is missing, with other"):
        Journal(tmp_path)


def test_each_of_the_last_two_checkpoints_finds_its_records(tmp_path: Path) -> None:
    written = Journal(tmp_path)
    states = [written.state_dict()]
    for seq in range(1, 7):
        written.append(record(seq))
        if seq % 2 == 0:
            states.append(written.state_dict())
            written.rotate()
    written.append(record(7))
    assert rest(Journal(tmp_path, states[3])) == records(7)
    assert rest(Journal(tmp_path, states[2])) == records(5, 6, 7)
    assert len(list(tmp_path.glob("*.bin"))) <= 3


def test_a_checkpoint_during_a_replay_keeps_what_is_still_to_be_read(tmp_path: Path) -> None:
    journal(tmp_path, 1, 2, 3)
    again = Journal(tmp_path)
    again.advance()
    state = again.state_dict()
    again.rotate()
    assert rest(Journal(tmp_path, state)) == records(2, 3)


def test_a_fallback_to_the_previous_checkpoint_is_kept_by_the_next_rotation(tmp_path: Path) -> None:
    written = journal(tmp_path, 1)
    previous = written.state_dict()
    written.rotate()
    written.append(record(2))
    written.rotate()  # its checkpoint is then found damaged
    written.append(record(3))
    again = Journal(tmp_path, previous)
    assert rest(again) == records(2, 3)
    again.append(record(4))
    again.rotate()
    assert rest(Journal(tmp_path, previous)) == records(2, 3, 4)


def test_a_deleted_journal_starts_afresh_where_the_checkpoint_says(tmp_path: Path) -> None:
    folder = tmp_path / "j"
    state = journal(folder, 1).state_dict()
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    again = Journal(folder, state)
    assert not again.replaying
    again.append(record(2))
    assert rest(Journal(folder, state)) == records(2)


REAL = os.fsync


class Witness:
    """How many bytes of which file were on the disk when it was last waited for."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.synced: dict[str, int] = {}
        self.calls: list[str] = []
        patch.setattr(os, "fsync", self._fsync)

    def _fsync(self, fd: int) -> None:
        REAL(fd)
        name = os.readlink(f"/proc/self/fd/{fd}")
        self.calls.append(name)
        self.synced[name] = os.fstat(fd).st_size

    def is_safe(self, path: Path) -> bool:
        return self.synced.get(str(path)) == path.stat().st_size


@pytest.fixture
def witness(monkeypatch: pytest.MonkeyPatch) -> Witness:
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("needs /proc to tell which file is waited for")
    return Witness(monkeypatch)


DIGITS = ["--teacher.checkpoint", "teachers/checkpoints/digits.safetensors", *small_runs.SMALL]


def extracted(out: Path, witness: Witness, fsync: bool) -> tuple[list[bool], list[bool]]:
    """Whether the ledger was on the disk at each request, and the journal at each step of the
    student.
    """
    sent, used = list[bool](), list[bool]()

    class Teacher(Metered):
        def __call__(self, images: Tensor) -> Tensor:
            sent.append(witness.is_safe(out / "ledger.jsonl"))
            return super().__call__(images)

    class Student(nn.Module):
        def __init__(self, num_classes: int) -> None:
            super().__init__()
            self.linear = nn.Linear(64, num_classes)

        def forward(self, x_BCHW: Tensor) -> Tensor:
            if self.training:
                used.append(witness.is_safe(out / "journal/000000.bin"))
            scores_BK: Tensor = self.linear(x_BCHW.flatten(1))
            return scores_BK

    words = [*DIGITS, "--budget", "200", "--out", str(out), "--fsync", str(fsync)]
    job = parse_extract([*words, "--teacher.shape", "1,8,8", "--teacher.num-classes", "10"])
    run_job(replace(job, objects={"student.arch": Student}), teacher=Teacher())
    return sent, used


@pytest.mark.parametrize("fsync", [True, False])
def test_charge_before_send_and_answer_before_use(
    fsync: bool, tmp_path: Path, witness: Witness
) -> None:
    sent, used = extracted(tmp_path / "run", witness, fsync)
    if not fsync:  # nothing waits but checkpoints
        assert not any([*sent[1:], *used[1:]])
        assert len(witness.calls) < 20
        return
    assert (len(sent), len(used)) == (10, 50)  # of which 40 are of replay
    assert all([*sent, *used])
    # a file is found again by its folder, and that by the one above
    for name in ("", "/run", "/run/journal"):
        assert f"{tmp_path}{name}" in witness.calls


def test_an_append_that_is_not_synced_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = AppendFile(tmp_path / "log", fsync=True)
    file.append(b"one")

    def refuse(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(RunError, match=r"cannot write .*log: Input/output error"):
        file.append(b"two")
    file.close()
    assert (tmp_path / "log").read_bytes() == b"one"


def test_it_may_be_turned_on_when_a_run_goes_on(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main([*DIGITS, "--out", "run"]) == 0
    seen = Witness(monkeypatch)
    assert main(["--resume", "--out", "run", "--budget", "160", "--fsync", "true"]) == 0
    assert seen.calls.count(str(here / "run/ledger.jsonl")) >= 3
    assert "fsync: true" in (here / "run/config.yaml").read_text()
