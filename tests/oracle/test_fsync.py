"""--fsync: by a second witness, every charge is on the disk before its request leaves, every answer before its use."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import small_runs
from small_runs import Metered
from torch import Tensor, nn

from dfme.cli.extract import parse_extract
from dfme.cli.main import main
from dfme.errors import RunError
from dfme.files import AppendFile
from dfme.run.build import run_job

REAL = os.fsync


class Witness:
    """How many bytes of which file were on the disk when it was last waited for, as the system's own call was made."""

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
    """Whether the ledger was on the disk at each request, and the journal at each step of the student."""
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
    with small_runs.no_pictures():
        run_job(replace(job, nets={"student.arch": Student}), teacher=Teacher())
    return sent, used


def test_charge_before_the_send_and_answer_before_its_use(tmp_path: Path, witness: Witness) -> None:
    sent, used = extracted(tmp_path / "run", witness, fsync=True)
    assert (len(sent), len(used)) == (10, 50)  # of which 40 are of replay
    assert all(sent)
    assert all(used)
    for name in ("", "/run", "/run/journal"):  # a file is found again by its folder, and that by the one above
        assert f"{tmp_path}{name}" in witness.calls


def test_without_it_nothing_waits_but_checkpoints(tmp_path: Path, witness: Witness) -> None:
    sent, used = extracted(tmp_path / "run", witness, fsync=False)
    assert not any(sent[1:])
    assert not any(used[1:])
    assert len(witness.calls) < 20


def test_an_append_that_the_disk_refuses_to_keep_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = AppendFile(tmp_path / "log", fsync=True)
    file.append(b"one")

    def refuse(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(RunError, match=r"cannot write .*log: Input/output error"):
        file.append(b"two")
    file.close()
    assert (tmp_path / "log").read_bytes() == b"one"


def test_it_may_be_turned_on_when_a_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with small_runs.no_pictures():
        assert main([*DIGITS, "--out", "run"]) == 0
        seen = Witness(monkeypatch)
        assert main(["--resume", "--out", "run", "--budget", "160", "--fsync", "true"]) == 0
    assert seen.calls.count(str(tmp_path / "run/ledger.jsonl")) >= 3
    assert "fsync: true" in (tmp_path / "run/config.yaml").read_text()
