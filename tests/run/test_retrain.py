"""A fresh student on what a run paid for: nothing is asked again, and only the answers count."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import Metered, clone, no_pictures

import dfme
from dfme.cli.main import main
from dfme.config.settings import EvaluationConfig, ExtractConfig, ScheduleConfig, StudentConfig
from dfme.config.yaml_files import load_yaml
from dfme.data import load_dataset
from dfme.errors import RunError, UserError
from dfme.run.retrain import retrain

PAID = 600
DIGITS = {"dataset": "digits", "points": 2, "limit": 200}


@pytest.fixture(autouse=True)
def _no_pictures() -> Iterator[None]:
    with no_pictures():
        yield


@pytest.fixture(scope="module")
def paid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that bought good answers and hardly learnt from them."""
    out = tmp_path_factory.mktemp("paid") / "run"
    with no_pictures():
        clone(out, Metered(), PAID, evaluation=DIGITS, student={"lr": 1e-6, "replay_steps": 1, "loss": "kl"})
    return out


@pytest.fixture
def run(paid: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(paid, tmp_path / "run"))


def settings(**changes: Any) -> ExtractConfig:
    student = StudentConfig(
        **{"arch": "cnn_small", "lr": 0.05, "steps": 60, "loss": "kl", **changes.pop("student", {})}
    )
    evaluation = EvaluationConfig(**{**DIGITS, **changes.pop("evaluation", {})})
    return ExtractConfig(
        student=student, evaluation=evaluation, schedule=ScheduleConfig("cosine"), device="cpu", **changes
    )


def quiet(line: str) -> None:
    """Nobody listens."""


def test_the_queries_are_worth_what_a_good_training_makes_of_them(run: Path, tmp_path: Path) -> None:
    files = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    made = retrain(run, tmp_path / "again", settings(), quiet)
    source = json.loads((run / "summary.json").read_text())
    assert made["agreement"] > source["agreement"] + 0.15
    assert made["source"]["agreement"] == source["agreement"]
    assert {path: path.read_bytes() for path in files} == files, "the run stays as it is"


@pytest.mark.exhaustive
def test_what_it_scores_is_what_the_teacher_would_have_said(run: Path, tmp_path: Path) -> None:
    made = retrain(run, tmp_path / "again", settings(), quiet)
    data = load_dataset("digits", "test", shape=(1, 8, 8)).subset(200)
    images = data.batch(slice(None))
    truth, student = Metered()(images).argmax(dim=1), dfme.load_student(tmp_path / "again")(images).argmax(dim=1)
    assert made["agreement"] == pytest.approx((truth == student).double().mean().item())
    assert made["accuracy"] == pytest.approx((student == data.labels).double().mean().item())
    assert made["teacher_accuracy"] == pytest.approx((truth == data.labels).double().mean().item())


def test_what_is_written(run: Path, tmp_path: Path) -> None:
    told: list[str] = []
    out = tmp_path / "again"
    made = retrain(run, out, settings(seed=5), told.append)
    assert json.loads((out / "summary.json").read_text()) == made
    assert (made["method"], made["spent"], made["evaluation_queries"], made["answers"]) == ("retrain", 0, 0, PAID)
    assert (made["student_steps"], made["students"], made["seed"]) == (60, 1, 5)
    assert made["source"] | {"run": str(run), "method": "static", "spent": PAID} == made["source"]
    assert load_yaml(out / "config.yaml")["method"] == {"name": "retrain", "run": str(run)}
    assert sorted(path.name for path in out.iterdir()) == [
        ".lock",
        "config.yaml",
        "student.safetensors",
        "summary.json",
    ]
    assert len(told) == 10
    assert re.fullmatch(r"60 / 60 steps  agreement [\d.]+%  loss [\d.]+", told[-1])


def test_a_seed_decides_everything_and_nothing_outside_is_moved(run: Path, tmp_path: Path) -> None:
    students = []
    for number, seed in enumerate((1, 1, 2)):
        torch.manual_seed(number)
        before = torch.get_rng_state()
        retrain(run, tmp_path / str(number), settings(seed=seed, student={"steps": 10}), quiet)
        assert torch.equal(torch.get_rng_state(), before)
        students.append((tmp_path / str(number) / "student.safetensors").read_bytes())
    assert students[0] == students[1] != students[2]


@pytest.mark.exhaustive
def test_an_ensemble(run: Path, tmp_path: Path) -> None:
    student = {"count": 2, "steps": 120}
    made = retrain(run, tmp_path / "again", settings(student=student), quiet)
    assert (made["students"], made["student_steps"]) == (2, 120)
    assert made["vote_agreement"] > 0.2


@pytest.mark.exhaustive
def test_held_back_answers_are_on_record_too(tmp_path: Path) -> None:
    clone(tmp_path / "run", Metered(), 900)
    recorded = json.loads((tmp_path / "run" / "summary.json").read_text())["evaluation"]
    made = retrain(tmp_path / "run", tmp_path / "again", settings(evaluation={"dataset": "none"}), quiet)
    assert made["evaluation"] == recorded
    assert recorded["held_back"]
    assert made["accuracy"] is None
    assert 0 < made["agreement"] <= 1


def test_what_is_not_there_is_said(run: Path, tmp_path: Path) -> None:
    told: list[str] = []
    clone(tmp_path / "small", Metered(), student={"lr": 0.01, "replay_steps": 1, "replay_capacity": 100})
    made = retrain(tmp_path / "small", tmp_path / "again", settings(evaluation={"dataset": "none"}), told.append)
    assert made["answers"] == 100
    assert told[0].startswith("100 of 400 paid answers are kept")


def test_what_cannot_work(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has answers to 200 evaluation images on record, but here are 100"):
        retrain(run, tmp_path / "again", settings(evaluation={"limit": 100}), quiet)
    with pytest.raises(UserError, match="expected a new or empty directory"):
        retrain(run, run, settings(), quiet)
    clone(tmp_path / "none", Metered(), student={"replay_steps": 0})
    with pytest.raises(UserError, match="kept none of its paid answers"):
        retrain(tmp_path / "none", tmp_path / "again", settings(), quiet)
    (run / "checkpoint.pt").write_bytes(b"")
    with pytest.raises(RunError, match=r"checkpoint\.pt: expected a whole checkpoint"):
        retrain(run, tmp_path / "again", settings(), quiet)
    assert not (tmp_path / "again").exists()


# The command


def summary(out: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return content


def test_the_command_trains_as_the_run_did_unless_told_otherwise(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["retrain", "--run", str(run)]) == 0
    out, source = tmp_path / "run-retrained", summary(run)
    made = summary(out)
    for name in ("student_steps", "seed", "student_arch", "evaluation"):
        assert made[name] == source[name], name
    shown = capsys.readouterr().out
    assert f"{made['agreement']:.2%} (the run's own student: {source['agreement']:.2%})" in shown
    assert f"answers           {PAID} of {run} (static); no query was asked" in shown
    flags = ["--student.arch", "cnn_medium", "--student.steps", "12", "--seed", "4", "--out", str(tmp_path / "other")]
    assert main(["retrain", "--run", str(run), *flags]) == 0
    made = summary(tmp_path / "other")
    assert (made["student_arch"], made["student_steps"], made["seed"]) == ("cnn_medium", 12, 4)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("", "--run: missing; expected the run directory"),
        ("--run nowhere", "--run: expected a run directory, but 'nowhere' has no config.yaml"),
        ("--run run --student.lr 0", "--student.lr: expected a positive number, got 0"),
        ("--run run --student.arhc lenet5", "--student.arhc: unknown flag; did you mean --student.arch?"),
        ("--run run --out run", "--out: expected a new or empty directory, got 'run'; choose another --out"),
        ("--run run --device gpu", "--device: expected auto, cpu, cuda or cuda:N, got 'gpu'"),
        ("--run run --budget 3", "--budget: unknown flag"),
        ("--run run --student.arch lenet6", "--student.arch: unknown net 'lenet6'; did you mean lenet5?"),
    ],
)
def test_mistakes_are_named(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flags: str, message: str
) -> None:
    monkeypatch.chdir(run.parent)
    assert main(["retrain", *flags.split()]) == 2
    assert message in capsys.readouterr().err
