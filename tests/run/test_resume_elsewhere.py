"""A run is resumed from another directory, and on images that moved, never on other images; where links
lead elsewhere, nothing is written or deleted there.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from begun import refused_words
from command_line import run
from handmade import cells_here
from processes import summary
from small_runs import Metered, clone, ctrl_c, student
from tables import all_hold, exhaustive

from dfme.audits.compare.engines.pool import start
from dfme.audits.compare.session import Session
from dfme.cli.main import main
from dfme.config.sections import WandbConfig
from dfme.config.yaml_files import load_yaml
from dfme.data import load_dataset
from dfme.errors import DfmeError, RunError, UserError
from dfme.report.wandb_run import WandbRun

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
        image.fromarray(data.images[number, 0].mul(255).round().byte().numpy()).save(
            folder / f"{number:03}.png"
        )


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


def test_relative_paths_begin_where_the_run_was_started(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(home / "run", home / "there")
    assert run(f"{LATER} --out ../home/run") == 0
    assert Path.cwd().name == "away"
    os.chdir(home)
    assert run(f"{LATER} --out there") == 0
    away, there = summary(home / "run"), summary(home / "there")
    assert (away["config_hash"], away["agreement"]) == (there["config_hash"], there["agreement"])
    assert student(home / "run") == student(home / "there")
    assert load_yaml(home / "run" / "config.yaml", own=True)["evaluation"]["dataset"] == "data"


def test_images_and_weights_that_moved_are_accepted_and_put_on_record(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    away = Path.cwd()
    for name in ("data", "pool.npz", "t.safetensors"):
        shutil.move(home / name, away / f"moved_{name}")
    moved = (
        "--evaluation.dataset moved_data --method.pool moved_pool.npz "
        "--teacher.checkpoint moved_t.safetensors"
    )
    assert run(f"{LATER} --out ../home/run {moved}") == 0
    assert run("--resume --budget 80 --out ../home/run") == 0
    assert summary(home / "run")["spent"] == 80
    assert run(f"--resume --budget 80 --out ../home/run {moved}") == 0  # finished, and shown again


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
        assert "evaluation.dataset: images of sha256" in refused_words(
            f"{more} --evaluation.dataset data", capsys
        )
        assert run(f"{more} --evaluation.dataset moved") == 0
    assert (
        len({path.parent.name for path in (home / "cells" / "cells").glob("*/summary.json")}) == 3
    )


def test_a_run_is_learnt_from_elsewhere_and_on_its_own_images_alone(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "retrain --run ../home/run --student.steps 2 --out"
    assert run(f"{words} a") == 0
    shutil.move(home / "data", "moved")
    assert run(f"{words} b --evaluation.dataset moved") == 0
    assert "evaluation.dataset: images of sha256" in refused_words(
        f"{words} c --evaluation.dataset data", capsys
    )
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
    line = refused_words(f"--resume --budget {budget} --out ../home/run {flags}", capsys)
    assert says in line
    assert "(now " in line
    assert (home / "run" / "ledger.jsonl").read_bytes().startswith(before)
    assert summary(home / "run")["spent"] == 40


def test_images_that_changed_in_their_place_are_refused(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_pool(home / "pool.npz", first=5)
    assert "method.pool: images of sha256" in refused_words(f"{LATER} --out ../home/run", capsys)


def test_a_run_without_digests_goes_on_as_before(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    digests = json.loads((home / "run" / "data.json").read_text())
    (home / "run" / "data.json").unlink()
    shutil.copytree(home / "data", home / "copied")
    assert "was started with other values of evaluation.dataset (see" in refused_words(
        f"{LATER} --out ../home/run --evaluation.dataset ../home/copied", capsys
    )
    assert run(f"{LATER} --out ../home/run") == 0
    assert json.loads((home / "run" / "data.json").read_text()) == digests


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
        "--teacher bright_elsewhere:Bright --teacher.weights weights/w.txt --method.name static"
        " --method.batch-size 20 --method.latent-size 8 --student.arch cnn_small"
    )
    assert run(f"{words} --evaluation.dataset none --budget 40 --out run") == 0
    monkeypatch.chdir(tmp_path)
    assert run(f"{LATER} --out home/run") == 0
    assert summary(home / "run")["spent"] == 60


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


# Links, under every name that a run writes

STUDENT = {"lr": 0.01, "replay_steps": 1, "replay_batch": 8, "replay_store": "disk"}
ON_DISK: dict[str, Any] = {"student": STUDENT, "budget": 300}
FILES = "config.yaml ledger.jsonl metrics.jsonl checkpoint.pt checkpoint.previous.pt".split()
FILES += ["student.safetensors", "summary.json"]


@pytest.fixture(scope="module")
def stopped_twice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run stopped at 100 of its 300 images, then at 200, with answers kept on disk."""
    out = tmp_path_factory.mktemp("begun") / "run"
    clone(out, Metered({3: ctrl_c}), **ON_DISK)
    clone(out, Metered({3: ctrl_c}), resume=True, **ON_DISK)
    return out


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.fixture
def unharmed(stopped_twice: Path, tmp_path: Path) -> Callable[[str], str]:
    """Put a link under a name of a copy of the run, go on with it, and give what it said, if it
    stopped.

    The link leads to what lay there, or to a file of somebody else's, beside others that a run
    would clear away.
    """

    def go_on(name: str) -> str:
        out = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        shutil.copytree(stopped_twice, out)
        elsewhere, place = out.with_suffix(".elsewhere"), out / name
        elsewhere.mkdir()
        if place.is_dir():
            shutil.move(place, elsewhere / "target")
            for other in ("000000.bin", "queries-000000399.npz", "000099.items", "mine"):
                (elsewhere / "target" / other).write_bytes(b"mine")
        elif place.exists():
            shutil.move(place, elsewhere / "target")
        else:
            (elsewhere / "target").write_bytes(b"mine")
        place.symlink_to(elsewhere / "target")
        before = contents(elsewhere)
        said = ""
        try:
            clone(out, Metered(), resume=True, **ON_DISK)
        except DfmeError as error:
            said = str(error)
        assert contents(elsewhere) == before
        assert "\n" not in said
        return said

    return go_on


def test_a_link_in_the_place_of_a_folder_is_refused_by_its_name(
    unharmed: Callable[[str], str],
) -> None:
    for name in ("journal", "samples", "replay"):
        assert f"/{name}: it is a link" in unharmed(name)


@pytest.mark.parametrize("which", ["files", *exhaustive("within", "drafts")])
def test_a_link_in_the_place_of_a_file_harms_nothing(
    which: str, stopped_twice: Path, unharmed: Callable[[str], str]
) -> None:
    within = [name for name in contents(stopped_twice) if "/" in name]
    assert {name.partition("/")[0] for name in within} >= {"journal", "samples", "replay"}
    drafts = [f"{name}.tmp" for name in (*FILES, within[0])]
    names = {"files": [*FILES, ".lock"], "within": within, "drafts": drafts}[which]
    all_hold(unharmed, ((name,) for name in names))  # type: ignore[arg-type]


@pytest.mark.integration
def test_wandb_is_not_let_into_a_folder_elsewhere(tmp_path: Path) -> None:
    """It follows the link, so it is not even asked; the run goes on without it."""
    run, elsewhere, lines = tmp_path / "run", tmp_path / "elsewhere", list[str]()
    run.mkdir()
    elsewhere.mkdir()
    (run / "wandb").symlink_to(elsewhere)
    (run / "wandb.json").symlink_to(elsewhere / "file")
    assert WandbRun(WandbConfig(mode="offline"), run, {}, lines.append)._run is None
    assert "wandb: it is a link" in lines[0]
    assert os.listdir(elsewhere) == []


# Comparisons


@pytest.mark.integration
def test_what_a_cell_says_is_not_added_to_a_file_elsewhere(tmp_path: Path) -> None:
    precious, log = tmp_path / "precious", tmp_path / "cell.log"
    precious.write_bytes(b"mine")
    log.symlink_to(precious)
    assert start(["--version"], log, 1).wait(60) == 0
    assert precious.read_bytes() == b"mine"
    assert log.read_text().startswith("dfme ")


def test_the_cells_of_a_comparison_lie_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder of all cells, or that of one: nothing is stopped_twice in what a link leads to."""
    out, elsewhere = tmp_path / "compared", tmp_path / "elsewhere"
    elsewhere.mkdir()
    words = "compare --methods static --seeds 0 --budgets 100 --out".split()
    with monkeypatch.context() as patch:
        patch.setattr(Session, "run", lambda session, stopped: True)
        assert main([*words, str(out)]) == 130
    for name in ("cells", "cells/static-probabilities-100-seed0"):
        place = out / name
        shutil.rmtree(place, ignore_errors=True)
        place.symlink_to(elsewhere)
        assert main(["compare", "--resume", "--out", str(out)]) == RunError.exit_code
        assert f"cannot write into {place}: it is a link" in capsys.readouterr().err
        assert os.listdir(elsewhere) == []
        place.unlink()
        place.mkdir()
