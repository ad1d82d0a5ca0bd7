"""A run is resumed from another directory, and on images that moved; never on other images."""

import contextlib
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import one_line, run
from handmade import cells_here
from small_runs import Metered, clone, student

from dfme.config.yaml_files import load_yaml
from dfme.data import load_dataset
from dfme.errors import UserError

WEIGHTS = Path(__file__).resolve().parents[2] / "teachers" / "checkpoints" / "digits.safetensors"
BEGIN = (
    "--teacher.checkpoint t.safetensors --evaluation.dataset data --evaluation.points 1 --method "
    "knockoff "
    "--method.pool pool.npz --method.batch-size 20 --student.arch cnn_small --budget 40 --out run"
)
LATER = "--resume --budget 60"


def save_pool(path: Path, first: int = 0) -> None:
    images = load_dataset("digits", "train").images[first : first + 90].mul(255).round().byte()
    np.savez(path, images=images.numpy())


def save_folder(root: Path, first: int = 0) -> None:
    image = pytest.importorskip("PIL.Image")
    data = load_dataset("digits", "test")
    for number in range(first, first + 30):
        folder = root / str(int(data.required_labels[number]))
        folder.mkdir(parents=True, exist_ok=True)
        pixels = data.images[number, 0].mul(255).round().byte().numpy()
        image.fromarray(pixels).save(folder / f"{number:03}.png")


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a run was started, with all that it names by relative paths."""
    place = tmp_path_factory.mktemp("begun")
    save_folder(place / "data")
    save_pool(place / "pool.npz")
    shutil.copy(WEIGHTS, place / "t.safetensors")
    with contextlib.chdir(place):
        assert run(BEGIN) == 0
    return place


@pytest.fixture
def home(begun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of where a run was started; the test is somewhere else."""
    place = Path(shutil.copytree(begun, tmp_path / "home"))
    (tmp_path / "away").mkdir()
    save_folder(tmp_path / "away" / "data", first=100)  # others, by the same name
    monkeypatch.chdir(tmp_path / "away")
    return place


def summary(path: Path) -> dict[str, Any]:
    return json.loads((path / "summary.json").read_text())  # type: ignore[no-any-return]


def test_relative_paths_begin_where_the_run_was_started(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(home / "run", home / "there")
    assert run(f"{LATER} --out ../home/run") == 0
    assert Path.cwd().name == "away"
    os.chdir(home)
    assert run(f"{LATER} --out there") == 0
    away, there = summary(home / "run"), summary(home / "there")
    assert away["config_hash"] == there["config_hash"]
    assert away["agreement"] == there["agreement"]
    weights = [
        hashlib.sha256((home / name / "student.safetensors").read_bytes())
        for name in ("run", "there")
    ]
    assert weights[0].digest() == weights[1].digest()
    assert load_yaml(home / "run" / "config.yaml", own=True)["evaluation"]["dataset"] == "data"


def test_images_and_weights_that_moved_are_accepted_and_put_on_record(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    away = Path.cwd()
    for name in ("data", "pool.npz", "t.safetensors"):
        shutil.move(home / name, away / f"moved_{name}")
    moved = "--evaluation.dataset moved_data --method.pool moved_pool.npz "
    moved += "--teacher.checkpoint moved_t.safetensors"
    assert run(f"{LATER} --out ../home/run {moved}") == 0
    assert run("--resume --budget 80 --out ../home/run") == 0
    assert summary(home / "run")["spent"] == 80
    assert run(f"--resume --budget 80 --out ../home/run {moved}") == 0  # finished, and shown again
    capsys.readouterr()


COMPARE = (
    "compare --methods static --seeds 0 --student-steps 2 --label-modes probabilities --jobs 1 "
    "--teacher.checkpoint t.safetensors --evaluation.dataset data --budgets 40 --out cells"
)


@pytest.mark.integration
def test_a_comparison_goes_on_elsewhere_and_never_mixes_images(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with cells_here():
        with contextlib.chdir(home):
            assert run(COMPARE) == 0
        assert run("compare --resume --out ../home/cells --budgets 40,60") == 0
        assert "1 cells were finished before and are kept" in capsys.readouterr().err
        shutil.move(home / "data", "moved")
        more = "compare --resume --out ../home/cells --budgets 40,60,80"
        assert run(f"{more} --evaluation.dataset data") == 2
        assert "evaluation.dataset: images of sha256" in one_line(capsys)
        assert run(f"{more} --evaluation.dataset moved") == 0
    names = {path.parent.name for path in (home / "cells" / "cells").glob("*/summary.json")}
    assert len(names) == 3
    capsys.readouterr()


def test_a_run_is_learnt_from_elsewhere_and_on_its_own_images_alone(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "retrain --run ../home/run --student.steps 2 --out"
    assert run(f"{words} a") == 0
    shutil.move(home / "data", "moved")
    assert run(f"{words} b --evaluation.dataset moved") == 0
    capsys.readouterr()
    assert run(f"{words} c --evaluation.dataset data") == 2
    assert "evaluation.dataset: images of sha256" in one_line(capsys)
    assert not Path("c").exists()


OTHERS = {
    "another data set": ("--evaluation.dataset data", "evaluation.dataset: images of sha256"),
    "another pool": ("--method.pool other.npz", "method.pool: images of sha256"),
    "no data set": ("--evaluation.dataset none", "evaluation.dataset: images of sha256"),
}


@pytest.mark.parametrize(("flags", "says"), OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("budget", [60, 40])
def test_other_images_are_refused_in_one_line(
    home: Path, flags: str, says: str, budget: int, capsys: pytest.CaptureFixture[str]
) -> None:
    save_pool(Path("other.npz"), first=300)
    before = (home / "run" / "ledger.jsonl").read_bytes()
    assert run(f"--resume --budget {budget} --out ../home/run {flags}") == 2
    line = one_line(capsys)
    assert says in line
    assert "(now " in line
    assert (home / "run" / "ledger.jsonl").read_bytes().startswith(before)
    assert summary(home / "run")["spent"] == 40


def test_images_that_changed_in_their_place_are_refused(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_pool(home / "pool.npz", first=5)
    assert run(f"{LATER} --out ../home/run") == 2
    assert "method.pool: images of sha256" in one_line(capsys)


def test_a_run_without_digests_goes_on_as_before(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    digests = json.loads((home / "run" / "data.json").read_text())
    (home / "run" / "data.json").unlink()
    shutil.copytree(home / "data", home / "copied")
    assert run(f"{LATER} --out ../home/run --evaluation.dataset ../home/copied") == 2
    assert "was started with other values of evaluation.dataset (see" in one_line(capsys)
    assert run(f"{LATER} --out ../home/run") == 0
    assert json.loads((home / "run" / "data.json").read_text()) == digests
    capsys.readouterr()


def test_a_teacher_of_ones_own_is_found_where_the_run_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    (home / "weights").mkdir(parents=True)
    (home / "bright_elsewhere.py").write_text(
        "class Bright:\n    shape, num_classes = (1, 8, 8), 2\n\n"
        "    def __init__(self, weights: str) -> None:\n        self.scale = "
        "float(open(weights).read())\n\n"
        "    def __call__(self, x):\n        p = (self.scale * x.mean((1, 2, 3)))[:, None]\n"
        "        return p.new_tensor([[1.0, 0.0]]) + p * p.new_tensor([[-1.0, 1.0]])\n"
    )
    (home / "weights" / "w.txt").write_text("0.9")
    monkeypatch.chdir(home)
    words = (
        "--teacher bright_elsewhere:Bright --teacher.weights weights/w.txt --method.name static "
    )
    words += (
        "--method.batch-size 20 --method.latent-size 8 --student.arch cnn_small "
        "--evaluation.dataset none"
    )
    assert run(f"{words} --evaluation.points 1 --budget 40 --out run") == 0
    monkeypatch.chdir(tmp_path)
    assert run(f"{LATER} --out home/run") == 0
    assert summary(home / "run")["spent"] == 60
    capsys.readouterr()


def test_a_run_from_python_finds_its_images_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, away = tmp_path / "home", tmp_path / "away"
    save_folder(home / "data")
    away.mkdir()
    monkeypatch.chdir(home)
    clone(home / "run", Metered(), budget=40, evaluation={"dataset": "data", "points": 4})
    monkeypatch.chdir(away)
    teacher = Metered()
    result = clone(home / "run", teacher, budget=60, resume=True, evaluation={"points": 4})
    assert result.summary["evaluation"]["name"] == "data"
    assert teacher.served == 20  # the evaluation's answers are on record
    assert student(result.run_dir)
    save_folder(away / "data", first=40)
    with pytest.raises(UserError, match=r"other values of evaluation\.dataset: images of sha256"):
        clone(home / "run", teacher, budget=80, resume=True, evaluation="data")
    assert teacher.served == 20
