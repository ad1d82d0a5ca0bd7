"""Labels in the order of the teacher's classes, by its own names or by those that are given."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from dfme.data import ImageSet
from dfme.data.class_names import numbered
from dfme.errors import UserError

ANIMALS = ImageSet("zoo", torch.zeros(4, 1, 2, 2), torch.tensor([0, 1, 2, 1]), ("ant", "bee", "sea cow"))
NUMBERS = ImageSet("x", torch.zeros(2, 1, 2, 2), torch.tensor([2, 0]))


def labels(
    data: ImageSet, announced: Sequence[str] | None = None, given: str | None = None, folder: bool = True
) -> list[int]:
    classes = 5 if announced is None else len(announced)
    return numbered(data, classes, given, announced, folder=folder).required_labels.tolist()


@pytest.mark.parametrize(
    ("announced", "given", "wanted"),
    [
        (None, None, [0, 1, 2, 1]),  # the data set's own order, as in 0.6.0
        (("ant", "bee", "sea cow"), None, [0, 1, 2, 1]),
        (("bee", "sea cow", "ant"), None, [2, 0, 1, 0]),
        (("wasp", "Sea_Cow", "bee", "ANT"), None, [3, 2, 1, 2]),  # one class more, and other ways to write
        (("LABEL_0", "LABEL_1", "LABEL_2"), None, [0, 1, 2, 1]),  # names that say nothing
        (("0", "1", "2"), None, [0, 1, 2, 1]),
        (None, "bee,ant,sea cow", [1, 0, 2, 0]),
        (("one", "two", "three"), "sea cow, bee, ant", [2, 1, 0, 1]),  # what is given beats what is announced
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
REFUSED = [
    (ANIMALS, (*TWO, "cow"), None, "the teacher's are ant, bee, cow; not among these: sea cow; name the"),
    (ANIMALS, TWO, None, r"zoo has 3 classes \(ant, bee, sea cow\), but the teacher answers 2 \(ant, "),
    (NUMBERS, TWO, None, r"x has 3 classes, but the teacher answers 2 \(ant, bee\)"),
    (ANIMALS, None, "ant,bee", r"each class of zoo once \(ant, bee, sea cow\), .* left out: sea cow$"),
    (ANIMALS, None, "ant,bee,elk,sea cow", "got ant, bee, elk, sea cow; not there: elk$"),
    (ANIMALS, None, "ant,ant,bee", "expected each class once, got 'ant' twice"),
    (NUMBERS, None, "ant,bee,elk", "each class of x once, which names none, got ant, bee, elk"),
]


@pytest.mark.parametrize(("data", "announced", "given", "says"), REFUSED)
def test_what_does_not_fit_is_said_with_both_lists(
    data: ImageSet, announced: Sequence[str] | None, given: str | None, says: str
) -> None:
    with pytest.raises(UserError, match=says):
        labels(data, announced, given)


def test_a_message_shows_a_few_of_a_thousand_names() -> None:
    names = tuple(f"thing {number}" for number in range(1_000))
    with pytest.raises(UserError) as error:
        labels(ANIMALS, names)
    assert "thing 7 and 992 more" in str(error.value)
    assert len(str(error.value)) < 500


def test_names_may_stand_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("sea cow\nbee\nant\n")
    assert labels(ANIMALS, None, str(tmp_path / "names.txt")) == [2, 1, 0, 1]


def test_without_labels_there_is_nothing_to_put_in_order() -> None:
    plain = ImageSet("x", torch.zeros(2, 1, 2, 2))
    assert numbered(plain, 3, None, ("a", "b", "c"), folder=True).labels is None
