"""What teachers reveal: each label mode, their stacking, and that none tells more than the one
below.
"""

import numpy as np
import pytest
import torch
from refusals import refusal
from torch import Tensor

from dfme.spec import ImageSpec, LabelMode, Teacher, TeacherInfo
from dfme.teachers.label_modes import restrict


class Fixed:
    """A teacher that always answers the same rows, whatever it is asked."""

    def __init__(self, scores: list[list[float]], mode: str = "logits") -> None:
        self.spec = ImageSpec((1, 2, 2))
        self.info = TeacherInfo()
        self.num_classes = len(scores[0])
        self.label_mode = LabelMode.parse(mode)
        self._scores = torch.tensor(scores)

    def __call__(self, images: Tensor, /) -> Tensor:
        return self._scores


def restricted(teacher: Teacher, mode: str) -> Teacher:
    return restrict(teacher, LabelMode.parse(mode))


def test_probabilities_are_the_softmax_rounded() -> None:
    teacher = Fixed([[0.0, np.log(2.0), np.log(4.0)]])
    torch.testing.assert_close(
        restricted(teacher, "probabilities")(torch.empty(1)), torch.tensor([[1 / 7, 2 / 7, 4 / 7]])
    )
    rounded = restricted(teacher, "probabilities:2")
    assert rounded(torch.empty(1))[0].tolist() == pytest.approx([0.14, 0.29, 0.57])
    assert str(rounded.label_mode) == "probabilities:2"


def test_top_k_hides_the_others_and_label_is_the_first_largest() -> None:
    teacher = Fixed([[0.1, 0.6, 0.26, 0.04], [0.3, 0.3, 0.2, 0.2]], "probabilities")
    answer = restricted(teacher, "top_k:2:1")(torch.empty(2))
    expected = torch.tensor([[torch.nan, 0.6, 0.3, torch.nan], [0.3, 0.3, torch.nan, torch.nan]])
    torch.testing.assert_close(answer, expected, equal_nan=True)
    labels = restricted(teacher, "label")(torch.empty(2))
    assert (labels.dtype, labels.tolist()) == (torch.int64, [1, 0])


def test_label_modes_can_be_stacked() -> None:
    teacher = Fixed([[0.0, 1.0, 2.0, 3.0], [3.0, -1.0, 0.0, 1.0]])
    three = restricted(restricted(teacher, "probabilities:4"), "top_k:3:3")
    one = restricted(three, "top_k:1:1")
    assert torch.isnan(one(torch.empty(2))).sum(1).tolist() == [3, 3]
    assert restricted(one, "label")(torch.empty(2)).tolist() == [3, 0]
    assert one.spec is teacher.spec


LADDER = [
    "logits",
    "probabilities",
    "probabilities:4",
    "probabilities:2",
    "top_k:2:2",
    "top_k:1:2",
    "label",
]


def test_restrict_only_ever_reveals_less() -> None:
    for i, given in enumerate(LADDER):
        for j, wanted in enumerate(LADDER):
            teacher = Fixed([[0.1, 0.5, 0.4]], given)
            if i == j:
                assert restricted(teacher, wanted) is teacher
            elif i < j:
                assert str(restricted(teacher, wanted).label_mode) == wanted
            else:
                refusal(f"{wanted}: the teacher gives only {given}", restricted, teacher, wanted)


def test_no_restriction_reveals_more_decimals_or_classes() -> None:
    rows = "probabilities:2 top_k:2, top_k:2 top_k:3, top_k:2:2 top_k:2, top_k:2 probabilities:1"
    for given, wanted in map(str.split, rows.split(", ")):
        refusal("gives only", restricted, Fixed([[0.1, 0.5, 0.4]], given), wanted)
    refusal("only 3 classes", restricted, Fixed([[0.1, 0.5, 0.4]]), "top_k:4")


def test_at_exact_ties_every_mode_names_the_first_class() -> None:
    """``torch.topk`` names class 2 of four equal ones; a softmax in float32 makes more of them
    equal.
    """
    for classes in (3, 4, 10, 100):
        rows = [
            [0.0] * classes,
            [-1.0] + [0.5] * (classes - 1),
            [0.1] * (classes - 1) + [0.1 + 1e-8],
        ]
        labels = restricted(Fixed(rows), "label")(torch.empty(3)).tolist()
        assert labels[:2] == [0, 1]
        for mode in ("top_k:1", "top_k:1:2"):
            revealed = ~restricted(Fixed(rows), mode)(torch.empty(3)).isnan()
            assert revealed.sum(1).tolist() == [1, 1, 1]
            assert revealed.int().argmax(1).tolist() == labels, mode
        two = ~restricted(Fixed(rows), "top_k:2")(torch.empty(3)).isnan()
        assert [row.nonzero().flatten().tolist() for row in two[:2]] == [[0, 1], [1, 2]]
