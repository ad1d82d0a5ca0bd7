"""Labels in the order of the teacher's classes, by its own names or by those that are given."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from refusals import refusal

from dfme.data import ImageSet
from dfme.data.class_names import numbered
from dfme.errors import UserError

ANIMALS = ImageSet(
    "zoo", torch.zeros(4, 1, 2, 2), torch.tensor([0, 1, 2, 1]), ("ant", "bee", "sea cow")
)
NUMBERS = ImageSet("x", torch.zeros(2, 1, 2, 2), torch.tensor([2, 0]))


def labels(
    data: ImageSet,
    announced: Sequence[str] | None = None,
    given: str | None = None,
    folder: bool = True,
) -> list[int]:
    return numbered(
        data, 5 if announced is None else len(announced), given, announced, folder=folder
    ).required_labels.tolist()


@pytest.mark.parametrize(
    ("announced", "given", "wanted"),
    [
        (None, None, [0, 1, 2, 1]),  # the data set's own order, as in 0.6.0
        (("ant", "bee", "sea cow"), None, [0, 1, 2, 1]),
        (("bee", "sea cow", "ant"), None, [2, 0, 1, 0]),
        (
            ("wasp", "Sea_Cow", "bee", "ANT"),
            None,
            [3, 2, 1, 2],
        ),  # one class more, and other ways to write
        (("LABEL_0", "LABEL_1", "LABEL_2"), None, [0, 1, 2, 1]),  # names that say nothing
        (("0", "1", "2"), None, [0, 1, 2, 1]),
        (None, "bee,ant,sea cow", [1, 0, 2, 0]),
        (
            ("one", "two", "three"),
            "sea cow, bee, ant",
            [2, 1, 0, 1],
        ),  # what is given beats what is announced
    ],
)
def test_labels_are_the_teachers_numbers(
    announced: Sequence[str] | None, given: str | None, wanted: list[int]
) -> None:
    assert labels(ANIMALS, announced, given) == wanted


def test_names_of_a_known_set_may_differ_and_numbers_are_left_alone() -> None:
    assert labels(ANIMALS, ("apis", "formica", "manatee"), folder=False) == [0, 1, 2, 1]
    assert labels(NUMBERS, ("bee", "sea cow", "ant")) == [2, 0]


TWO = ("ant", "bee")


@pytest.mark.parametrize(
    ("data", "announced", "given", "says"),
    [
        (
            ANIMALS,
            (*TWO, "cow"),
            None,
            "the teacher's are ant, bee, cow; not among these: sea cow; name the",
        ),
        (
            ANIMALS,
            TWO,
            None,
            r"zoo has 3 classes \(ant, bee, sea cow\), but the teacher answers 2 \(ant, ",
        ),
        (NUMBERS, TWO, None, r"x has 3 classes, but the teacher answers 2 \(ant, bee\)"),
        (
            ANIMALS,
            None,
            "ant,bee",
            r"each class of zoo once \(ant, bee, sea cow\), .* left out: sea cow$",
        ),
        (ANIMALS, None, "ant,bee,elk,sea cow", "got ant, bee, elk, sea cow; not there: elk$"),
        (ANIMALS, None, "ant,ant,bee", "expected each class once, got 'ant' twice"),
        (NUMBERS, None, "ant,bee,elk", "each class of x once, which names none, got ant, bee, elk"),
    ],
)
def test_what_does_not_fit_is_said_with_both_lists(
    data: ImageSet, announced: Sequence[str] | None, given: str | None, says: str
) -> None:
    refusal(says, labels, data, announced, given)


def test_a_message_shows_a_few_of_a_thousand_names() -> None:
    names = tuple(f"thing {number}" for number in range(1_000))
    error = refusal("", labels, ANIMALS, names)
    assert "thing 7 and 992 more" in str(error)
    assert len(str(error)) < 500


def test_names_may_stand_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("sea cow\nbee\nant\n")
    assert labels(ANIMALS, None, str(tmp_path / "names.txt")) == [2, 1, 0, 1]


def test_without_labels_there_is_nothing_to_put_in_order() -> None:
    assert (
        numbered(
            ImageSet("x", torch.zeros(2, 1, 2, 2)), 3, None, ("a", "b", "c"), folder=True
        ).labels
        is None
    )


def numbers(*names: str) -> ImageSet:
    return ImageSet("x", torch.zeros(len(names), 1, 2, 2), torch.arange(len(names)), names)


TWELVE = tuple(sorted(map(str, range(12))))  # 0, 1, 10, 11, 2...


@pytest.mark.parametrize(
    ("data", "announced", "wanted"),
    [
        (numbers(*map(str, range(10))), None, list(range(10))),
        (numbers(*(f"{number:02}" for number in range(12))), None, list(range(12))),
        (numbers(*TWELVE), tuple(map(str, range(12))), [int(name) for name in TWELVE]),
        (
            numbers(*TWELVE),
            tuple(f"LABEL_{number}" for number in range(12)),
            [int(name) for name in TWELVE],
        ),
        (numbers("3", "7"), tuple(map(str, range(10))), [3, 7]),
        (numbers("1", "2"), None, None),  # of five
        (numbers("3", "4"), None, None),
        (numbers(*TWELVE), None, None),
        (numbers("1", "10", "2"), None, None),
    ],
)
def test_folders_that_are_numbers_are_numbered_by_the_teacher_or_asked_about(
    data: ImageSet, announced: Sequence[str] | None, wanted: list[int] | None
) -> None:
    classes = len(announced) if announced else max(5, len(data))
    if wanted is not None:
        result = numbered(data, classes, None, announced, folder=True)
        assert result.required_labels.tolist() == wanted
        return
    refusal(
        r"class folders of x are numbers, .* give --evaluation\.classes",
        numbered,
        data,
        classes,
        None,
        None,
        folder=True,
    )
    result = (
        numbered(data, classes, ",".join(map(str, range(classes))), None, folder=True)
        if classes > 10 or len(data) == 2
        else None
    )
    assert result is None or result.required_labels.tolist() == [
        int(name) for name in data.class_names
    ]


def test_fewer_folders_than_classes_are_said() -> None:
    assert (
        "its 3 class folders (ant, bee, sea cow) are taken for the first of the teacher's 5"
        in str(numbered(numbers("ant", "bee", "sea cow"), 5, None, None, folder=True).notes)
    )
    assert not numbered(numbers("ant", "bee"), 2, None, None, folder=True).notes
    assert not numbered(NUMBERS, 5, None, None, folder=True).notes


def test_all_names_of_the_teacher_may_be_given_for_a_few_folders() -> None:
    assert labels(numbers("bee", "sea cow"), ("0", "1", "2", "3"), "ant, bee, cat, sea cow") == [
        1,
        3,
    ]


def test_letters_that_differ_in_case_alone_are_told_apart() -> None:
    data = ImageSet("x", torch.zeros(4, 1, 2, 2), torch.arange(4), ("A", "B", "a", "b"))
    assert labels(data, ("a", "b", "A", "B")) == [2, 3, 0, 1]


@pytest.mark.parametrize("odd", ["__litter", "zz top", "a-b", "Thumbs"])
def test_a_cut_list_shows_the_surprising_names_first(odd: str) -> None:
    names = tuple(sorted([*map(str, range(20)), odd]))
    for announced in (
        None,
        tuple(f"n{number}" for number in range(20)),
        tuple(map(str, range(20))),
    ):
        with pytest.raises(UserError, match=rf"x has 21 classes \({odd}, "):
            numbered(numbers(*names), 20, None, announced, folder=True)
    words = ("ant", "bee", "cat", "cow", "dog", "elk", "fox", "gnu", "hen", "owl")
    with pytest.raises(UserError, match=rf"the classes of x are {odd}, "):
        numbered(numbers(*sorted([*words[1:], odd])), 10, None, words, folder=True)


def test_labels_that_begin_at_one_are_named() -> None:
    data = ImageSet("x", torch.zeros(3, 1, 2, 2), torch.tensor([1, 2, 3]))
    refusal(
        r"has 4 classes \(its labels begin at 1; subtract 1\), but .* 3;",
        numbered,
        data,
        3,
        None,
        None,
        folder=True,
    )
