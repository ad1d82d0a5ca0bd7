"""Documents and hashes of jobs: what decides a result."""

import dataclasses
import enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml
from command_line import parse_extract

from dfme.config.messages import members
from dfme.config.settings import ExtractConfig, Job, TeacherConfig
from dfme.config.values import Option, build, leaves, options_of
from dfme.config.yaml_files import dump_yaml, load_yaml
from dfme.errors import UserError
from dfme.methods.configs import DfmeConfig
from dfme.run.job import (
    MAY_CHANGE_ON_RESUME,
    PROJECT,
    config_hash,
    differing_keys,
    document,
    locate,
)


def make_job(**changes: Any) -> Job:
    options = {"checkpoint": "w.pt", "arch": None}
    job = Job(ExtractConfig(budget=1000), TeacherConfig(), options, "dfme", DfmeConfig())
    return dataclasses.replace(job, **changes)


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
    assert locate("own.pt") == "own.pt"
    assert locate("nowhere.pt") == "nowhere.pt"
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
    values = leaves(job.config)
    config, _ = build(ExtractConfig, values | {key: other(option)})
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
