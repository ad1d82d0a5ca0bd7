"""What a machine or an estimator does not allow is one line, and leaves nothing."""

from pathlib import Path

import pytest
import torch
from command_line import SMALL, one_line, run

from dfme.compute.device import within_memory
from dfme.errors import DfmeError
from dfme.run import parts


def test_too_little_memory_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError(
            "DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes.\nmore"
        )

    monkeypatch.setattr(parts, "build_nets", refuse)
    assert run("--teacher own:Linear --budget 90 --out run --device cpu") == 1
    line = one_line(capsys)
    assert "out of memory on cpu" in line
    assert "smaller --method.batch-size" in line


def test_of_what_cuda_says_only_the_figures_are_told() -> None:
    """Its advice is about memory that is reserved and not allocated, where a smaller batch is what
    helps.
    """
    said = "CUDA out of memory. Tried to allocate 2 GiB. "
    said += "GPU 0 has a total capacity of 9 GiB of which 1 GiB is free"
    with pytest.raises(DfmeError) as caught, within_memory(torch.device("cuda")):
        raise RuntimeError(
            f"{said}. Including non-PyTorch memory, this process has 78 GiB. Try THIS=that"
        )
    assert str(caught.value).startswith(
        f"out of memory on cuda: {said}; start a new run with a smaller --"
    )


DIVERGED = [
    (
        "static",
        "--student.lr 1e30",
        "diverged: its student loss is nan, at --student.lr 1e+30",
    ),
    ("dfme", "--student.lr 1000", "at --student.lr 1000; start a new run with a lower one"),
    ("disguide", "--student.lr 1000", "at --student.lr 1000; start a new run with a lower one"),
    (
        "static",
        "--student.weight-decay 1e9",
        "at --student.lr 0.1 and --student.weight-decay 1e+09; start",
    ),
    (
        "dfme",
        "--method.generator-lr 1e30",
        "generator has diverged: its output is beyond all bounds, at --",
    ),
]


@pytest.mark.parametrize(("method", "option", "expected"), DIVERGED)
def test_a_student_that_diverges_is_not_delivered_and_the_rate_is_named(
    capsys: pytest.CaptureFixture[str], method: str, option: str, expected: str
) -> None:
    words = f"--teacher own:Linear --budget 500 --method {method} --out run {SMALL} {option}"
    assert run(words) == 1
    assert expected in one_line(capsys)
    assert not Path("run/student.safetensors").exists()
