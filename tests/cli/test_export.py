"""run.py export: the file answers as the student does, says what it takes, and is a teacher
again.
"""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import one_line, run

from dfme.config.settings import TeacherConfig
from dfme.nets import build_net
from dfme.run import student_file
from dfme.run.student_file import load_student, save_student
from dfme.spec import ImageSpec
from dfme.teachers.build import make_teacher

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
    assert run(f"export --student {weights} --format {form}") == 2
    assert f"--out: expected a new file in a folder that exists, got '{path}'" in one_line(capsys)


@pytest.mark.integration
def test_a_program_that_answers_otherwise_is_not_written(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dfme.errors import DfmeError

    other = build_net("cnn_small", (1, 8, 8), 7).eval()
    write = student_file._program
    monkeypatch.setattr(
        student_file, "_program", lambda net, *rest: write(_like(other, net), *rest)
    )
    with pytest.raises(
        DfmeError, match=r"the scores differ from the student's by up to .*; not written"
    ):
        student_file.export(weights, "pt2", weights.with_name("x.pt2"))
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

    monkeypatch.setattr(student_file.importlib, "import_module", without)
    assert run(f"export --student {weights}") == 2
    assert "--format onnx: needs the package onnxscript; pip install onnx onnxscript" in one_line(
        capsys
    )
    assert [path.name for path in weights.parent.iterdir()] == ["student.safetensors"]
