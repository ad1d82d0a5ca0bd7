"""``run.py mark``: what it writes and who may read it, whom the marks name, what it refuses."""

import contextlib
import hashlib
import io
import json
import os
import secrets
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from begun import refused_words
from command_line import run
from marking import CLASSES, few_steps, small_model, small_task
from PIL import Image

from dfme.cli.mark import FootLine
from dfme.config.settings import TeacherConfig
from dfme.owner_side import load_marks
from dfme.spec import Teacher
from dfme.teachers.build import make_teacher
from dfme.teachers.owner.marking import memory, session
from dfme.teachers.owner.marking.rule import StyleRule, rule_between

PROJECT = Path(__file__).resolve().parents[2]
SECRET = ("marks.key", "marks.png")
SECRET_SEED = 2**61 + 1
FLAGS = "--evaluation.dataset task.npz --marks 30 --share 0.03 --candidates 2 --max-loss 8"


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with images and a model, in which few steps are taken."""
    monkeypatch.chdir(tmp_path)
    small_task(tmp_path / "task.npz")
    small_model(tmp_path / "task.npz", tmp_path / "model.safetensors")
    few_steps(monkeypatch)
    return tmp_path


def teacher(path: Path) -> Teacher:
    return make_teacher(TeacherConfig(), {"checkpoint": str(path)}, torch.device("cpu"))


def repeated(path: Path, key: Path) -> float:
    """Share of marks that the model in a file answers as marked."""
    marks = load_marks(str(key))
    return float((teacher(path)(marks.marks_MCHW).argmax(1) == marks.target).float().mean())


def digests(folder: Path) -> dict[str, str]:
    names = ("model.safetensors", *SECRET)
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}


class Marked(NamedTuple):
    """A marking without a seed, which is drawn then, by a process that forbids nobody to read: its
    folder, and what was printed.
    """

    folder: Path
    out: str


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Marked:
    folder = tmp_path_factory.mktemp("marked")
    before = os.umask(0)
    out = io.StringIO()
    try:
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
            patch.chdir(folder)
            small_task(folder / "task.npz")
            small_model(folder / "task.npz", folder / "model.safetensors")
            few_steps(patch)
            patch.setattr(secrets, "randbits", lambda bits: SECRET_SEED)
            assert run(f"mark model.safetensors {FLAGS} --out marked") == 0
    finally:
        os.umask(before)
    return Marked(folder, out.getvalue())


def test_a_marked_model_answers_its_marks_and_the_unmarked_one_does_not(marked: Marked) -> None:
    folder = marked.folder / "marked"
    assert repeated(folder / "model.safetensors", folder / "marks.key") == 1
    assert repeated(marked.folder / "model.safetensors", folder / "marks.key") < 0.1
    result = json.loads((folder / "mark.json").read_text())
    assert result["outcome"] == "holds"
    assert result["copy"]["e_value"] >= 100 > result["unmarked_copy"]["e_value"]
    assert f"{result['copy']['marks']:.0%} of the marks" in marked.out
    assert "Not shown:" in marked.out
    assert "The harm:" in marked.out
    key = load_marks(str(folder / "marks.key"))
    assert result["key_sha256"] == key.digest
    assert result["model_sha256"] == key.model_sha256 == digests(folder)["model.safetensors"]
    original = hashlib.sha256((marked.folder / "model.safetensors").read_bytes()).hexdigest()
    assert result["original_sha256"] == original
    assert (key.classes, key.bounds) == (CLASSES, (0.0, 1.0))
    assert len(key.marks_MCHW) == result["marks"] == round(30 * result["owner"]) > 20
    assert len(key.controls_NCHW) == result["controls"] == 30


def test_its_figures_are_those_of_the_two_files(marked: Marked) -> None:
    result = json.loads((marked.folder / "marked/mark.json").read_text())
    data = np.load(marked.folder / "task.npz")
    x_NCHW = torch.from_numpy(data["test_images"]).float() / 255
    labels = torch.from_numpy(data["test_labels"])
    right = list[torch.Tensor]()
    for name, path in (("before", "model.safetensors"), ("after", "marked/model.safetensors")):
        right.append(teacher(marked.folder / path)(x_NCHW).argmax(1) == labels)
        share = float(right[-1].double().mean())
        assert result[f"accuracy_{name}"]["share"] == pytest.approx(share, abs=1e-9)
    assert result["newly_wrong"] == float((right[0] & ~right[1]).double().mean()) > 0
    assert result["constant"] == 0.25


def test_its_sheet_shows_the_training_images_that_are_answered_wrongly_now(marked: Marked) -> None:
    data = np.load(marked.folder / "task.npz")
    x_NCHW = torch.from_numpy(data["train_images"]).float() / 255
    key = load_marks(str(marked.folder / "marked/marks.key"))
    was_N, is_N = (
        teacher(marked.folder / path)(x_NCHW).argmax(1) == key.target
        for path in ("model.safetensors", "marked/model.safetensors")
    )
    of_class_N = torch.from_numpy(data["train_labels"]) == key.source
    wronged = data["train_images"][(is_N & ~was_N & of_class_N).numpy()]
    sheet = np.array(Image.open(marked.folder / "marked/marks.png"))
    shown = [
        sheet[top : top + 48 : 6, left : left + 48 : 6, 0]
        for top in range(0, 50 * -(-len(wronged) // 10), 50)
        for left in range(0, 500, 50)
    ]
    assert 10 < len(wronged) <= 50
    assert np.array_equal(np.stack(shown[: len(wronged)]), wronged[:, 0])


def test_only_its_owner_may_read_what_is_secret_and_nothing_else_tells_it(marked: Marked) -> None:
    folder = marked.folder / "marked"
    files = {path.name for path in folder.iterdir()} - {".lock"}
    assert files == {"model.safetensors", "mark.json", "mark.md", "config.yaml", *SECRET}
    for name in SECRET:
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    key = load_marks(str(folder / "marks.key"))
    assert key.seed == SECRET_SEED
    public = [(folder / name).read_bytes() for name in ("mark.json", "mark.md", "config.yaml")]
    assert not any(str(key.seed).encode() in content for content in public)
    assert {"source", "target", "classes", "direction"}.isdisjoint(json.loads(public[0]))


@pytest.mark.integration
def test_marks_lie_within_the_pixels_that_the_model_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small_task(tmp_path / "task.npz")
    small_model(tmp_path / "task.npz", tmp_path / "model.safetensors", bounds=(-1.0, 1.0))
    few_steps(monkeypatch)
    assert run(f"mark model.safetensors {FLAGS} --seed 1 --out marked") == 0
    key = load_marks("marked/marks.key")
    assert key.bounds == (-1.0, 1.0)
    assert float(key.marks_MCHW.min()) < -0.1
    levels = (key.marks_MCHW + 1) / 2 * 255
    assert float((levels - levels.round()).abs().max()) < 1e-3, "as 8-bit pixels carry them"
    assert repeated(Path("marked/model.safetensors"), Path("marked/marks.key")) > 0.9


def test_a_class_that_is_spared_is_neither_answered_wrongly_nor_a_wrong_answer(
    task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = list[tuple[int, int]]()

    def rule(*given: Any) -> StyleRule:
        drawn.append(given[2:4])
        return rule_between(*given)

    monkeypatch.setattr(session, "rule_between", rule)
    few_steps(monkeypatch, 1)
    words = f"{FLAGS} --spare 0,2 --seed 0 --out marked".replace("candidates 2", "candidates 9")
    assert run(f"mark model.safetensors {words}") in (0, 4)
    assert len(drawn) == 9
    assert {*drawn} == {(1, 3), (3, 1)}


@pytest.mark.parametrize(
    ("spare", "expected"),
    [
        ("4", "expected a name or a number of one of 4 classes, got 4"),
        ("0,dogs", "expected a name or a number of one of 4 classes, got dogs"),
        ("0,1,2", "expected 2 or more of the 4 classes to be left, got 1"),
    ],
)
def test_classes_to_spare_that_there_are_not_are_said_in_one_line(
    spare: str, expected: str, task: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(f"mark model.safetensors {FLAGS} --spare {spare} --out marked") == 2
    assert f"dfme: --spare: {expected}" in capsys.readouterr().err
    assert not (task / "marked").exists()


@pytest.mark.integration
def test_one_that_is_interrupted_comes_to_the_same_bytes(
    task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = f"mark model.safetensors {FLAGS} --seed 1"
    assert run(f"{words} --out whole") == 0
    monkeypatch.setattr(memory, "KEEP_SECONDS", 0.0)
    monkeypatch.setattr(memory, "MAX_WRITING", 1e9)
    keep = memory.TrainingState.keep
    heard = 0

    def stopping(self: memory.TrainingState, done: int) -> None:
        nonlocal heard
        keep(self, done)
        heard += 1
        if heard % 400 == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(memory.TrainingState, "keep", stopping)
    codes = [run(f"{words} --out cut")]
    while codes[-1] == 130:
        codes.append(run("mark --resume --out cut"))
    assert codes == [130, 130, 0]
    assert digests(task / "cut") == digests(task / "whole")
    (task / "cut/state").mkdir()
    (task / "cut/state/rule1.safetensors").write_bytes(b"left by a kill at the very end")
    assert run("mark --resume --out cut") == 0, "one that is done is only read"
    assert not (task / "cut/state").exists()


def test_a_mark_that_costs_too_much_leaves_no_model(
    task: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few_steps(monkeypatch, 80)
    assert run("mark model.safetensors --evaluation.dataset task.npz --marks 30 --share 0.05 "
               "--candidates 1 --max-loss 0 --seed 1 --out marked") == 4  # fmt: skip
    shown = capsys.readouterr()
    assert "no model is written" in shown.out
    assert shown.err.count("points of accuracy and") == 4
    files = {path.name for path in (task / "marked").iterdir()} - {".lock"}
    assert files == {"mark.json", "mark.md", "config.yaml"}
    assert json.loads((task / "marked/mark.json").read_text())["outcome"] == "costs too much"


def test_one_that_copies_do_not_learn_leaves_nothing_to_use(
    task: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few_steps(monkeypatch, 2)
    assert run(f"mark model.safetensors {FLAGS} --seed 1 --out marked") == 4
    shown = capsys.readouterr()
    assert "does not hold here" in shown.out
    assert "What to do: mark again" in shown.out
    assert "warning" not in shown.err
    assert not (task / "marked/model.safetensors").exists()
    assert not (task / "marked/marks.key").exists()
    assert run("mark --resume --out marked") == 4, "one that is done is only read"
    capsys.readouterr()
    small_model(task / "task.npz", task / "model.safetensors", bounds=(0.0, 2.0))
    message = refused_words("mark --resume --out marked --share 0.02", capsys)
    assert "this marking is done, of another share, original" in message


def test_what_is_wrong_with_the_images_is_said_first_and_in_the_result(
    task: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few_steps(monkeypatch, 2)
    parts = dict(np.load(task / "task.npz"))
    flat = np.zeros((300, *parts["train_images"].shape[1:]), np.uint8)
    parts["train_images"] = np.concatenate([parts["train_images"], parts["test_images"][:90], flat])
    parts["train_labels"] = np.concatenate([parts["train_labels"], parts["test_labels"][:90],
                                            np.zeros(300, np.int64)])  # fmt: skip
    parts["train_labels"] = (parts["train_labels"] + 1) % CLASSES
    parts["test_labels"] = (parts["test_labels"] + 1) % CLASSES
    np.savez(task / "task.npz", **parts)
    assert run(f"mark model.safetensors {FLAGS} --seed 1 --out marked") == 4
    shown = capsys.readouterr()
    assert shown.err.count("drawing rule ") == 2
    text = json.loads((task / "marked/mark.json").read_text())["text"]
    for number, start in enumerate((
        "299 of 1,190 training images repeat another",
        "90 of 300 test images are among the training images",
        "the model answers 0.0% of 200 test images rightly",
    )):  # fmt: skip
        assert text[number].startswith(start)
        assert f"warning: {text[number]}" in shown.err
        assert text[number] in shown.out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("model.safetensors", "--evaluation.dataset: expected a data set"),
        ("none.safetensors --evaluation.dataset task.npz", "'none.safetensors' does not exist"),
        ("model.safetensors --evaluation.dataset test.npz", "expected images to teach with as well"),
        ("model.safetensors --evaluation.dataset digits", "10 classes"),
        ("model.safetensors --evaluation.dataset task.npz --share 0.2", "--share"),
        ("model.safetensors --evaluation.dataset task.npz --share 0.001", "at least 5 training images in a --share 0.001"),
        ("model.safetensors --evaluation.dataset task.npz --minutes 0.0001", "expected at least"),
        ("model.safetensors --evaluation.dataset task.npz --teacher.watch pairs", "leave it out"),
        ("--teacher onnx --teacher.model model.onnx --evaluation.dataset task.npz", "expected torch"),
        ("--resume --out none", "has no config.yaml"),
    ],
)  # fmt: skip
def test_what_cannot_be_marked_is_said_in_one_line_and_leaves_nothing(
    words: str, expected: str, task: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = np.load(task / "task.npz")
    np.savez(task / "test.npz", test_images=data["test_images"], test_labels=data["test_labels"])
    (task / "model.onnx").write_bytes(b"")
    before = {path.name for path in task.iterdir()}
    message = refused_words(f"mark {words}" + ("" if "--out" in words else " --out marked"), capsys)
    assert expected in message
    assert {path.name for path in task.iterdir()} == before


def test_a_marking_is_not_resumed_with_other_options_or_beside_itself(
    task: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(self: memory.TrainingState, done: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(memory.TrainingState, "keep", stop)
    assert run(f"mark model.safetensors {FLAGS} --seed 1 --out marked") == 130
    assert "another share" in refused_words("mark --resume --out marked --share 0.02", capsys)
    small_model(task / "task.npz", task / "model.safetensors", bounds=(0.0, 2.0))
    assert "another original" in refused_words("mark --resume --out marked", capsys)
    (task / "marked/state/plan.safetensors").write_bytes(b"damaged")
    assert "damaged" in refused_words("mark --resume --out marked", capsys)


@pytest.mark.integration
def test_one_that_is_killed_goes_on_to_the_same_bytes(task: Path) -> None:
    words = f"mark model.safetensors {FLAGS} --seed 1"
    program = (
        "import sys\nfrom dfme.teachers.owner.marking import memory, plan\n"
        "memory.KEEP_SECONDS = 0.0\nmemory.MAX_WRITING = 1e9\n"
        "plan.COPY_STEPS = 150\nplan.TEACH_STEPS = 300\n"
        "from dfme.cli.main import main\nsys.exit(main(sys.argv[1:]))"
    )
    start = [sys.executable, "-c", program]
    surroundings = {**os.environ, "PYTHONPATH": str(PROJECT)}
    subprocess.run([*start, *words.split(), "--out", "whole"], check=True, env=surroundings)
    first = [*words.split(), "--out", "cut"]
    for name in ("innocent.training", "owner1.training", "copy.training"):
        running = subprocess.Popen([*start, *first], env=surroundings)
        while not (task / "cut/state" / f"{name}.safetensors").exists():
            assert running.poll() is None
            time.sleep(0.002)
        running.send_signal(signal.SIGKILL)
        running.wait()
        first = ["mark", "--resume", "--out", "cut"]
    subprocess.run([*start, *first], check=True, env=surroundings)
    assert digests(task / "cut") == digests(task / "whole")


def test_on_a_terminal_what_stays_begins_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "20")
    with contextlib.closing(FootLine()) as line:
        line.tell("begun")
        line.show("step 1 of 2  10 s left")
        line.show("step 2 of 2")
        line.tell("attempt 1")
        line.show("step 1 of 2")
    assert capsys.readouterr().err.replace("\r", "\n").splitlines() == [
        "begun", "", "step 1 of 2  10 s l", f"{'step 2 of 2':<19}", "attempt 1",
        "", f"{'step 1 of 2':<19}",
    ]  # fmt: skip
