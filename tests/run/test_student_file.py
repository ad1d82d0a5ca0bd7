"""The student's file by itself: it imports nothing, and what is named for it must make a network."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import dfme
from dfme.cli.main import main
from dfme.errors import UserError
from dfme.run.student_file import load_student_of_run, save_student
from dfme.spec import ImageSpec

SPEC = ImageSpec((1, 8, 8))


class Linear(nn.Sequential):
    def __init__(self, num_classes: int = 10) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, num_classes))


@pytest.mark.parametrize(
    "name", ["os:system", "shutil:rmtree", "builtins:exec", "nowhere:Net", "a:b:c", ":", f"{__name__}:boom"]
)
def test_nothing_is_called_that_makes_no_network(name: str, tmp_path: Path) -> None:
    save_student(tmp_path / "student.safetensors", Linear(), name, SPEC, 10)
    with pytest.raises(UserError, match="its network is "):
        dfme.load_student(tmp_path, arch=name)


def test_a_file_alone_imports_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "imported_by_nobody"
    Path(f"{name}.py").write_text("raise SystemExit('imported')\n")
    weights = tmp_path / "student.safetensors"
    save_student(weights, Linear(), f"{name}:Net", SPEC, 10)
    told = rf"its network is {name}:Net, and no file alone .*: in Python, say dfme.load_student\(path, arch=Net\)"
    with pytest.raises(UserError, match=told):
        dfme.load_student(weights)
    assert main(["export", "--student", str(weights), "--format", "pt2"]) == 2
    assert "no file alone has a module imported" in capsys.readouterr().err
    assert name not in sys.modules
    with torch.no_grad():
        own = dfme.load_student(weights, arch=Linear)(torch.rand(2, 1, 8, 8))
    assert own.shape == (2, 10)
    (tmp_path / "config.yaml").write_text(f"student: {{arch: '{__name__}:Linear'}}\n")  # a run's own says it
    assert load_student_of_run(weights).arch == f"{name}:Net"


def boom(*arguments: object, **options: object) -> None:
    raise SystemExit("called")
