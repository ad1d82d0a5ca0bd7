"""What a machine or an estimator does not allow is one line, and leaves nothing."""

from __future__ import annotations

import shutil
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from command_line import SMALL, one_line, run
from small_runs import no_pictures

from dfme.compute import within_memory
from dfme.errors import DfmeError
from dfme.run import opening, parts


@pytest.fixture(autouse=True)
def _no_pictures() -> Iterator[None]:
    with no_pictures():
        yield


def test_a_full_disk_is_known_before_the_first_query(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9 - 10**5, 10**5))
    assert run(f"--teacher own:Linear --budget 90 --out run {SMALL}") == 2
    assert "MB of free space, got 0.1 MB; free some or choose another --out" in one_line(capsys)
    monkeypatch.undo()
    assert not Path("run/ledger.jsonl").exists()


@pytest.mark.exhaustive
def test_the_space_asked_for_is_what_checkpoints_take(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(opening, "require_space", lambda path, needed: asked.append(needed))
    assert run(f"--teacher own:Linear --method static --budget 3000 --out run {SMALL} --student.replay-steps 1") == 0
    taken = Path("run/checkpoint.pt").stat().st_size  # one of the three that may stand side by side
    assert 0.4 * asked[0] < 3 * taken < asked[0] + 300_000  # names and shapes come on top of the numbers


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--estimator.space lattice --estimator.step 2", "expected a teacher that declares --teacher.levels"),
        ("--estimator.space lattice --estimator.step auto", "expected a teacher that declares --teacher.levels"),
        ("--estimator.space lattice --estimator.step 200 --teacher.levels 256", "whole number of levels from 1 to 127"),
        ("--estimator.space image --estimator.step 0.7", "expected probes that reach less than half of the bounds"),
        ("--estimator.kind auto", "--budget: expected at least 352 images for the check"),
    ],
)
def test_an_estimator_that_does_not_fit_is_one_line_and_leaves_nothing(
    here: Path, capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    assert run(f"--teacher own:Linear --budget 90 --out run --device cpu {words}") == 2
    assert said in one_line(capsys)
    assert not (here / "run").exists()


def test_a_missing_compiler_is_one_line(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert run("--teacher own:Linear --budget 90 --out run --compile --device cpu") == 2
    assert "--compile: expected a compiler (no-such-compiler) on the PATH, found none" in one_line(capsys)
    assert not (here / "run").exists()


def test_too_little_memory_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes.\nmore")

    monkeypatch.setattr(parts, "build_nets", refuse)
    assert run("--teacher own:Linear --budget 90 --out run --device cpu") == 1
    line = one_line(capsys)
    assert "out of memory on cpu" in line
    assert "smaller --method.batch-size" in line


def test_of_what_cuda_says_only_the_figures_are_told() -> None:
    """Its advice is about memory that is reserved and not allocated, where a smaller batch is what helps."""
    said = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 9 GiB of which 1 GiB is free"
    with pytest.raises(DfmeError) as caught, within_memory(torch.device("cuda")):
        raise RuntimeError(f"{said}. Including non-PyTorch memory, this process has 78 GiB. Try THIS=that")
    assert str(caught.value).startswith(f"out of memory on cuda: {said}; start a new run with a smaller --method.")


@pytest.mark.parametrize("method", ["dfme", "static"])
def test_a_student_that_diverges_is_not_delivered(capsys: pytest.CaptureFixture[str], method: str) -> None:
    assert run(f"--teacher own:Linear --budget 500 --student.lr 1e30 --method {method} --out run {SMALL}") == 1
    assert "the student has diverged: its student loss is nan; start a new run with a lower" in one_line(capsys)
    assert not Path("run/student.safetensors").exists()
