"""What the command line makes of flags, recipes and modules of one's own; Python makes the same job."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import parse

import dfme
from dfme.config.sections import EstimatorConfig
from dfme.config.settings import (
    EvaluationConfig,
    ExtractConfig,
    ScheduleConfig,
    StudentConfig,
    TeacherConfig,
)
from dfme.config.yaml_files import dump_yaml, sealed
from dfme.methods.configs import DfmeConfig, StaticConfig
from dfme.run.job import PROJECT, config_hash, document


def test_without_words_the_digits_are_meant_from_any_directory() -> None:
    job = parse("")
    assert job.teacher == TeacherConfig(kind="torch")
    assert job.teacher_options["checkpoint"] == str(
        PROJECT / "teachers/checkpoints/digits.safetensors"
    )
    assert (job.config.budget, job.config.evaluation.dataset, job.method) == (
        30_000,
        "digits",
        "dfme",
    )


def general(student: StudentConfig | None = None, **changes: Any) -> ExtractConfig:
    """The settings of a run that names a teacher and no recipe."""
    usual = {"recipe": "dfme (default)", "schedule": ScheduleConfig(kind="cosine")}
    student = replace(
        student or StudentConfig(),
        replay_steps=8,
        replay_batch=64,
    )
    return ExtractConfig(**{**usual, **changes, "student": student})


OURS = DfmeConfig(learn_from="all")


def test_a_teacher_without_a_recipe_has_the_general_one() -> None:
    job = parse("--teacher.checkpoint weights.pt")
    assert job.config == general()
    assert job.method_config == OURS
    assert job.teacher_options == {
        "precision": "auto",
        "checkpoint": "weights.pt",
        "arch": None,
        "entry": None,
        "transform_input": None,
    }
    assert parse("--teacher torch --teacher.checkpoint weights.pt") == job


def test_values_come_from_flag_then_file_then_default() -> None:
    job = parse(
        "--student.lr 0.5 --config recipe.yaml --budget 2M --estimator.directions=3 --teacher.mean "
        ".1,.2,.3"
    )
    assert job.config == general(
        StudentConfig(lr=0.5, weight_decay=1e-4),
        recipe="recipe.yaml over dfme (default)",
        budget=2_000_000,
    )
    assert job.method_config == replace(OURS, student_steps=2)
    assert job.estimator == EstimatorConfig(directions=3)
    assert job.teacher == TeacherConfig(shape=(3, 32, 32), mean=(0.1, 0.2, 0.3))
    assert parse("--config recipe.yaml").teacher.mean == (0.5, 0.5, 0.5)


def test_wandb_s_variables_stand_between_flag_and_file(monkeypatch: pytest.MonkeyPatch) -> None:
    tracking = {"mode": "online", "project": "of a stranger", "name": "x"}
    Path("tracked.yaml").write_text(
        dump_yaml({"teacher": {"checkpoint": "weights.pt"}, "wandb": tracking})
    )
    for name, text in {
        "PROJECT": "mine",
        "ENTITY": "team",
        "RUN_GROUP": "g",
        "TAGS": "a,b",
    }.items():
        monkeypatch.setenv(f"WANDB_{name}", text)
    wandb = parse("--config tracked.yaml --wandb.entity other").config.wandb
    assert (wandb.project, wandb.entity, wandb.group, wandb.tags) == (
        "mine",
        "other",
        "g",
        ("a", "b"),
    )
    assert (wandb.mode, wandb.name) == ("online", "x")
    assert parse("").config.wandb.project == "mine"


@pytest.mark.parametrize(
    ("variable", "words", "mode"),
    [
        ("online", "", "off"),
        ("offline", "--config tracked.yaml", "offline"),
        ("dryrun", "--config tracked.yaml", "offline"),
        ("disabled", "--config tracked.yaml", "off"),
        ("disabled", "--config tracked.yaml --wandb.mode online", "online"),
        ("nonsense", "--config tracked.yaml", "online"),
    ],
)
def test_wandb_mode_says_how_a_run_is_tracked_and_never_whether(
    variable: str, words: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = {"teacher": {"checkpoint": "weights.pt"}, "wandb": {"mode": "online"}}
    Path("tracked.yaml").write_text(dump_yaml(content))
    monkeypatch.setenv("WANDB_MODE", variable)
    assert parse(words).config.wandb.mode == mode


STEPS = {"schedule": ScheduleConfig(milestones=(0.2, 0.7))}


@pytest.mark.parametrize(
    ("line", "change"),
    [
        ("--budget 1e6", {"budget": 1_000_000}),
        ("--budget=300_000", {"budget": 300_000}),
        ("--deterministic", {"deterministic": True}),
        ("--deterministic true", {"deterministic": True}),
        ("--deterministic --seed 7", {"deterministic": True, "seed": 7}),
        ("--deterministic false", {}),
        ("--seed 1 --seed 2", {"seed": 2}),
        ("--channels-last no", {"channels_last": "no"}),
        ("--channels_last no", {"channels_last": "no"}),
        ("--device cuda:1", {"device": "cuda:1"}),
        ("--schedule.kind steps --schedule.milestones .2,.7", STEPS),
        ("--schedule.kind steps --schedule.milestones [.2,.7]", STEPS),
        ("--student.weight-decay 1e-3", {"student": StudentConfig(weight_decay=1e-3)}),
        (
            "--evaluation.dataset digits --evaluation.limit 9",
            {"evaluation": EvaluationConfig("digits", limit=9)},
        ),
    ],
)
def test_flags(line: str, change: dict[str, Any]) -> None:
    assert parse(f"--teacher.checkpoint weights.pt {line}").config == general(**change)


def test_common_keys_of_a_teacher() -> None:
    line = (
        "--teacher.num-classes 5 --teacher.label_mode top-k:3 --teacher.bounds -1,1 "
        "--teacher.levels 256"
    )
    expected = TeacherConfig(num_classes=5, label_mode="top-k:3", bounds=(-1.0, 1.0), levels=256)
    assert parse(f"--teacher.checkpoint weights.pt {line}").teacher == expected


def test_another_method_or_kind_sets_the_recipe_s_section_aside(here: Path) -> None:
    assert parse("--config recipe.yaml --method.name static").method_config == StaticConfig(
        batch_size=16
    )
    assert parse("--config recipe.yaml --method static").method == "static"
    ours = replace(OURS, student_steps=2, batch_size=8)
    assert parse("--config recipe.yaml --method dfme").method_config == ours
    job = parse("--config recipe.yaml --teacher own_teachers:make --teacher.scale 2")
    assert job.teacher.mean is None
    assert "checkpoint" not in job.teacher_options
    (here / "short.yaml").write_text("method: static\nteacher: own_teachers:Classifier\n")
    assert parse("--config short.yaml --teacher.weights w").method == "static"


def test_a_class_of_one_s_own_gives_its_own_options() -> None:
    words = "--teacher own_teachers:Classifier --teacher.weights a/b --teacher.names x,y"
    job = parse(f"{words} --teacher.colour blue --teacher.url http://h --teacher.max-batch 8")
    own = {name: str(value) for name, value in job.teacher_options.items()}
    expected = {
        "weights": "a/b",
        "shape": "(1, 8, 8)",
        "colour": "Colour.blue",
        "names": "['x', 'y']",
    }
    assert own == {**expected, "url": "http://h", "retries": "3"}
    assert isinstance(job.teacher_options["weights"], Path)
    assert job.teacher == TeacherConfig(
        kind="own_teachers:Classifier", shape=(1, 8, 8), max_batch=8
    )
    assert parse(f"{words} --teacher.shape 3,4,5").teacher_options["shape"] == (3, 4, 5)


def test_a_function_of_one_s_own_shares_the_common_keys() -> None:
    job = parse(
        "--teacher own_teachers:make --teacher.scale 2 --teacher.shape 1,4,4 --teacher.num-classes "
        "3"
    )
    assert job.teacher_options == {"scale": 2.0, "num_classes": 3, "label_mode": "logits"}
    shared = job.teacher.shape, job.teacher.num_classes, job.teacher.label_mode
    assert shared == ((1, 4, 4), 3, "logits")


@pytest.mark.parametrize(
    "line",
    [
        "",
        "--config recipe.yaml --seed 3 --out runs/x",
        "--teacher.checkpoint weights.pt --student.lr 1e-5 --wandb.mode offline --wandb.tags a,b "
        "--method "
        "static",
        "--teacher own_teachers:Classifier --teacher.weights a/b --teacher.colour blue "
        "--teacher.levels 256",
        "--teacher own_teachers:make --teacher.scale 1e-3 --teacher.bounds -1,1",
    ],
)
def test_a_job_s_document_gives_the_job_again(here: Path, line: str) -> None:
    job = parse(line)
    (here / "written.yaml").write_text(sealed(dump_yaml(document(job))))
    again = parse("--config written.yaml")
    assert again == job  # what is written down is all that holds
    assert document(again) == document(job)
    assert config_hash(again) == config_hash(job)


# From Python


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
