"""On a GPU with --deterministic: a run repeats to the bit, also when it was killed."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from kills import Strike, strike, written
from small_runs import student

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
WORDS = ["--config", "configs/digits.yaml", "--budget", "30k", "--deterministic", "true"]
WORDS += ["--device", "cuda", "--checkpoint-seconds", "0.5"]


def run(out: Path, *more: str, kill: bool = False) -> bytes:
    words, started = [sys.executable, "-m", "dfme", "extract", *WORDS, "--out", str(out), *more], time.time()
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if kill:
        strike(process, out, Strike(lambda run, _: written(run / "checkpoint.pt", started), 0.2), started)
        return b""
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert "UserWarning" not in err
    return student(out)


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return run(tmp_path_factory.mktemp("usual") / "run")


def test_the_same_seed_twice(tmp_path: Path, usual: bytes) -> None:
    assert run(tmp_path / "run") == usual


@pytest.mark.parametrize("more", [(), ("--graphs", "true")])
def test_killed_and_resumed(tmp_path: Path, usual: bytes, more: tuple[str, ...]) -> None:
    run(tmp_path / "run", *more, kill=True)
    assert run(tmp_path / "run", *more, "--resume") == usual


def test_the_state_of_defences_comes_from_the_checkpoint_alone(tmp_path: Path) -> None:
    """A network of ours on a GPU has no journal: what was asked since is asked again."""
    more = ("--teacher.defences", "modelguard_s:epsilon=0.6")
    whole = run(tmp_path / "whole", *more)
    run(tmp_path / "run", *more, kill=True)
    assert run(tmp_path / "run", *more, "--resume") == whole


@pytest.mark.parametrize(
    "more",
    [
        (),
        ("--student.average", "0.9"),
        ("--student.optimizer", "adam", "--student.lr", "0.001"),
        ("--student.steps", "600", "--student.rounds", "0.5,1"),
        ("--precision", "bf16"),
        ("--method", "maze"),
        ("--method", "disguide"),
        ("--compile", "true"),
    ],
)
def test_graphs_change_no_bit(tmp_path: Path, more: tuple[str, ...]) -> None:
    without = run(tmp_path / "without", *more)
    assert run(tmp_path / "with", *more, "--graphs", "true") == without
