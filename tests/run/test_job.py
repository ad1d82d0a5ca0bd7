"""Documents and hashes of jobs: what decides a result. Options without effect in their company are
refused, and they are without effect indeed.
"""

import dataclasses
import enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml
from command_line import parse_extract
from small_runs import Metered, clone, student

from dfme.config.messages import members
from dfme.config.settings import ExtractConfig, Job, TeacherConfig
from dfme.config.values import Option, build, leaves, options_of
from dfme.config.yaml_files import dump_yaml, load_yaml
from dfme.errors import UserError
from dfme.methods import METHODS, SECTIONS
from dfme.methods.configs import DfmeConfig
from dfme.run import checks, recipes
from dfme.run.job import (
    EFFECTS,
    MAY_CHANGE_ON_RESUME,
    PROJECT,
    config_hash,
    differing_keys,
    document,
    locate,
)
from dfme.run.recipes import merged


def make_job(**changes: Any) -> Job:
    options = {"checkpoint": "w.pt", "arch": None}
    return dataclasses.replace(
        Job(ExtractConfig(budget=1000), TeacherConfig(), options, "dfme", DfmeConfig()), **changes
    )


# Documents


def test_document_holds_every_option_with_its_default() -> None:
    paper = document(make_job())
    for option in options_of(ExtractConfig):
        value: Any = paper
        for part in option.key.split("."):
            value = value[part]
        expected = 1000 if option.key == "budget" else option.default
        assert value == (list(expected) if isinstance(expected, tuple) else expected), option.key
    assert (
        paper["teacher"] | {"kind": "torch", "checkpoint": "w.pt", "arch": None} == paper["teacher"]
    )
    assert paper["method"] == {"name": "dfme", **dataclasses.asdict(DfmeConfig())}


def test_document_is_plain_for_any_yaml_reader(tmp_path: Path) -> None:
    options = {"path": Path("a/b"), "colour": enum.Enum("Colour", "red").red, "sizes": (1, 2)}
    paper = document(make_job(teacher_options=options))
    text = dump_yaml(paper)
    (tmp_path / "config.yaml").write_text(text)
    assert yaml.safe_load(text) == load_yaml(tmp_path / "config.yaml") == paper
    assert [paper["teacher"][name] for name in options] == ["a/b", "red", [1, 2]]


def test_document_refuses_an_option_that_no_file_can_hold() -> None:
    with pytest.raises(
        UserError, match=r"teacher\.session: expected .* got an object of type object"
    ):
        document(make_job(teacher_options={"session": object()}))


def test_files_of_dfme_are_named_as_recipes_name_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.pt").touch()
    weights = "teachers/checkpoints/digits.safetensors"
    assert locate(weights) == str(PROJECT / weights)
    assert (locate("own.pt"), locate("nowhere.pt")) == ("own.pt", "nowhere.pt")
    paper = document(make_job(teacher_options={"checkpoint": locate(weights)}))
    assert paper["teacher"]["checkpoint"] == weights


# Hashes and differences


def other(option: Option) -> Any:
    """A different value that the option takes."""
    value, kind = option.default, members(option.type)[0]
    if option.name == "knows":
        return ("lattice",)
    if isinstance(value, bool):
        return not value
    if value in (None, "auto") and kind in (float, int):
        return 0.5 if kind is float else 50
    if isinstance(value, int | float):
        halved = isinstance(value, float) and value
        return value / 2 if halved else value + (1 if isinstance(value, int) else 0.5)
    if isinstance(value, tuple) or get_origin(kind) is tuple:
        return (
            ("1",) if value == () and "tags" in option.key else (1.0,) if value == () else (0.25,)
        )
    texts = ("cnn_small", "cpu") if option.name == "arch" else ("cpu", "other")
    choices = get_args(kind) if get_origin(kind) is Literal else texts
    return next(choice for choice in choices if choice != value)


@pytest.mark.parametrize("option", options_of(ExtractConfig), ids=lambda option: option.key)
def test_hash_and_difference_follow_exactly_the_decisive_keys(option: Option) -> None:
    job, key = make_job(config=ExtractConfig()), option.key
    config, _ = build(ExtractConfig, leaves(job.config) | {key: other(option)})
    changed = dataclasses.replace(job, config=config)
    undecisive = key in MAY_CHANGE_ON_RESUME or key.split(".")[0] in MAY_CHANGE_ON_RESUME
    assert (config_hash(job) == config_hash(changed)) is undecisive
    assert differing_keys(document(job), changed) == ([] if undecisive else [key])


def test_where_steps_are_planned_to_the_end_of_the_budget_any_other_budget_departs() -> None:
    planned, in_rounds = "--budget 10k --student.steps 500", "--student.rounds .5,1"
    for words, larger in (
        (planned, ["budget"]),
        (f"{planned} {in_rounds}", []),
        ("--budget 10k", []),
    ):
        paper = document(parse_extract(words.split()))
        assert differing_keys(paper, {**paper, "budget": 20_000}) == larger
        assert differing_keys(paper, {**paper, "budget": 5_000}) == ["budget"]
        assert differing_keys(paper, paper) == []


def test_difference_names_teacher_and_method_options_and_a_smaller_budget() -> None:
    old = make_job()
    new = make_job(
        config=ExtractConfig(budget=999),
        teacher_options={"checkpoint": "v.pt"},
        method_config=DfmeConfig(student_steps=3),
    )
    assert differing_keys(old, new) == ["budget", "teacher.checkpoint", "method.student_steps"]
    assert differing_keys(old, make_job(config=ExtractConfig(budget=2000))) == []


@pytest.mark.parametrize(
    ("first", "then", "differs"),
    [(0.8, 0.9, False), (0.8, 0.8, False), (0.8, 0.7, True), (None, 0.8, True), (0.8, None, True)],
)
def test_a_goal_may_be_set_higher_on_resume_but_neither_lower_nor_aside(
    first: Any, then: Any, differs: bool
) -> None:
    old, new = (
        make_job(config=ExtractConfig(budget=1000, until_agreement=goal)) for goal in (first, then)
    )
    assert differing_keys(old, new) == ["until_agreement"] * differs


# Options without effect


@pytest.mark.parametrize(
    ("line", "needed"),
    [
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
        (
            "--method knockoff --student.replay-steps 2 --method.epochs 3",
            "--student.replay-steps 0",
        ),
        (
            "--method knockoff --method.root elsewhere",
            "--method.pool mnist,fashion_mnist,cifar10,cifar100,svhn",
        ),
        ("--wandb.project mine", "--wandb.mode"),
    ],
)
def test_an_option_without_effect_is_refused_with_what_would_give_it_one(
    line: str, needed: str
) -> None:
    *_, flag, _ = words = line.split()
    with pytest.raises(UserError) as caught:
        parse_extract(words)
    (problem,) = caught.value.problems
    assert problem.key == flag.removeprefix("--").replace("-", "_")
    assert str(problem.text).startswith(f"takes effect only with {needed}")


@pytest.mark.parametrize(
    "line",
    [
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
    ],
)
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


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("base", "idle"),
    [
        ({}, {"queries": {"choose": "random", "balance": False, "programs": ["noise"]}}),
        ({"schedule": {"kind": "cosine"}}, {"schedule": {"milestones": [0.2], "decay": 0.9}}),
        ({}, {"student": {"shrink": 0.9, "average_every": 3}}),
        ({"student": {"replay_steps": 0}}, {"student": {"replay_capacity": 30, "augment": "both"}}),
        ({"student": {"optimizer": "adam"}}, {"student": {"momentum": 0.1}}),
        ({"student": {"steps": 12}}, {"student": {"replay_steps": 3}}),
        (
            {"method": "dfme"},
            {"estimator": {"every": 2, "synthetic_lr": 1.0}},
        ),
        (
            {"method": "maze"},
            {"method_options": {"seed_images": 3, "gan_weight": 1.0, "critic_steps": 1}},
        ),
        ({"method": "knockoff"}, {"method_options": {"epochs": 3}}),
    ],
    ids=str,
)
def test_what_is_refused_changes_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: dict[str, Any], idle: dict[str, Any]
) -> None:
    for module in (checks, recipes):
        monkeypatch.setattr(module, "idle_problems", lambda *_: [])
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
