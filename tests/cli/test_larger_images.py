"""Above 16 pixels a side a method of no paper trains its students as frugal does; what is given is
used.
"""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import parse

import dfme
from dfme.cli.main import main
from dfme.config.settings import Job, StudentConfig
from dfme.config.yaml_files import load_yaml
from dfme.methods import METHODS
from dfme.run.checks import method_problems
from dfme.spec import LabelMode

BASELINES = ("static", "procedural", "knockoff")
LARGE = (1, 28, 28)
SCORES = LabelMode("probabilities")
TEACHER = "--teacher.checkpoint weights.pt"


def student(
    words: str, shape: tuple[int, int, int] = LARGE, mode: LabelMode = SCORES
) -> StudentConfig:
    """The student's settings of a run of these words on such images, every ``auto`` chosen."""
    return parse(f"{TEACHER} {words}").sized(mode, shape).fitting(mode, shape).config.student


@pytest.mark.parametrize("mode", [SCORES, LabelMode("label")], ids=str)
@pytest.mark.parametrize("method", BASELINES)
def test_a_baseline_trains_as_frugal_does(method: str, mode: LabelMode) -> None:
    own, frugal = student(f"--method {method}", mode=mode), student("--recipe frugal", mode=mode)
    assert own == replace(frugal, replay_steps=0), "which passes make idle"
    assert (own.optimizer, own.lr, own.weight_decay, own.augment) == ("adamw", 0.002, 1.0, "affine")
    assert (own.passes, len(own.rounds), own.loss) == (
        25,
        5,
        "auto" if mode.kind == "label" else "kl",
    )
    named = student(f"--recipe {method}", mode=mode)
    assert named == own, "a recipe by its name is the method's own"


@pytest.mark.parametrize("method", METHODS)
def test_up_to_16_pixels_nothing_changes(method: str) -> None:
    job = parse(f"{TEACHER} --method {method}")
    small = job.sized(SCORES, (3, 16, 16))
    assert small == replace(job, larger=None)
    assert (job.larger is None) is (method not in BASELINES), "papers' methods stay as they are"


@pytest.mark.parametrize(
    "words",
    [
        "--recipe paper --method static",
        "--recipe frugal --method static",
        "--recipe cifar10_procedural",
        "--config configs/digits_static.yaml",
        "--config configs/cifar10_static.yaml --evaluation.dataset none",
        "--config configs/cifar10_knockoff.yaml --evaluation.dataset none --method.pool procedural",
        "--method static --student.replay-steps 0",
    ],
)
def test_what_names_another_training_keeps_it(words: str) -> None:
    assert parse(f"{TEACHER} {words}").larger is None


GIVEN: list[tuple[str, dict[str, Any]]] = [
    ("--student.lr .01", {"lr": 0.01, "optimizer": "sgd", "weight_decay": 5e-4, "decay_images": 0}),
    ("--student.optimizer adam --student.lr 1e-3", {"optimizer": "adam", "lr": 1e-3}),
    ("--student.weight-decay 0", {"weight_decay": 0.0, "optimizer": "sgd", "lr": 0.1}),
    ("--student.momentum 0", {"momentum": 0.0, "optimizer": "sgd"}),
    ("--student.loss l1", {"loss": "l1", "optimizer": "adamw"}),
    ("--student.augment none", {"augment": "none", "passes": 25}),
    ("--student.steps 800", {"steps": 800, "lr": 0.002}),
    (
        "--student.replay-steps 3",
        {"replay_steps": 3, "rounds": (), "passes": 0, "augment": "affine"},
    ),
    ("--student.replay-batch 32", {"replay_batch": 32, "passes": 25}),
    (
        "--student.steps 90 --student.final-share .5",
        {"final_share": 0.5, "rounds": (), "steps": 90},
    ),
    ("--student.steps 3", {"steps": 3, "rounds": ()}),
    ("--student.steps 80 --student.rounds .5,1", {"rounds": (0.5, 1.0), "steps": 80}),
    ("--student.count 2 --student.average .9", {"count": 2, "average": 0.9, "optimizer": "adamw"}),
]


@pytest.mark.parametrize(("words", "expected"), GIVEN, ids=[words for words, _ in GIVEN])
@pytest.mark.parametrize("method", BASELINES)
def test_a_number_that_is_given_is_the_one_that_is_used(
    method: str, words: str, expected: dict[str, Any]
) -> None:
    job = parse(f"{TEACHER} --method {method} {words}")
    sized = job.sized(SCORES, LARGE)
    held = asdict(sized.fitting(SCORES, LARGE).config.student)
    assert {name: held[name] for name in expected} == expected
    assert not [*method_problems(sized)], "and nothing contradicts it"


def test_a_number_of_ones_own_file_is_used_and_epochs_are_taken(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("method: knockoff\nstudent: {lr: 0.03}\n")
    held = student(f"--config {tmp_path / 'mine.yaml'} --student.augment flip")
    assert (held.lr, held.optimizer, held.augment, held.passes) == (0.03, "sgd", "flip", 25)
    held = student("--method knockoff --method.epochs 7")
    assert (held.rounds, held.passes, held.optimizer) == ((), 0, "adamw")


def shown(run: Path) -> dict[str, Any]:
    """The student's settings in the run's config.yaml."""
    settings: dict[str, Any] = load_yaml(run / "config.yaml", own=True)["student"]
    return settings


def dark(images: torch.Tensor) -> torch.Tensor:
    """Scores of three classes by the mean of three parts of an image."""
    return images.flatten(1)[:, :287].unflatten(1, (7, 41)).mean(2)[:, :3].mul(9).softmax(1)


def test_config_yaml_has_the_values_that_hold_and_the_run_goes_on_with_them(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "shape": (1, 17, 17),
        "num_classes": 3,
        "method": "procedural",
        "student": {"arch": "cnn_small", "steps": 10},
        "out": tmp_path / "run",
    }
    dfme.extract(dark, budget=64, **settings)
    held = shown(tmp_path / "run")
    assert (held["optimizer"], held["lr"], held["steps"], held["augment"]) == (
        "adamw",
        0.002,
        10,
        "affine",
    )
    assert (held["rounds"], held["replay_steps"]) == ([0.07, 0.17, 0.4, 0.7, 1.0], 0)
    result = dfme.extract(
        dark, budget=80, out=tmp_path / "run", shape=(1, 17, 17), num_classes=3, resume=True
    )
    assert result.summary["spent"] == 80
    assert shown(tmp_path / "run") == held
    small = {
        **settings,
        "shape": (1, 16, 16),
        "out": tmp_path / "small",
        "student": {"arch": "cnn_small"},
    }
    dfme.extract(lambda images: images.flatten(1)[:, :3].softmax(1), budget=64, **small)
    assert (shown(tmp_path / "small")["optimizer"], shown(tmp_path / "small")["replay_steps"]) == (
        "sgd",
        4,
    )


def test_a_dry_run_says_which_training_it_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "answering.py").write_text(
        "def make():\n    return lambda images: images.flatten(1)[:, :3].softmax(1)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    words = "--teacher answering:make --teacher.shape 1,20,20 --teacher.num-classes 3 --dry-run"
    assert (
        main([*words.split(), *"--method static --budget 200 --student.arch lenet5".split()]) == 0
    )
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "images above 16 pixels a side: the student trains as frugal's does, in 5 rounds, by adamw"
        in said
    )
    assert main([*words.split(), *"--method dfme --budget 200 --student.arch lenet5".split()]) == 0
    assert "as frugal's does" not in capsys.readouterr().out


def test_a_job_of_larger_settings_is_a_job_like_any_other() -> None:
    job = parse(f"{TEACHER} --method static")
    assert isinstance(job.sized(SCORES, LARGE), Job)
    assert job.sized(SCORES, LARGE).larger is None
