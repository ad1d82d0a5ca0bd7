"""YAML files, values and ranges; layers of options: which one wins, who said it, how a message names it."""

import re
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import yaml
from command_line import options_of_sections
from damage import refused
from hypothesis import given, settings
from hypothesis import strategies as st

from dfme.config.imports import own_options
from dfme.config.layers import BARE, Author, Layer, Settings, choose, value_of
from dfme.config.messages import members
from dfme.config.settings import ExtractConfig, StudentConfig
from dfme.config.values import Option, from_mapping, options_of, parse_count, read_value
from dfme.config.yaml_files import dump_yaml, load_yaml
from dfme.errors import Problem, UserError


@settings(max_examples=25, deadline=None)
@given(
    st.dictionaries(
        st.text("abc", min_size=1),
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(),
            st.floats(allow_nan=False),
            st.text(st.characters(codec="ascii", exclude_categories=["Cc"])),
            st.sampled_from(
                ["off", "no", "1e-3", "2024-01-01", "12:30", "~", "0x10", ".5", "1_000", "<<"]
            ),
            st.lists(st.sampled_from(["yes", "1e3", "a"])),
        ),
    )
)
def test_yaml_written_is_yaml_read_by_ours_and_by_any_other(
    tmp_path_factory: pytest.TempPathFactory, paper: Any
) -> None:
    path = tmp_path_factory.mktemp("yaml") / "a.yaml"
    path.write_text(dump_yaml(paper))
    assert load_yaml(path) == yaml.safe_load(path.read_text()) == paper


def test_yaml_scalars_mean_what_people_write(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(
        "a: off\nb: 1e-3\nc: .5\nd: 12:30\ne: 1_000\nf: true\ng:\nh: 2M\ni: -3\nj: no\n"
    )
    expected = {
        "a": "off",
        "b": 1e-3,
        "c": 0.5,
        "d": "12:30",
        "e": 1000,
        "f": True,
        "g": None,
        "h": "2M",
    }
    assert load_yaml(path) == expected | {"i": -3, "j": "no"}


def test_yaml_that_is_binary_or_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "a.yaml", tmp_path):
        with pytest.raises(UserError, match="cannot read it"):
            load_yaml(path)


# Options

SHAPE = tuple[int, int, int] | None


def convert(kind: Any, value: Any) -> Any:
    """One value in a type."""
    converted, problems = read_value(Option("a", kind, None, ""), value)
    assert problems == []
    return converted


@pytest.mark.parametrize(
    ("kind", "given_value", "expected"),
    [
        *(
            (SHAPE, given, (3, 32, 32))
            for given in ("3,32,32", [3, 32, 32], (3, 32, 32), "(3, 32, 32)")
        ),
        (SHAPE, "none", None),
        (tuple[float, ...], ".5", (0.5,)),
        (tuple[str, ...], "a, 1", ("a", "1")),
        (list[str], "a,b", ["a", "b"]),
        (float, "1e-3", 1e-3),
        (float, 1, 1.0),
        (bool, "yes", True),
        (str, 2024, "2024"),
        (int | str, "2M", "2M"),
        (dict[str, int], {"a": 1}, {"a": 1}),
        (Path, "a/b", Path("a/b")),
        (StudentConfig, {"lr": 0.5}, StudentConfig(lr=0.5)),
    ],
)
def test_values_are_converted(kind: Any, given_value: Any, expected: Any) -> None:
    converted = convert(kind, given_value)
    assert converted == expected
    assert type(converted) is type(expected)


@pytest.mark.parametrize(
    ("kind", "given_value", "expected", "got", "near"),
    [
        (int, "1.5", "a whole number", "'1.5'", None),
        (int, True, "a whole number", "True", None),
        (int, None, "a whole number", "none", None),
        (float | None, "x", "a number or none", "'x'", None),
        (SHAPE, "3,32", "3 whole numbers such as 3,32,32 or none", "'3,32'", None),
        (
            get_type_hints(StudentConfig)["optimizer"],
            "sdg",
            "one of sgd, adam, adamw",
            "'sdg'",
            "sgd",
        ),
    ],
)
def test_values_of_a_wrong_type_are_explained(
    kind: Any, given_value: Any, expected: str, got: str, near: str | None
) -> None:
    _, problems = read_value(Option("a", kind, None, ""), given_value)
    assert problems == [Problem("a", f"expected {expected}", got, near)]


def test_none_is_a_value_only_where_it_is_meant() -> None:
    assert convert(int | None, None) is None

    # as people write it
    def make(token: str = None) -> None:  # type: ignore[assignment]  # noqa: RUF013
        raise AssertionError

    (option,) = own_options(make, {})
    assert convert(option.type, None) is None


class Named:
    """A class that calls itself otherwise than self, and an option ``self``."""

    def __init__(this, self: int = 1, /, other: float = 2.0) -> None: ...  # noqa: N805


class Below(Named):
    def __init__(me, width: int, **rest: float) -> None: ...  # noqa: N805


class Wide:
    def __init__(*args: float, **rest: float) -> None: ...


@pytest.mark.parametrize(
    ("kind", "names"), [(Below, ["width", "other"]), (Named, ["other"]), (Wide, [])]
)
def test_the_object_itself_is_no_option_whatever_it_is_called(kind: type, names: list[str]) -> None:
    assert [option.name for option in own_options(kind, {})] == names


def test_a_mapping_from_python_becomes_a_configuration() -> None:
    assert from_mapping(StudentConfig, {"lr": 0.5, "weight-decay": 0}) == StudentConfig(
        lr=0.5, weight_decay=0.0
    )
    error = refused(
        "extract.student.lrr: unknown option; did you mean student.lr?",
        from_mapping,
        ExtractConfig,
        {"student": {"lrr": 1, "momentum": "x"}},
        "extract.",
    )
    assert "extract.student.momentum: expected a number, got 'x'" in str(error)


# Validation


def test_counts_are_read_and_others_refused() -> None:
    read = {
        "300k": 300_000,
        "2M": 2 * 10**6,
        "1e6": 10**6,
        "1.5M": 1_500_000,
        "1_000": 1000,
        "7.0": 7,
        -5: -5,
    }
    assert {text: parse_count(text) for text in read} == read
    for text in ("", "k", "many", "1.5", "1e-3", "inf", "nan", "2G", "1e99", "0x10"):
        with pytest.raises(ValueError, match="expected a number of images such as"):
            parse_count(text)


def test_every_option_has_its_help_and_every_number_a_range() -> None:
    """A new option of a method or of the student must say which values it takes."""
    options = [*options_of(ExtractConfig), *options_of_sections()]
    assert [each.key for each in options if not each.help] == []
    numbers = {
        each.key: repr(each.type) for each in options if {int, float} & set(members(each.type))
    }
    assert len(numbers) > 60
    assert [
        key for key, kind in numbers.items() if not re.search(r"\b(Ge|Gt)\(|AfterValidator", kind)
    ] == []


OPTIONS = options_of(ExtractConfig)
RECIPE = Layer(Author.RECIPE, {"student": {"lr": 0.2, "momentum": 0.5}, "elsewhere": 1})
FILE = Layer(Author.FILE, {"student": {"lr": 0.3}, "seed": 4, "wandb": {"project": "p"}}, "a.yaml")
ENVIRONMENT = Layer(Author.ENVIRONMENT, {"wandb": {"entity": "e"}})


def flags(**names: Any) -> Layer:
    """Flags as they were typed, with dashes; a dot is written as two underscores."""
    content = {name.replace("__", "."): value for name, value in names.items()}
    return Layer(Author.FLAG, content, names={key: f"--{key.replace('_', '-')}" for key in content})


def refusal(settings: Settings, *problems: Problem) -> str:
    return str(refused("", settings.finish, problems))


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
    message = refusal(settings, Problem("device", "expected another"), Problem("sed", "unheard"))
    assert message.startswith("--minutes: expected a value: ")
    assert (
        "; a.yaml: sed: unknown key; did you mean seed?; a.yaml: schedule: a group of " in message
    )
    assert message.endswith("; and 3 more like these")
    assert "unheard" not in message, "one problem of an option is enough"
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
