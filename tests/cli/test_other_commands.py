"""Commands beside extract: a teacher is trained and checked, a student scored and exported."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from begun import refused_words
from command_line import one_line, run

from dfme.config.settings import TeacherConfig
from dfme.nets import build_net
from dfme.run import student_file as student_file_module
from dfme.run.student_file import load_student, save_student
from dfme.spec import ImageSpec
from dfme.teachers.build import make_teacher


class ToyTeacher:
    """Softmax of two fixed directions, rounded; with ``drift`` every answer is a little
    different.
    """

    num_classes = 2

    def __init__(self, decimals: int | None = None, drift: float = 0.0) -> None:
        from dfme.spec import ImageSpec, LabelMode, TeacherInfo

        self.info = TeacherInfo()
        self.spec = ImageSpec((1, 2, 2), levels=256)
        self.label_mode = LabelMode("probabilities", decimals)
        self.seen = 0
        self._drift = drift

    def __call__(self, images: Any) -> Any:
        import torch

        self.seen += len(images)
        p = (0.3 + 0.4 * images[:, 0, 0, 0] + self._drift * self.seen).double()
        if self.label_mode.decimals is not None:
            p = p.round(decimals=self.label_mode.decimals)
        return torch.stack([p, 1 - p], dim=1)


def described(text: str) -> dict[str, str]:
    """The lines of a check that describe the answers, before the empty one."""
    return dict(line.split(maxsplit=1) for line in text.partition("\n\n")[0].splitlines())


def test_check_says_what_the_answers_are_like() -> None:
    from dfme.cli.preflight import OPEN, examine
    from dfme.estimators.preflight.measure import preflight_images

    teacher = ToyTeacher(decimals=3)
    text = examine(teacher, images=20, seed=0)
    lines = described(text)
    assert lines["images"] == "1x2x2 within 0 and 1, as 256 levels, any number in one call"
    assert lines["answers"] == "probabilities:3, rounded to 3 decimals"
    assert lines["classes"] == "2, of which noise shows 2"
    assert lines["deterministic"].startswith("yes")
    assert lines["batches"].startswith("do not matter")
    assert lines["queries"] == f"{teacher.seen} images charged (check), in 10 requests"
    assert teacher.seen == 40 + preflight_images(OPEN, teacher.spec) == 264
    table, recommended = text.partition("\n\n")[2].splitlines()[1:7], text.splitlines()[-1]
    assert [row.split()[0] for row in table] == ["levels", "1", "2", "4", "8", "16"]
    chosen = (
        "--estimator.kind finite_difference --estimator.objective kl --estimator.space lattice "
    )
    assert recommended.startswith(f"recommended: {chosen}")
    drifting = examine(ToyTeacher(drift=1e-4), images=20, seed=0)
    assert "probabilities, not rounded" in drifting
    assert "no: the same images' answers differ by up to 0.002" in drifting


def test_a_trained_teacher_can_be_checked(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run("train-teacher --data.name digits --epochs 1 --threads 1 --out made/t.safetensors") == 0
    )
    trained = capsys.readouterr()
    assert trained.out.startswith("made/t.safetensors: accuracy ")
    assert trained.err.splitlines()[-1].startswith(
        "epoch 1/1  loss "
    )  # a slow step has a line before it
    assert run("check --teacher.checkpoint made/t.safetensors --images 4") == 0
    lines = described(capsys.readouterr().out)
    assert lines["images"].startswith("1x8x8 within 0 and 1")
    assert lines["queries"].startswith("360 images charged")


OWN_SCORED = """
from dfme.run.student_file import load_student

def make(student: str):
    teacher = load_student(student)
    teacher.label_mode = "logits"
    return teacher
"""


def test_evaluate_scores_a_student_beside_its_teacher(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A student that is its own teacher agrees with it everywhere, and is as accurate."""
    from dfme.nets import build_net
    from dfme.run.student_file import save_student
    from dfme.spec import ImageSpec

    for name, shape in (("student.safetensors", (1, 8, 8)), ("other.safetensors", (1, 9, 9))):
        save_student(
            here / name, build_net("cnn_small", shape, 10), "cnn_small", ImageSpec(shape), 10
        )
    (here / "own_scored.py").write_text(OWN_SCORED)
    words = (
        "evaluate --teacher own_scored:make --teacher.student student.safetensors"
        " --evaluation.dataset digits"
    )
    assert run(f"{words} --student student.safetensors --evaluation.limit 50") == 0
    lines = dict(line.rsplit(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert (lines["agreement"], lines["kl"].removeprefix("-")) == ("1.0000", "0.0000")
    assert (lines["accuracy"], lines["evaluation queries"]) == (lines["teacher accuracy"], "50")
    assert "it is for images 1x9x9 within 0 and 1, as floats and 10 classes" in refused_words(
        f"{words} --student other.safetensors", capsys
    )


# Export

BOUNDS = (-1.0, 1.0)
LOADED = {"onnx": ("model", {}), "pt2": ("program", {"trust": True})}


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "run" / "student.safetensors"
    path.parent.mkdir()
    with torch.random.fork_rng():
        torch.manual_seed(3)
        net = build_net("cnn_small", (1, 8, 8), 7)
    save_student(path, net, "cnn_small", ImageSpec((1, 8, 8), BOUNDS, 256), 7)
    return path


def metadata(path: Path) -> dict[str, str]:
    if path.suffix == ".onnx":
        session = importlib.import_module("onnxruntime").InferenceSession(str(path))
        return dict(session.get_modelmeta().custom_metadata_map)
    facts_in_file = dict.fromkeys(("input", "output", "bounds", "shape", "num_classes"), "")
    torch.export.load(path, extra_files=facts_in_file)
    return {
        name: text.decode() if isinstance(text, bytes) else text
        for name, text in facts_in_file.items()
    }


@pytest.mark.integration
@pytest.mark.parametrize("form", ["pt2", "onnx"])
def test_a_student_comes_back_as_a_teacher(
    form: str, weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime") if form == "onnx" else ():
        pytest.importorskip(package)
    assert run(f"export --student {weights.parent} --format {form}") == 0
    printed, path = capsys.readouterr().out, weights.with_suffix(f".{form}")
    assert str(path) in printed
    assert "64 random images: scores differ by" in printed
    facts_in_file = metadata(path)
    assert facts_in_file["input"] == "images: float32 (any number, 1, 8, 8) within -1 and 1"
    facts = [json.loads(facts_in_file[name]) for name in ("bounds", "shape", "num_classes")]
    assert facts == [[-1, 1], [1, 8, 8], 7]
    option, more = LOADED[form]
    config = TeacherConfig(kind=form, bounds=BOUNDS, label_mode="logits")
    teacher = make_teacher(config, {option: str(path), **more}, torch.device("cpu"))
    assert (teacher.spec.shape, teacher.num_classes) == ((1, 8, 8), 7)
    student = load_student(weights)
    for images in (1, 5):
        x = torch.rand(images, 1, 8, 8, generator=torch.Generator().manual_seed(images)) * 2 - 1
        with torch.no_grad():
            assert torch.allclose(teacher(x), student(x), atol=1e-5)
    assert f"--out: expected a new file in a folder that exists, got '{path}'" in refused_words(
        f"export --student {weights} --format {form}", capsys
    )


@pytest.mark.integration
def test_a_program_that_answers_otherwise_is_not_written(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dfme.errors import DfmeError

    other = build_net("cnn_small", (1, 8, 8), 7).eval()
    write = student_file_module._program
    monkeypatch.setattr(
        student_file_module, "_program", lambda net, *rest: write(_like(other, net), *rest)
    )
    with pytest.raises(
        DfmeError, match=r"the scores differ from the student's by up to .*; not written"
    ):
        student_file_module.export(weights, "pt2", weights.with_name("x.pt2"))
    assert not weights.with_name("x.pt2").exists()


def _like(net: Any, facts: Any) -> Any:
    net.arch = facts.arch
    return net


def test_a_missing_package_is_named(
    weights: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    imported = importlib.import_module

    def without(name: str, package: str | None = None) -> Any:
        if name == "onnxscript":
            raise ModuleNotFoundError(name)
        return imported(name, package)

    monkeypatch.setattr(student_file_module.importlib, "import_module", without)
    assert run(f"export --student {weights}") == 2
    assert "--format onnx: needs the package onnxscript; pip install onnx onnxscript" in one_line(
        capsys
    )
    assert [path.name for path in weights.parent.iterdir()] == ["student.safetensors"]
