"""A replay on disk with a copy on the device: bit for bit the run without one, and no file is read to draw from it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import small_runs
import torch
from small_runs import Metered, clone, ctrl_c, student
from torch import Tensor

import dfme.students.replay.layout
from dfme.run.memory import mirrored
from dfme.spec import ImageSpec
from dfme.students.replay import Replay, capacity_within

LEVELS = [256, None]


def paid(count: int, seed: int, spec: ImageSpec) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return spec.quantise(torch.rand(count, *spec.shape, generator=rng)), torch.rand(count, 4, generator=rng)


def on_disk(folder: Path, spec: ImageSpec, mirrored: bool) -> Replay:
    replay = Replay(20, spec, torch.Generator().manual_seed(0), folder)
    if mirrored:
        replay.mirror()
    return replay


@pytest.fixture
def preads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many items were read from files so far, one entry each."""
    read, own = list[int](), os.pread

    def counting(fd: int, *of: Any) -> bytes:
        if os.readlink(f"/proc/self/fd/{fd}").endswith(".items"):  # a run's lock is read, too
            read.append(1)
        return own(fd, *of)

    monkeypatch.setattr(os, "pread", counting)
    return read


@pytest.mark.parametrize("levels", LEVELS)
def test_it_draws_what_the_files_hold_and_reads_none(levels: int | None, tmp_path: Path, preads: list[int]) -> None:
    spec = ImageSpec((1, 3, 5), levels=levels)
    with_copy, without = (on_disk(tmp_path / str(each), spec, each) for each in (True, False))
    for number in range(9):  # beyond the window of 20
        drawn = []
        for replay in (with_copy, without):
            replay.add(*paid(6, number, spec))
            before = len(preads)
            drawn.append(replay.sample(11))
            assert len(preads) - before == (0 if replay is with_copy else 11)
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(*drawn, strict=True))
    contents = [[path.read_bytes() for path in sorted((tmp_path / str(each)).iterdir())] for each in (True, False)]
    assert contents[0] == contents[1], "the record is the same"


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("batches", [2, 7])
def test_a_resumed_one_is_filled_from_the_files(levels: int | None, batches: int, tmp_path: Path) -> None:
    spec = ImageSpec((1, 3, 5), levels=levels)
    first = on_disk(tmp_path, spec, True)
    for number in range(batches):
        first.add(*paid(6, number, spec))
    again = on_disk(tmp_path, spec, True)
    again.load_state_dict(first.state_dict())
    for replay in (first, again):
        replay._rng.manual_seed(3)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(first.sample(64), again.sample(64), strict=True))


def test_a_run_reads_no_file_and_ends_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preads: list[int]
) -> None:
    """Forced on a CPU, stopped in the middle and resumed, without the copy and with it."""
    options = {"student": {"lr": 0.01, "replay_steps": 2, "replay_batch": 8, "replay_store": "disk"}}
    with small_runs.no_pictures():
        clone(tmp_path / "files", Metered(), **options)
        assert preads, "a CPU has no copy by default"
        monkeypatch.setattr("dfme.run.memory.MIRRORED", ("cpu",))
        preads.clear()
        clone(tmp_path / "copy", Metered(), **options)
        assert not preads
        clone(tmp_path / "cut", Metered({9: ctrl_c}), **options)
        assert not preads
        clone(tmp_path / "cut", Metered(), resume=True, **options)
        held = len(preads)
    assert 0 < held <= 400, "the copy is filled, and checked, from the files once each"
    assert student(tmp_path / "files") == student(tmp_path / "copy") == student(tmp_path / "cut")


def test_without_room_it_says_so_and_reads_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    replay = on_disk(tmp_path, ImageSpec((3, 8, 8)), False)
    size, cpu = 20 * (4 * 3 * 8 * 8 + 16), torch.device("cpu")
    assert mirrored(replay, 16, {}, cpu) == []
    assert replay._mirror is None, "not on a CPU"
    monkeypatch.setattr("dfme.run.memory.MIRRORED", ("cpu",))
    monkeypatch.setattr("dfme.run.memory.free_memory", lambda device: size + 6)
    (line,) = mirrored(replay, 16, {"student": 7}, cpu)
    assert line == "replay: read from disk, 0.0 GB do not fit into the 0.0 GB left of cpu"
    assert replay._mirror is None
    assert mirrored(replay, 16, {"student": 6}, cpu) == []
    assert replay._mirror is not None


@pytest.mark.parametrize("on_disk", [True, False])
@pytest.mark.parametrize("size", [900, 2_000, 5_001])
def test_bytes_are_an_upper_bound_of_what_lies_there(
    size: int, on_disk: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the folder holds at its fullest, checkpoints at every batch; one item more would not be held to it."""
    monkeypatch.setattr(dfme.students.replay.layout, "SEGMENT_BYTES", 400)
    spec, answer = ImageSpec((1, 3, 5), levels=256), 16
    capacity = capacity_within(size, spec, answer, on_disk, 10**6)
    most = 0
    replay = Replay(capacity, spec, torch.Generator(), tmp_path / "replay" if on_disk else None)
    for number in range(100):
        replay.add(*paid(3, number, spec))
        replay.state_dict()
        most = max([most, sum(path.stat().st_size for path in tmp_path.glob("replay/*"))])
    assert most <= size
    if not on_disk:
        assert capacity == size // (15 + 16)
    else:
        assert most > size - 2 * 400, "what is allowed is used"
        assert capacity_within(35 * 6, spec, answer, True, 6) == 6, "of all that ever comes nothing is dropped"
