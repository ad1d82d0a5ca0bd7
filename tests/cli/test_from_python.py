"""``dfme.extract`` from Python makes the same job as the command line."""

from pathlib import Path
from typing import Any

import pytest

import dfme
from dfme.config.settings import (
    EvaluationConfig,
    ExtractConfig,
    ScheduleConfig,
    StudentConfig,
    TeacherConfig,
)
from dfme.methods.configs import DfmeConfig
from dfme.run.job import document


def plain_teacher(images: Any) -> Any:
    return images


def test_wandb_s_variables_hold_for_what_python_leaves_open(
    fake_build: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PROJECT", "ENTITY", "MODE"):
        monkeypatch.setenv(f"WANDB_{name}", "offline")
    dfme.extract(
        plain_teacher, shape=(3, 8, 8), num_classes=10, budget="2k", wandb={"project": "p"}
    )
    wandb = fake_build[0][0].config.wandb
    assert (wandb.project, wandb.entity, wandb.mode) == ("p", "offline", "off")


def test_extract_from_python_makes_the_same_job(fake_build: list[tuple[Any, ...]]) -> None:
    result = dfme.extract(
        plain_teacher,
        shape=(3, 8, 8),
        num_classes=10,
        budget="2k",
        method_options={"student_steps": 2},
        student={"lr": 0.5},
        evaluation="digits",
        schedule=ScheduleConfig(kind="cosine"),
        out=Path("runs/x"),
    )
    assert result.finished
    (job, teacher, resume, console) = fake_build[0]
    assert (teacher, resume, console) == (plain_teacher, False, False)
    kind = f"{__name__}:plain_teacher"
    assert job.teacher == TeacherConfig(
        kind=kind, shape=(3, 8, 8), num_classes=10, bounds=(0.0, 1.0)
    )
    assert job.method_config == DfmeConfig(student_steps=2, batch_size=8, learn_from="all")
    assert job.config == ExtractConfig(
        recipe="dfme (default)",
        budget=2000,
        out="runs/x",
        student=StudentConfig(lr=0.5, replay_steps=8, replay_batch=64),
        evaluation=EvaluationConfig("digits"),
        schedule=ScheduleConfig(kind="cosine"),
    )
    assert document(job)["teacher"]["kind"] == kind
