"""Whole runs by the command line, of teachers that are files of weights: what they leave."""

from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import SMALL, one_line, run, summary
from safetensors.torch import save_file
from torch import nn

from dfme.nets import build_net


def state(arch: str, shape: tuple[int, int, int], classes: int) -> dict[str, Any]:
    return build_net(arch, shape, classes).state_dict()


def test_published_forms_of_a_checkpoint_give_the_same_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    weights = state("wrn16_1", (3, 32, 32), 10)
    torch.save(weights, "plain.pt")
    wrapped = {f"module.{name}": value for name, value in weights.items()}
    torch.save({"state_dict": wrapped, "epoch": 3}, "wrapped.pth")
    save_file(weights, "plain.safetensors")
    students = set()
    for file in ("plain.pt", "wrapped.pth", "plain.safetensors"):
        assert run(f"--teacher.checkpoint {file} --budget 40 --out {file}.run {SMALL}") == 0
        students.add(Path(f"{file}.run", "student.safetensors").read_bytes())
        assert summary(f"{file}.run")["spent"] == 40
    assert len(students) == 1
    assert "held-back" not in capsys.readouterr().out  # so few batches that none was


def write_weights() -> None:
    """Weights of many kinds, and files that are none."""
    small = state("cnn_small", (1, 8, 8), 10)
    torch.save(small, "small.pt")
    torch.save(nn.Linear(2, 2), "module.pt")
    first = next(iter(small))
    torch.save({**small, first: torch.full_like(small[first], torch.nan)}, "nan.pt")
    torch.save(dict(list(small.items())[2:]), "short.pt")
    Path("cut.pt").write_bytes(Path("small.pt").read_bytes()[:3000])
    Path("text.pt").write_text("hello")
    Path("empty.pt").touch()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            "small.pt",
            "--teacher.shape: the image shape cannot be told from the weights of cnn_small",
        ),
        (
            "small.pt --teacher.shape 3,8,8",
            "--teacher.shape: got 3,8,8, but the weights are for 1,8,8",
        ),
        (
            "small.pt --teacher.shape 1,8,8 --teacher.num-classes 7",
            "got 7, but the weights are for 10",
        ),
        (
            "small.pt --teacher.shape 1,8,8 --teacher.arch lenet5",
            "as lenet5 (they look like cnn_small):",
        ),
        ("small.pt --teacher.shape 1,8,8 --teacher.label-mode label", "methods that can use it:"),
        (
            "small.pt --teacher.shape 1,9,8 --evaluation.dataset digits",
            "images are 1x8x8, but 1x9x8 was",
        ),
        (
            "small.pt --teacher.shape 1,8,8 --evaluation.dataset empty",
            "in one folder per class, found none",
        ),
        (
            "small.pt --teacher.shape 1,8,8 --teacher.mean .5,.5 --teacher.std 1,1",
            "expected 1 numbers,",
        ),
        ("small.pt --teacher.shape 1,8,8 --device cuda:99", "--device cuda:99: this machine has"),
        (
            "short.pt --teacher.arch cnn_small --teacher.shape 1,8,8 --teacher.num-classes 10",
            "missing, ",
        ),
        ("short.pt", "its architecture cannot be told"),
        (
            "nan.pt --teacher.shape 1,8,8",
            "hold NaN or infinite values in 1 tensors, first features.0.weight",
        ),
        ("module.pt", "loading them can run any code: torch.nn.modules.linear.Linear"),
        ("cut.pt", "cannot be read as weights, perhaps cut short"),
        ("text.pt", "is a text file; expected .safetensors"),
        ("empty.pt", "is empty"),
        (
            "nowhere.safetensors",
            "does not exist; give --teacher.checkpoint, or make one with run.py",
        ),
    ],
)
def test_checkpoints_that_cannot_work(
    here: Path, capsys: pytest.CaptureFixture[str], flags: str, message: str
) -> None:
    write_weights()
    (here / "empty").mkdir()
    assert run(f"--teacher.checkpoint {flags} --budget 40 --out run") == 2
    assert message in one_line(capsys)
    assert not (here / "run").exists()
