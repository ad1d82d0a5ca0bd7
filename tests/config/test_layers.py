"""Layers of options: which one wins, who said it, and how a message names it."""

from typing import Any

import pytest

from dfme.config.layers import BARE, Author, Layer, Settings, choose, value_of
from dfme.config.settings import ExtractConfig, StudentConfig
from dfme.config.values import options_of
from dfme.errors import Problem, UserError

OPTIONS = options_of(ExtractConfig)
RECIPE = Layer(Author.RECIPE, {"student": {"lr": 0.2, "momentum": 0.5}, "elsewhere": 1})
FILE = Layer(Author.FILE, {"student": {"lr": 0.3}, "seed": 4, "wandb": {"project": "p"}}, "a.yaml")
ENVIRONMENT = Layer(Author.ENVIRONMENT, {"wandb": {"entity": "e"}})


def flags(**names: Any) -> Layer:
    """Flags as they were typed, with dashes; a dot is written as two underscores."""
    content = {name.replace("__", "."): value for name, value in names.items()}
    typed = {key: f"--{key.replace('_', '-')}" for key in content}
    return Layer(Author.FLAG, content, names=typed)


def refusal(settings: Settings, *problems: Problem) -> str:
    with pytest.raises(UserError) as caught:
        settings.finish(problems)
    return str(caught.value)


def test_the_last_layer_that_sets_an_option_wins_and_is_its_origin() -> None:
    settings = Settings([RECIPE, FILE, ENVIRONMENT, flags(student__lr="0.4", budget="2k")], OPTIONS)
    config = settings.build(ExtractConfig)
    assert config.student == StudentConfig(lr=0.4, momentum=0.5)
    assert (config.budget, config.seed, config.wandb.entity) == (2000, 4, "e")
    sources = {key: origin.author for key, origin in settings.origins.items()}
    assert sources == {
        "student.lr": Author.FLAG,
        "student.momentum": Author.RECIPE,
        "seed": Author.FILE,
        "wandb.project": Author.FILE,
        "wandb.entity": Author.ENVIRONMENT,
        "budget": Author.FLAG,
    }
    settings.finish()


@pytest.mark.parametrize(
    ("key", "says", "gives"),
    [
        ("student.lr", True, True),
        ("student.momentum", False, False),  # the recipe's
        ("seed", True, True),
        ("student.loss", False, True),  # a flag of its section may have made the file's idle
        ("wandb.project", False, True),  # it may stay while tracking is off
        ("wandb.entity", False, False),
        ("precision", False, False),
    ],
)
def test_what_the_user_asks_for(key: str, says: bool, gives: bool) -> None:
    file = Layer(Author.FILE, {**FILE.content, "student": {"lr": 0.3, "loss": "kl"}}, "a.yaml")
    settings = Settings([RECIPE, file, ENVIRONMENT, flags(student__lr="0.4")], OPTIONS)
    assert (settings.says(key), settings.gives(key)) == (says, gives)


@pytest.mark.parametrize("source", [Author.RECORD, Author.SHIPPED])
def test_what_a_run_or_dfme_wrote_is_no_wish(source: Author) -> None:
    settings = Settings([Layer(source, {"seed": 3}, "config.yaml")], OPTIONS)
    assert (settings.says("seed"), settings.gives("seed")) == (False, True)


def test_a_choice_sets_the_sections_of_another_one_below_it_aside() -> None:
    default = Layer(Author.DEFAULT, {"teacher": {"watch": ["pairs"]}})
    file = Layer(Author.FILE, {"teacher": {"kind": "v2", "url": "u"}, "seed": 1}, "a.yaml")
    record = Layer(Author.RECORD, {"teacher.url": "there"}, "a.yaml")
    typed = flags(teacher__kind="torch", teacher__checkpoint="w")
    layers = [default, file, record]
    assert choose(layers, "teacher.kind", "torch") == ("v2", layers)
    kind, fit = choose([*layers, typed], "teacher.kind", "torch")
    assert kind == "torch"
    assert [dict(layer.content) for layer in fit] == [
        {"teacher": {"watch": ["pairs"]}},
        {"seed": 1},
        {},
        {"teacher.kind": "torch", "teacher.checkpoint": "w"},
    ]
    assert value_of(fit, "seed") == 1
    assert value_of(fit, "teacher.url") is None
    method, fit = choose(
        [
            Layer(Author.FILE, {"method": "dfme", "estimator": {"step": 1}}, "a"),
            flags(method="maze"),
        ],
        "method.name",
        "dfme",
        lambda chosen: ["estimator"],
    )
    assert (method, value_of(fit, "estimator.step")) == ("maze", None), "and short forms are read"


def test_each_problem_is_named_as_the_author_of_the_value_wrote_the_option() -> None:
    file = Layer(Author.FILE, {"student": {"lr": -1}, "sed": 1, "schedule": 3}, "a.yaml")
    keywords = Layer(Author.KEYWORD, {"evaluation": {"pionts": 3}})
    settings = Settings([file, keywords, flags(budgett="2k", minutes=BARE)], OPTIONS)
    settings.build(ExtractConfig)
    said = refusal(settings, Problem("device", "expected another"), Problem("sed", "unheard"))
    assert said.startswith("--minutes: expected a value: ")
    assert "; a.yaml: sed: unknown key; did you mean seed?; a.yaml: schedule: a group of " in said
    assert said.endswith("; and 3 more like these")
    assert "unheard" not in said, "one problem of an option is enough"
    settings = Settings([keywords, flags(budgett="2k")], OPTIONS, {"evaluation": " of data"})
    settings.build(ExtractConfig)
    assert refusal(settings) == (
        "--evaluation.pionts: unknown option of data; did you mean --evaluation.points?; "
        "--budgett: unknown flag; did you mean --budget?"
    )
    settings = Settings([file, flags(resume=BARE)], OPTIONS)
    assert settings.build(ExtractConfig).resume is True, "a switch needs no value"
    assert "a.yaml: student.lr: expected a positive number, got -1" in refusal(settings)
    assert refusal(settings) == refusal(settings), "what is told once is not collected"
