"""The day with a GPU, without one: the script's commands are understood, its tables hold what was
left.
"""

import json
import os
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import parse_extract
from safetensors.torch import save_file

from dfme.cli import audit, compare, train_teacher
from dfme.cli.arguments import arguments_of
from research import bench, gradients
from research.gpu_tables import main

ROOT = Path(__file__).resolve().parents[2]


INPUTS = {"train-teacher": train_teacher, "research.bench": bench, "research.gradients": gradients}
PLANS = {
    "extract": parse_extract,
    "compare": compare.plan_of,
    "audit": audit.plan_of,
    "pytest": list,
}


def script(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TOY": "", "PYTHON": "true", **more}
    command = ["bash", str(ROOT / "research" / "gpu_day.sh"), *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30)


@pytest.mark.integration
@pytest.mark.parametrize("toy", ["", "1"])
def test_every_command_is_understood(
    toy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    images, labels = np.zeros((200, 3, 32, 32), np.uint8), np.arange(200) % 10
    for task in ("plates", "photos"):
        (tmp_path / f"{task}.safetensors").touch()
        np.savez(tmp_path / f"{task}.npz", test_images=images, test_labels=labels)
    said = script("--dry-run", "--out", str(tmp_path), TASKS=str(tmp_path), TOY=toy).stdout
    lines = [line.split("\t") for line in said.splitlines()]
    assert len({name for name, _ in lines}) == (11 if toy else 15)
    for _, text in lines:
        words = [word for word in shlex.split(text)[1:] if word not in ("run.py", "-m")]
        if words[0] in INPUTS:
            arguments_of(words[1:], INPUTS[words[0]].INPUTS).finish([])
        else:
            PLANS[words[0]](words[1:])
    assert len([*tmp_path.iterdir()]) == 4  # it made nothing


@pytest.mark.integration
def test_a_step_that_is_none_missing_images_and_a_useless_teacher_are_named(tmp_path: Path) -> None:
    refused = script("test")
    assert (refused.returncode, refused.stderr[:38]) == (
        2,
        "gpu_day: test: expected a step: tests ",
    )
    lacking = script("--out", str(tmp_path), "paper", TASKS="nowhere").stdout
    assert (
        "paper: expected nowhere/plates.npz; it is made by: python -m research.tasks plates"
        in lacking
    )
    assert not (tmp_path / "paper" / "finished").exists()
    (tmp_path / "plates.npz").touch()
    teach = tmp_path / "teach"
    teach.write_text(
        "#!/bin/sh\n[ $2 = train-teacher ] || exit 0\necho out: accuracy $RIGHT on the test part\n"
    )
    teach.chmod(0o755)
    said = {"PYTHON": str(teach), "TASKS": str(tmp_path)}
    useless = script("--out", str(tmp_path), "paper", RIGHT="11.70%", **said).stdout
    assert "paper: the teacher is right on 11 %, expected at least 70" in useless
    assert not (tmp_path / "paper" / "finished").exists()
    assert (
        "paper: finished" in script("--out", str(tmp_path), "paper", RIGHT="98.75%", **said).stdout
    )


def test_tables_hold_runs_timings_and_what_is_unfinished(tmp_path: Path) -> None:
    for folder in (tmp_path / "students", tmp_path / "speed"):
        folder.mkdir()
        (folder / "machine.txt").write_text("commit\nGPU\n")
        (folder / "commands.tsv").write_text("0\t7\tfirst\n124\t540\tsecond\n")
    (tmp_path / "students" / "finished").touch()
    for name, weight in (("eager", 1.0), ("again", 1.25)):
        (run := tmp_path / "students" / name).mkdir()
        (run / "summary.json").write_text('{"spent": 30}')
        save_file({"w": torch.tensor([weight])}, run / "student.safetensors")
    timed = "a GPU, fp32\n\n| case | loop ms |\n|---|---:|\n| resnet | {} |\n"
    (tmp_path / "speed" / "ieee.log").write_text(timed.format("9.0") + timed.format("8.0"))
    main([str(tmp_path), "students", "bench", "speed"])
    tables = [
        json.loads((tmp_path / step / "table.json").read_text()) for step in ("students", "speed")
    ]
    assert [run["largest difference"] for run in tables[0]["tables"]["Runs"]] == [0.0, 0.25]
    assert tables[1]["tables"]["ieee"]["rows"] == [{"case": "resnet", "loop ms": "8.0"}]
    assert "    second    # exit code 124, 540 s" in (tmp_path / "speed" / "table.md").read_text()
    day = json.loads((tmp_path / "day.json").read_text())
    assert day[1] == {
        "step": "speed",
        "state": "unfinished",
        "seconds": 547,
        "machine": "commit; GPU",
    }
