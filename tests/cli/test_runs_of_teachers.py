"""Whole runs by the command line: of teachers of one's own, which may fail on the way, of files of
weights, and of what a machine or an estimator does not allow.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from begun import refused_words
from command_line import SMALL, one_line, run, summary
from safetensors.torch import save_file
from tables import exhaustive_rows
from torch import nn

from dfme.compute.device import within_memory
from dfme.errors import DfmeError
from dfme.nets import build_net
from dfme.run import parts


@pytest.mark.parametrize(
    ("flags", "mode"),
    [
        (
            "own:Linear --teacher.scale 3 --teacher.shape 2,7,5 --teacher.label-mode "
            "probabilities:4",
            None,
        ),
        ("own:Linear --teacher.levels 256 --teacher.max-batch 3", "probabilities"),
        ("own:Linear --teacher.mean .5 --teacher.std .25 --teacher.bounds 0,255", "probabilities"),
        ("own:Linear --teacher.label-mode top_k:2 --method static", "top_k:2"),
        ("own:Linear --teacher.label-mode label --method static", "label"),
        ("own:Labels --method static", "label"),
        ("own:Arrays", "probabilities"),
        ("own:make --teacher.scale 2 --teacher.shape 3,8,8", "probabilities"),
    ],
)
def test_teachers_of_one_s_own(flags: str, mode: str | None) -> None:
    assert run(f"--teacher {flags} --budget 75 --out run {SMALL}") == 0
    result = summary()
    assert (result["spent"], result["label_mode"]) == (75, mode or flags.split()[-1])
    least = -(-75 // 3) if "max-batch" in flags else 1
    assert result["requests"] >= least


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raises", "but it raised ConnectionError: the server went away"),
        ("nothing", "expected a tensor, an array or a list of numbers, got NoneType"),
        *exhaustive_rows(
            [
                ("infinity", "got NaN or infinite values"),
                ("twice", "a sum that is 1 away from one"),
                ("ends the process", "but it raised SystemExit: 7"),
                ("one score", "got (16,); if these are labels"),
                ("eight classes", "(16, 4), a row per image and a column per class, got (16, 8)"),
                ("one image less", "(16, 4), a row per image and a column per class, got (15, 4)"),
                ("logits", "if these are logits, start a new run with --teacher.label-mode logits"),
            ]
        ),
    ],
)
def test_a_teacher_that_fails_halfway_can_be_mended(
    capsys: pytest.CaptureFixture[str], fault: str, message: str
) -> None:
    Path("fault.txt").write_text(fault)
    assert run(f"--teacher own:Linear --budget 90 --out run {SMALL}") == 3
    line = one_line(capsys)
    assert message in line
    resume = line.partition("all that was paid is kept: ")[2]
    assert resume.endswith("--resume --out run")
    assert not Path("run/summary.json").exists()
    Path("fault.txt").unlink()
    assert run(resume.partition("run.py ")[2]) == 0
    result = summary()  # the batch that was served but not answered well stays charged
    assert (result["spent"], result["failed"], result["lost"]) == (90, 16, 0)


def test_a_lost_answer_is_not_taken_for_a_label(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--teacher own:Lost --teacher.label-mode label --method static --budget 9 --out run"
    assert run(f"{words} {SMALL}") == 3
    assert "labels from -1 to -1 (-1: its scores were NaN)" in one_line(capsys)


# Files of weights


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
        assert run(f"--teacher.checkpoint {file} --budget 20 --out {file}.run {SMALL}") == 0
        students.add(Path(f"{file}.run", "student.safetensors").read_bytes())
        assert summary(f"{file}.run")["spent"] == 20
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
    assert message in refused_words(f"--teacher.checkpoint {flags} --budget 40 --out run", capsys)
    assert not (here / "run").exists()


# What a machine does not allow


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
    """Its figures is about memory that is reserved and not allocated, where a smaller batch is what
    helps.
    """
    figures = (
        "CUDA out of memory. Tried to allocate 2 GiB. "
        "GPU 0 has a total capacity of 9 GiB of which 1 GiB is free"
    )
    with pytest.raises(DfmeError) as caught, within_memory(torch.device("cuda")):
        raise RuntimeError(
            f"{figures}. Including non-PyTorch memory, this process has 78 GiB. Try THIS=that"
        )
    assert str(caught.value).startswith(
        f"out of memory on cuda: {figures}; start a new run with a smaller --"
    )


@pytest.mark.parametrize(
    ("method", "option", "expected"),
    [
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
    ],
)
def test_a_student_that_diverges_is_not_delivered_and_the_rate_is_named(
    capsys: pytest.CaptureFixture[str], method: str, option: str, expected: str
) -> None:
    assert (
        run(f"--teacher own:Linear --budget 500 --method {method} --out run {SMALL} {option}") == 1
    )
    assert expected in one_line(capsys)
    assert not Path("run/student.safetensors").exists()
