"""Whole runs by the command line, as a person starts them: what they leave on the disk, and what they refuse."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from dfme.cli.main import main
from dfme.config.yaml_files import load_yaml
from dfme.nets import build_net, builder
from dfme.run import build
from dfme.run.directory import RunDirectory
from dfme.run.job import PROJECT

TEACHERS = '''
from __future__ import annotations

import os
from pathlib import Path

import torch


class Linear:
    """A linear classifier that counts what it serves, and fails as a file tells it to.

    Args:
        scale: factor of the scores
    """

    num_classes = 4

    def __init__(self, scale: float = 1.0, shape: tuple[int, int, int] = (1, 6, 9), token: str = None):
        self.scale, self.shape, self.served = scale, shape, 0
        pixels = shape[0] * shape[1] * shape[2]
        self.weight = torch.randn(pixels, 4, generator=torch.Generator().manual_seed(0))

    def __call__(self, images):
        self.served += len(images)
        p_BK = (self.scale * (images - 0.5).flatten(1) @ self.weight).softmax(1)
        fault = Path("fault.txt").read_text() if Path("fault.txt").exists() and self.served > 40 else ""
        if fault == "raises":
            raise ConnectionError("the server\\nwent away")
        if fault == "ends the process":
            raise SystemExit(7)
        if fault == "NaN":
            p_BK[0, 1] = float("nan")
        if fault == "infinity":
            p_BK[0, 1] = float("inf")
        return {
            "one score": p_BK[:, 0], "eight classes": torch.cat([p_BK, p_BK], 1), "twice": 2 * p_BK,
            "nothing": None, "a dict": {"scores": p_BK}, "one image less": p_BK[1:], "logits": p_BK.log(),
        }.get(fault, p_BK)


class Labels(Linear):
    label_mode = "label"

    def __call__(self, images):
        return super().__call__(images).argmax(1)


class Arrays(Linear):
    def __call__(self, images):
        return super().__call__(images).double().numpy()


class Lost(Linear):
    def __call__(self, images):
        return super().__call__(images) * float("nan")


def make(scale: float, num_classes: int = 4):
    """Make one.

    Args:
        scale: factor of the scores
    """
    teacher = Linear(scale, (3, 8, 8))
    return lambda images: teacher(images)


def answer(images):
    return images


def unreachable():
    raise OSError("no route to host")
'''

SMALL = "--method.batch-size 8 --method.student-steps 2 --method.latent-size 8 --student.arch cnn_small"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current directory with a module of teachers in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own", raising=False)
    (tmp_path / "own.py").write_text(TEACHERS)
    return tmp_path


def run(line: str) -> int:
    return main(shlex.split(line))


def summary(out: str = "run") -> dict[str, Any]:
    return json.loads(Path(out, "summary.json").read_text())  # type: ignore[no-any-return]


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The last line on stderr, after the log's: what went wrong."""
    *_, last = capsys.readouterr().err.splitlines()
    assert last.startswith("dfme: ")
    return last


# Teachers by checkpoint


def state(arch: str, shape: tuple[int, int, int], classes: int) -> dict[str, Any]:
    return build_net(arch, shape, classes).state_dict()


def test_published_forms_of_a_checkpoint_give_the_same_run(capsys: pytest.CaptureFixture[str]) -> None:
    weights = state("wrn16_1", (3, 32, 32), 10)
    torch.save(weights, "plain.pt")
    torch.save({"state_dict": {f"module.{name}": value for name, value in weights.items()}, "epoch": 3}, "wrapped.pth")
    save_file(weights, "plain.safetensors")
    students = []
    for file in ("plain.pt", "wrapped.pth", "plain.safetensors"):
        out = Path(file).name + ".run"
        assert run(f"--teacher.checkpoint {file} --budget 40 --out {out} {SMALL}") == 0
        students.append(Path(out, "student.safetensors").read_bytes())
        assert summary(out)["spent"] == 40
    assert students[0] == students[1] == students[2]
    assert "held-back" not in capsys.readouterr().out  # so few batches that none was


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("arch", "shape", "flags"),
    [
        ("resnet34_8x", (3, 32, 32), ""),
        ("resnet50_8x", (3, 32, 32), ""),
        ("lenet5", (1, 28, 28), "--teacher.shape 1,28,28"),
        ("resnet18", (3, 64, 64), "--teacher.shape 3,64,64"),
        ("mobilenet_v2", (3, 32, 32), "--teacher.arch mobilenet_v2 --teacher.num-classes 6 --teacher.shape 3,32,32"),
    ],
)
def test_architectures(arch: str, shape: tuple[int, int, int], flags: str) -> None:
    if not arch.endswith(("8x", "lenet5")):
        pytest.importorskip("torchvision", exc_type=(ImportError, RuntimeError))
    torch.save(state(arch, shape, 6), "weights.pt")
    assert run(f"--teacher.checkpoint weights.pt {flags} --budget 30 --out run {SMALL}") == 0
    assert summary()["spent"] == 30


def test_one_output_is_a_binary_classifier() -> None:
    net = builder("cnn_small")((1, 8, 8), 1)
    torch.save(net.state_dict(), "weights.pt")
    assert run(f"--teacher.checkpoint weights.pt --teacher.shape 1,8,8 --budget 40 --out run {SMALL}") == 0
    assert load_student_classes("run") == 2


def load_student_classes(out: str) -> int:
    import dfme

    return dfme.load_student(out).num_classes  # type: ignore[no-any-return]


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
        ("small.pt", "--teacher.shape: the image shape cannot be told from the weights; give it"),
        ("small.pt --teacher.shape 3,8,8", "--teacher.shape: got 3,8,8, but the weights are for 1,8,8"),
        ("small.pt --teacher.shape 1,8,8 --teacher.num-classes 7", "got 7, but the weights are for 10"),
        ("small.pt --teacher.shape 1,8,8 --teacher.arch lenet5", "as lenet5 (they look like cnn_small): the weights"),
        ("small.pt --teacher.shape 1,8,8 --student.arch vgg11", "arch vgg11: does not take images of 1x8x8"),
        ("small.pt --teacher.shape 1,8,8 --teacher.label-mode label", "methods that can use it: disguide, dual"),
        ("small.pt --teacher.shape 1,9,8 --evaluation.dataset digits", "images are 1x8x8, but 1x9x8 was asked for"),
        ("small.pt --teacher.shape 1,8,8 --evaluation.dataset empty", "expected one folder of images"),
        (
            "small.pt --teacher.shape 1,8,8 --teacher.mean .5,.5 --teacher.std 1,1",
            "expected 1 numbers, one per channel",
        ),
        ("small.pt --teacher.shape 1,8,8 --device cuda:99", "--device cuda:99: this machine has"),
        ("short.pt --teacher.arch cnn_small --teacher.shape 1,8,8 --teacher.num-classes 10", "missing, first"),
        ("short.pt", "its architecture cannot be told"),
        ("nan.pt --teacher.shape 1,8,8", "hold NaN or infinite values in 1 tensors, first features.0.weight"),
        ("module.pt", "loading them can run any code: torch.nn.modules.linear.Linear"),
        ("cut.pt", "cannot be read as weights, perhaps cut short"),
        ("text.pt", "is a text file; expected .safetensors or a state dict"),
        ("empty.pt", "is empty"),
        ("nowhere.safetensors", "does not exist; give --teacher.checkpoint, or make one with run.py train-teacher"),
    ],
)
def test_checkpoints_that_cannot_work(here: Path, capsys: pytest.CaptureFixture[str], flags: str, message: str) -> None:
    if "vgg" in flags:
        pytest.importorskip("torchvision", exc_type=(ImportError, RuntimeError))
    write_weights()
    (here / "empty").mkdir()
    assert run(f"--teacher.checkpoint {flags} --budget 40 --out run") == 2
    assert message in one_line(capsys)
    assert not (here / "run").exists()


def test_an_evaluation_set_of_more_classes_than_the_teacher_s(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--teacher own:Linear --teacher.shape 1,8,8 --evaluation.dataset digits --budget 9 --out run") == 2
    assert "has 10 classes, but the teacher answers 4" in one_line(capsys)


# Teachers of one's own


@pytest.mark.parametrize(
    ("flags", "mode"),
    [
        ("own:Linear", "probabilities"),
        ("own:Linear --teacher.scale 3 --teacher.shape 2,7,5 --teacher.label-mode probabilities:4", "probabilities:4"),
        ("own:Linear --teacher.levels 256 --teacher.max-batch 3", "probabilities"),
        ("own:Linear --teacher.mean .5 --teacher.std .25 --teacher.bounds 0,255", "probabilities"),
        ("own:Linear --teacher.label-mode top_k:2 --method static", "top_k:2"),
        ("own:Linear --teacher.label-mode label --method static", "label"),
        ("own:Labels --method static", "label"),
        ("own:Arrays", "probabilities"),
        ("own:make --teacher.scale 2 --teacher.shape 3,8,8", "probabilities"),
    ],
)
def test_teachers_of_one_s_own(flags: str, mode: str) -> None:
    assert run(f"--teacher {flags} --budget 75 --out run {SMALL}") == 0
    result = summary()
    assert (result["spent"], result["label_mode"]) == (75, mode)
    least = -(-75 // 3) if "max-batch" in flags else 1
    assert result["requests"] >= least


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("own:Linear --teacher.label-mode label", "methods that can use it: disguide, dual"),
        ("own:Labels", "--method.name dfme needs a teacher that answers logits or probabilities"),
        ("own:Linear --teacher.label-mode top_k:9", "the teacher has only 4 classes"),
        ("own:Linear --teacher.num-classes 7", "got 7, but the teacher itself says 4"),
        ("own:make --teacher.scale 2", "the teacher's shape is not known"),
        ("own:answer", "--teacher.images: missing; expected an argument of answer, which makes the teacher"),
        ("own:unreachable", "could not be made: OSError: no route to host (own.py, line"),
        ("own:Linear --student.loss cross_entropy --teacher.label-mode label --student.lr 0", "--student.lr"),
        ('own:Linear --out ""', "--out: expected a directory, got an empty name"),
    ],
)
def test_teachers_of_one_s_own_that_cannot_work(
    here: Path, capsys: pytest.CaptureFixture[str], flags: str, message: str
) -> None:
    assert run(f"--budget 75 --out run --teacher {flags}") == 2
    assert message in one_line(capsys)
    assert not (here / "run").exists()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raises", "but it raised ConnectionError: the server went away"),
        ("ends the process", "but it raised SystemExit: 7"),
        ("NaN", "got NaN or infinite values"),
        ("infinity", "got NaN or infinite values"),
        ("one score", "got (16,); if these are labels"),
        ("eight classes", "expected probabilities (16, 4), a row per image and a column per class, got (16, 8)"),
        ("one image less", "expected probabilities (16, 4), a row per image and a column per class, got (15, 4)"),
        ("twice", "a sum that is 1 away from one"),
        ("logits", "if these are logits, start a new run with --teacher.label-mode logits"),
        ("nothing", "expected a tensor, an array or a list of numbers, got NoneType"),
        ("a dict", "expected a tensor, an array or a list of numbers, got dict"),
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
    assert (summary()["spent"], summary()["lost"]) == (90, 16)  # the batch that was served but not answered well


def test_a_lost_answer_is_not_taken_for_a_label(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"--teacher own:Lost --teacher.label-mode label --method static --budget 9 --out run {SMALL}") == 3
    assert "labels from -1 to -1 (-1: its scores were NaN)" in one_line(capsys)


# Limits of the machine


def test_a_full_disk_is_known_before_the_first_query(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9 - 10**5, 10**5))
    assert run(f"--teacher own:Linear --budget 90 --out run {SMALL}") == 2
    assert "MB of free space, got 0.1 MB; free some or choose another --out" in one_line(capsys)
    monkeypatch.undo()
    assert not Path("run/ledger.jsonl").exists()


def test_the_space_asked_for_is_what_checkpoints_take(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(RunDirectory, "require_space", lambda self, needed: asked.append(needed))
    assert run(f"--teacher own:Linear --method static --budget 3000 --student.replay-steps 1 --out run {SMALL}") == 0
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

    monkeypatch.setattr(build, "build_nets", refuse)
    assert run("--teacher own:Linear --budget 90 --out run --device cpu") == 1
    line = one_line(capsys)
    assert "out of memory on cpu" in line
    assert "smaller --method.batch-size" in line


@pytest.mark.parametrize("method", ["dfme", "static"])
def test_a_student_that_diverges_is_not_delivered(capsys: pytest.CaptureFixture[str], method: str) -> None:
    assert run(f"--teacher own:Linear --budget 500 --student.lr 1e30 --method {method} --out run {SMALL}") == 1
    assert "the student has diverged: its student loss is nan; start a new run with a lower" in one_line(capsys)
    assert not Path("run/student.safetensors").exists()


# Other commands and recipes


RECIPES = [path for path in sorted(PROJECT.glob("configs/*.yaml")) if not path.stem.startswith("compare_")]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipes_run_or_say_which_file_they_want(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], path: Path
) -> None:
    flags = "--evaluation.dataset none --budget 20 --method.batch-size 4 --student.arch cnn_small --out run"
    recipe = load_yaml(path)
    if recipe["student"].get("steps"):
        flags += " --student.steps 20"
    checkpoint = recipe["teacher"]["checkpoint"]
    found = (PROJECT / checkpoint).is_file()
    assert run(f"--config {path} {flags}") == (0 if found else 2)
    if found:
        assert summary()["spent"] == 20
    else:
        assert f"expected a file, but {checkpoint!r} does not exist; give" in one_line(capsys)
        stem = Path(checkpoint).stem
        trained = load_yaml(PROJECT / "configs" / "teachers" / f"{stem}.yaml")
        assert trained["out"] == checkpoint  # what train-teacher makes is what the recipe looks for


def test_a_recipe_of_another_command_is_not_listed_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"--config {PROJECT / 'configs/teachers/digits.yaml'}") == 2
    line = one_line(capsys)
    assert line.count("unknown key") <= 8
    assert line.endswith("more like these")


def test_train_clone_evaluate_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train-teacher --data.name digits --epochs 2 --out teacher.safetensors --device cpu") == 0
    clone = f"--teacher.checkpoint teacher.safetensors --evaluation.dataset digits --budget 600 --out run {SMALL}"
    assert run(clone) == 0
    shown = capsys.readouterr().out
    made = summary()
    assert f"agreement         {made['agreement']:.2%}" in shown
    assert made["evaluation_queries"] == 359
    assert made["spent"] == sum(made["spent_by_purpose"].values()) == 600
    assert run("evaluate --student run") == 0
    scores = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert float(scores["agreement"]) == pytest.approx(made["agreement"], abs=1e-4)
    Path("run/report.html").unlink()
    assert run("report run") == 0
    assert Path("run/report.html").is_file()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("bench --rounds 0 --batch-size -1", "--rounds: expected at least 1, got 0; --batch-size: expected 0 or more"),
        ("bench --seconds 0", "--seconds: expected a positive number"),
        ("bench --cases digit", "did you mean digits?"),
        ("check --teacher own:Linear --seed 99999999999999999999", "--seed: expected a whole number from 0"),
        ("train-teacher --data.name cifar10", "7 of 7 files are missing in datasets/cifar-10-batches-py"),
        ("train-teacher --lr 1e30 --epochs 2 --out x.safetensors", "lower --lr"),
        ("train-teacher --data.name shapes --data.shape 1,4,4 --out x.safetensors", "sides of 8 pixels or more"),
        ("train-teacher --data.name digits --data.shape 3,8,8 --out x.safetensors", "its images are 1x8x8"),
    ],
)
def test_other_commands_refuse_in_one_line(capsys: pytest.CaptureFixture[str], line: str, message: str) -> None:
    assert run(line) == 2
    assert message in one_line(capsys)
    assert not Path("x.safetensors").exists()


def test_the_real_process_from_another_directory(here: Path) -> None:
    """One run in a process of its own: no terminal, no installed package, a recipe named relative to the project."""
    words = (
        f"--config configs/digits.yaml --budget 300 --method.batch-size 32 --student.replay-steps 0 --out {here}/out"
    )
    command = [sys.executable, str(PROJECT / "run.py"), *words.split()]
    (here / "elsewhere").mkdir()
    done = subprocess.run(command, cwd=here / "elsewhere", capture_output=True, text=True, timeout=100, check=True)
    assert summary("out")["spent"] == 300
    assert "\r" not in done.stderr  # plain lines, no bar
    assert "300 / 300 queries (100%)" in done.stderr
    assert done.stdout.startswith("budget            300 queries\n")
    assert list((here / "elsewhere").iterdir()) == []
