"""YAML files, values and ranges: what is written is what is read, and what is wrong is said in
words.
"""

import re
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dfme.config.imports import own_options
from dfme.config.messages import members
from dfme.config.settings import ExtractConfig, StudentConfig, TeacherConfig
from dfme.config.values import Option, from_mapping, options_of, parse_count, read_value
from dfme.config.yaml_files import dump_yaml, load_yaml
from dfme.errors import Problem, UserError
from dfme.methods import METHODS, SECTIONS
from dfme.teachers import KINDS

# Recipes (YAML)


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
    with pytest.raises(UserError) as caught:
        from_mapping(ExtractConfig, {"student": {"lrr": 1, "momentum": "x"}}, "extract.")
    assert "extract.student.lrr: unknown option; did you mean student.lr?" in str(caught.value)
    assert "extract.student.momentum: expected a number, got 'x'" in str(caught.value)


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
    options = options_of(ExtractConfig) + options_of(TeacherConfig, "teacher.")
    for entry in METHODS.values():
        options += options_of(entry.config, "method.")
    for kind in KINDS.values():
        options += options_of(kind.options, "teacher.")
    for section, config in SECTIONS.items():
        options += options_of(config, f"{section}.")
    assert [each.key for each in options if not each.help] == []
    numbers = {
        each.key: repr(each.type) for each in options if {int, float} & set(members(each.type))
    }
    assert len(numbers) > 60
    assert [
        key for key, kind in numbers.items() if not re.search(r"\b(Ge|Gt)\(|AfterValidator", kind)
    ] == []
