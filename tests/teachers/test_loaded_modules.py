"""A kind of teacher loads what it needs: no clients, servers and detectors of other kinds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ALWAYS = {"build", "facts", "label_modes", "options", "owner", "owner.checks"}
"""Modules of every teacher, and of the record that a run keeps of it."""

CODE = """
import json, sys
import torch
from dfme.config.settings import TeacherConfig
from dfme.teachers.build import make_teacher
from dfme.teachers.facts import teacher_facts
config = TeacherConfig(kind={kind!r}, shape=(1, 8, 8), num_classes=10)
options = {options!r}
own = (lambda x: x.flatten(1)[:, :10]) if ":" in config.kind else None
teacher_facts(make_teacher(config, options, torch.device("cpu"), own=own), config.kind, options)
names = [name for name in sys.modules if name.startswith("dfme.teachers.")]
print(json.dumps([name.removeprefix("dfme.teachers.") for name in names]))
"""

TORCH = {"local"} | {
    f"local.{name}" for name in ("checks", "names", "pytorch", "safetensors_file", "weights")
}


@pytest.mark.integration
@pytest.mark.parametrize(
    ("kind", "options", "modules"),
    [
        ("torch", {"checkpoint": "teachers/checkpoints/digits.safetensors"}, TORCH),
        ("module:function", {}, {"custom"}),
    ],
)
def test_a_kind_loads_its_own_modules_alone(
    kind: str, options: dict[str, str], modules: set[str]
) -> None:
    code = CODE.format(kind=kind, options=options)
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert set(json.loads(process.stdout)) == ALWAYS | modules
