"""Options without effect in their company are refused, and they are without effect indeed."""

from pathlib import Path
from typing import Any

import pytest
from command_line import parse_extract
from small_runs import Metered, clone, student

from dfme.config.settings import ExtractConfig
from dfme.config.values import options_of
from dfme.errors import UserError
from dfme.methods import METHODS, SECTIONS
from dfme.run import checks
from dfme.run.job import EFFECTS
from dfme.run.recipes import merged

IDLE = [
    ("--queries.choose random", "--queries.pool"),
    ("--recipe paper --queries.programs noise", "--queries.procedural or --queries.base"),
    ("--estimator.every 3", "--estimator.kind synthetic"),
    ("--estimator.frequencies .5", "--estimator.direction dct or --estimator.kind auto"),
    (
        "--estimator.kind auto --estimator.form central",
        "--estimator.kind finite_difference,synthetic",
    ),
    ("--student.average-every 5", "--student.average"),
    ("--student.optimizer adam --student.momentum .5", "--student.optimizer sgd"),
    ("--student.steps 900 --student.replay-steps 2", "--student.steps 0"),
    (
        "--student.replay-steps 0 --student.replay-batch 64",
        "--student.replay-steps or --student.steps",
    ),
    ("--schedule.decay .5", "--schedule.kind steps"),
    ("--evaluation.dataset none --evaluation.limit 9", "--evaluation.dataset"),
    ("--method knockoff --student.replay-steps 2 --method.epochs 3", "--student.replay-steps 0"),
    (
        "--method knockoff --method.root elsewhere",
        "--method.pool mnist,fashion_mnist,cifar10,cifar100,svhn",
    ),
    ("--wandb.project mine", "--wandb.mode"),
]

WORKING = [
    "--queries.pool 4 --queries.choose random",
    "--queries.procedural .5 --queries.programs noise",
    "--method procedural --queries.programs noise",
    "--method knockoff --method.epochs 3 --student.replay-batch 64",
    "--schedule.kind steps --schedule.decay .5",
    "--schedule.decay .3",  # the default
    "--wandb.mode offline --wandb.project mine",
    "--recipe paper --student.momentum .5",
    "--config configs/svhn_dfme.yaml --teacher.checkpoint {weights} --evaluation.dataset none "
    "--schedule.kind cosine",
]


@pytest.mark.parametrize(("line", "needed"), IDLE)
def test_an_option_without_effect_is_refused_with_what_would_give_it_one(
    line: str, needed: str
) -> None:
    *_, flag, _ = words = line.split()
    with pytest.raises(UserError) as caught:
        parse_extract(words)
    (problem,) = caught.value.problems
    assert problem.key == flag.removeprefix("--").replace("-", "_")
    assert str(problem.text).startswith(f"takes effect only with {needed}")


@pytest.mark.parametrize("line", WORKING)
def test_an_option_with_an_effect_is_taken(line: str) -> None:
    parse_extract(line.format(weights="teachers/checkpoints/digits.safetensors").split())


def test_files_of_ones_own_are_held_to_it_too_and_records_are_not(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("schedule: {decay: 0.5}\nwandb: {project: mine}\n")
    weights = [
        "--teacher.checkpoint",
        "teachers/checkpoints/digits.safetensors",
        "--config",
        str(file),
    ]
    with pytest.raises(UserError, match=r"^\S+mine\.yaml: schedule\.decay: takes effect only with"):
        parse_extract(weights)
    assert parse_extract([*weights, "--schedule.kind", "steps"]).config.schedule.decay == 0.5
    file.write_text("student: {shrink: 0.5}\n")
    with pytest.raises(UserError, match=r"^\S+mine\.yaml: student\.shrink: takes effect only with"):
        parse_extract(weights)
    assert parse_extract([*weights, "--student.lr", ".1"]).config.student.shrink == 0.5, (
        "its section"
    )


def test_every_rule_is_about_options_that_there_are() -> None:
    options = {option.key for option in options_of(ExtractConfig)} | {"method.name", "method.keeps"}
    for entry in METHODS.values():
        options |= {option.key for option in options_of(entry.config, "method.")}
        options |= {
            option.key
            for name in SECTIONS
            for option in options_of(entry.section(name), f"{name}.")
        }
    for keys, conditions in EFFECTS.items():
        assert {*keys.split(), *(condition.key for condition in conditions)} <= options


SMALL: dict[str, Any] = {
    "student": {"lr": 0.01, "replay_steps": 1, "replay_batch": 8},
    "method_options": {"batch_size": 20},
}
CHANGES_NOTHING: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"queries": {"choose": "random", "balance": False, "programs": ["noise"]}}),
    ({"schedule": {"kind": "cosine"}}, {"schedule": {"milestones": [0.2], "decay": 0.9}}),
    ({}, {"student": {"shrink": 0.9, "average_every": 3}}),
    ({"student": {"replay_steps": 0}}, {"student": {"replay_capacity": 30, "augment": "both"}}),
    ({"student": {"optimizer": "adam"}}, {"student": {"momentum": 0.1}}),
    ({"student": {"steps": 12}}, {"student": {"replay_steps": 3}}),
    ({"method": "dfme"}, {"estimator": {"every": 2, "synthetic_lr": 1.0, "prior": "neighbours"}}),
    (
        {"method": "maze"},
        {"method_options": {"seed_images": 3, "gan_weight": 1.0, "critic_steps": 1}},
    ),
    ({"method": "knockoff"}, {"method_options": {"epochs": 3}}),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("base", "idle"), CHANGES_NOTHING, ids=str)
def test_what_is_refused_changes_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: dict[str, Any], idle: dict[str, Any]
) -> None:
    monkeypatch.setattr(checks, "idle_problems", lambda *_: [])
    without = merged(SMALL, base)
    clone(tmp_path / "without", Metered(), **without)
    clone(tmp_path / "with", Metered(), **merged(without, idle))
    assert student(tmp_path / "with") == student(tmp_path / "without")


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        (100, "the budget of 100 images holds no iteration of dfme, which is 140 images"),
        (400, "the budget of 400 images holds 2 steps of dfme's generator, too few"),
    ],
)
def test_a_budget_that_holds_no_step_of_the_generator_is_said_before_the_first_query(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], budget: int, said: str
) -> None:
    heard: list[str] = []
    teacher = Metered({1: lambda: heard.append(capsys.readouterr().err)})
    options = {"batch_size": 20, "latent_size": 16}
    clone(tmp_path / "run", teacher, budget, method="dfme", method_options=options, progress=True)
    assert said in " ".join(heard[0].split())
    assert "--recipe frugal" in heard[0]
    clone(tmp_path / "static", Metered(), budget, progress=True)
    assert "the budget of" not in capsys.readouterr().err, "nothing to train there"
