"""Recipes and the other commands, whole, as a person starts them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from begun import refused_words
from command_line import SMALL, one_line, run, summary
from tables import exhaustive

from dfme.config.yaml_files import load_yaml
from dfme.run.job import PROJECT
from dfme.run.recipes import whole

pytestmark = pytest.mark.full("pictures")

EVERY = [path.stem for path in PROJECT.glob("configs/*.yaml")]
RECIPES = [name for name in EVERY if not name.startswith(("compare_", "audit"))]
TELLING = ("digits", "cifar10_dfme")


@pytest.mark.parametrize("recipe", [*TELLING, *exhaustive(*sorted({*RECIPES} - {*TELLING}))])
def test_recipes_run_or_say_which_file_they_want(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], recipe: str
) -> None:
    flags = "--evaluation.dataset none --budget 20 --method.batch-size 4 --out run"
    path = PROJECT / "configs" / f"{recipe}.yaml"
    content = whole(load_yaml(path), path)
    if "weights" not in content["student"]:  # which are those of one architecture
        flags += " --student.arch cnn_small"
    if content["student"].get("steps"):
        flags += " --student.steps 20"
    if "teacher" not in content:
        content["teacher"] = {"checkpoint": "teachers/checkpoints/digits.safetensors"}
        flags += f" --teacher.checkpoint {content['teacher']['checkpoint']}"
    checkpoint = content["teacher"]["checkpoint"]
    exists = (PROJECT / checkpoint).is_file()
    assert run(f"--config {path} {flags}") == (0 if exists else 2)
    if exists:
        assert summary()["spent"] == 20
    else:
        assert f"expected a file, but {checkpoint!r} does not exist; give" in one_line(capsys)
        stem = Path(checkpoint).stem
        assert (
            load_yaml(PROJECT / "configs" / "teachers" / f"{stem}.yaml")["out"] == checkpoint
        )  # what train-teacher makes is what the recipe looks for


def test_a_recipe_of_another_command_is_not_listed_line_by_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = refused_words(f"--config {PROJECT / 'configs/teachers/digits.yaml'}", capsys)
    assert line.count("unknown key") <= 8
    assert line.endswith("more like these")


@pytest.mark.exhaustive
def test_train_clone_evaluate_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run("train-teacher --data.name digits --epochs 2 --out teacher.safetensors --device cpu")
        == 0
    )
    words = "--teacher.checkpoint teacher.safetensors --evaluation.dataset digits --budget 600"
    assert run(f"{words} --out run {SMALL}") == 0
    output = capsys.readouterr().out
    totals = summary()
    assert f"agreement         {totals['agreement']:.2%}" in output
    assert totals["evaluation_queries"] == 359
    assert totals["spent"] == sum(totals["spent_by_purpose"].values()) == 600
    assert run("evaluate --student run") == 0
    lines = capsys.readouterr().out.splitlines()
    assert float(
        dict(re.split(" {2,}", line, maxsplit=1) for line in lines)["agreement"]
    ) == pytest.approx(totals["agreement"], abs=1e-4)
    Path("run/report.html").unlink()
    assert run("report run") == 0
    assert Path("run/report.html").is_file()


@pytest.mark.integration
def test_the_real_process_from_another_directory(here: Path) -> None:
    """One run in a process of its own: no terminal, no installed package."""
    words = (
        "--config configs/digits.yaml --budget 300 --method.batch-size 32 --student.replay-steps 0"
    )
    command = [sys.executable, str(PROJECT / "run.py"), *words.split(), "--out", str(here / "out")]
    where = here / "elsewhere"
    where.mkdir()
    process = subprocess.run(
        command, cwd=where, capture_output=True, text=True, timeout=100, check=True
    )
    assert summary("out")["spent"] == 300
    assert "\r" not in process.stderr  # plain lines, no bar
    assert "300 / 300 queries (100%)" in process.stderr
    assert process.stdout.startswith("budget            300 queries\n")
    assert list((here / "elsewhere").iterdir()) == []
