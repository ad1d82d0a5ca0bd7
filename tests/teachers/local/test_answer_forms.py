"""Programs of every form of answer, as plain functions: each is read as what it is, or asked
about.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from damage import refused
from torch import Tensor
from torch.nn.functional import logsigmoid

from dfme.config.settings import TeacherConfig
from dfme.spec import ImageSpec
from dfme.teachers.local.answer_forms import check_images
from dfme.teachers.local.program import Program, ProgramTeacher, make_program_teacher

SHAPE = (1, 8, 8)
WEIGHT = torch.randn(64, 5, generator=torch.Generator().manual_seed(0))
IMAGES = torch.rand(6, *SHAPE, generator=torch.Generator().manual_seed(1))


def logits(x_BCHW: Tensor) -> Tensor:
    return (x_BCHW - 0.5).flatten(1).to(WEIGHT.dtype) @ WEIGHT


def lone(x_BCHW: Tensor) -> Tensor:
    return logits(x_BCHW)[:, :1]


P_BK = logits(IMAGES).softmax(1)
Z_B1 = lone(IMAGES)
TWO_B2 = torch.cat([1 - Z_B1.sigmoid(), Z_B1.sigmoid()], 1)


def teacher(
    answer: Callable[[Tensor], object],
    answers: Any = "auto",
    output: str | None = None,
    ends: tuple[Any, ...] = (),
    **common: Any,
) -> ProgramTeacher:
    program = Program("p", lambda x_BCHW, wanted: answer(x_BCHW), ends=ends)
    return make_program_teacher(program, answers, output, TeacherConfig(shape=SHAPE, **common))


def probabilities(program_teacher: ProgramTeacher) -> Tensor:
    """What an API shows of a teacher, whose own scores are logits or probabilities."""
    scores_BK = program_teacher(IMAGES)
    return scores_BK.softmax(1) if program_teacher.label_mode.kind == "logits" else scores_BK


CERTAIN: dict[str, tuple[Callable[[Tensor], Tensor], Tensor]] = {
    "logits": (logits, P_BK),
    "softmax": (lambda x: logits(x).softmax(1), P_BK),
    "log-softmax": (lambda x: logits(x).log_softmax(1), P_BK),
    "percentages": (lambda x: 100 * logits(x).softmax(1), P_BK),
    "softmax in half precision": (lambda x: logits(x).softmax(1).half(), P_BK),
    "softmax, rounded": (lambda x: logits(x).softmax(1).round(decimals=2), P_BK.round(decimals=2)),
    "two logits": (lambda x: logits(x)[:, :2], logits(IMAGES)[:, :2].softmax(1)),
    "two of a softmax": (lambda x: logits(x)[:, :2].softmax(1), logits(IMAGES)[:, :2].softmax(1)),
    "a lone logit": (lone, TWO_B2),
    "(B, K, 1, 1)": (lambda x: logits(x)[:, :, None, None], P_BK),
    "(B, 1, K)": (lambda x: logits(x)[:, None], P_BK),
    "(B, 1, 1, 1)": (lambda x: lone(x)[:, :, None, None], TWO_B2),
    "squeezed": (lambda x: logits(x).squeeze(), P_BK),
    "a lone one, squeezed": (lambda x: lone(x).squeeze(), TWO_B2),
}


@pytest.mark.parametrize("name", CERTAIN)
def test_what_the_values_tell_is_not_asked(name: str) -> None:
    answer, truth_BK = CERTAIN[name]
    near = 2e-3 if "half" in name else 1e-5
    torch.testing.assert_close(probabilities(teacher(answer)), truth_BK, rtol=near, atol=near)


ASKED: dict[str, tuple[Callable[[Tensor], Tensor], dict[str, Tensor]]] = {
    "a lone sigmoid": (lambda x: lone(x).sigmoid(), {"probabilities": TWO_B2, "sigmoids": TWO_B2}),
    "its percentage": (lambda x: 100 * lone(x).sigmoid(), {"percentages": TWO_B2}),
    "its logarithm": (lambda x: logsigmoid(lone(x)), {"log-probabilities": TWO_B2}),
    "a vector of sigmoids": (lambda x: lone(x).sigmoid()[:, 0], {"probabilities": TWO_B2}),
    "a sigmoid a class": (lambda x: logits(x).sigmoid(), {"sigmoids": P_BK}),
    "percentages of each class": (lambda x: 100 * logits(x).sigmoid(), {"percentages": P_BK}),
    "positive logits": (lambda x: lone(x) + 40, {"logits": torch.tensor([[0.0, 1.0]] * 6)}),
    "small logits": (
        lambda x: lone(x) / 100 + 0.5,
        {"logits": torch.cat([0 * Z_B1, Z_B1 / 100 + 0.5], 1).softmax(1)},
    ),
}


@pytest.mark.parametrize("name", ASKED)
def test_what_they_leave_open_is_asked_with_the_choices(name: str) -> None:
    answer, choices = ASKED[name]
    for choice, truth_BK in choices.items():
        assert choice in str(refused("--teacher.answers ", teacher, answer)) or choice == "sigmoids"
        found_BK = probabilities(teacher(answer, choice))
        torch.testing.assert_close(found_BK, truth_BK, rtol=1e-4, atol=1e-4)


def test_the_last_operation_answers_the_question() -> None:
    truth = {"sigmoid": TWO_B2, "log-sigmoid": TWO_B2, "unbounded": TWO_B2}
    forms: dict[str, Callable[[Tensor], Tensor]] = {
        "sigmoid": lambda x: lone(x).sigmoid(),
        "log-sigmoid": lambda x: logsigmoid(lone(x)),
        "unbounded": lone,
    }
    for end, answer in forms.items():
        found_BK = probabilities(teacher(answer, ends=(end,)))
        torch.testing.assert_close(found_BK, truth[end], rtol=1e-4, atol=1e-4)
    of_each_BK = probabilities(teacher(lambda x: logits(x).sigmoid(), ends=("sigmoid",)))
    torch.testing.assert_close(of_each_BK, P_BK, rtol=1e-4, atol=1e-4)
    positive = teacher(lambda x: lone(x).abs(), ends=("unbounded",))
    assert positive.label_mode.kind == "logits"


@pytest.mark.parametrize(
    ("answer", "given", "ends", "words"),
    [
        (lambda x: logits(x).softmax(1), "logits", (), "say --teacher.answers probabilities"),
        (logits, "probabilities", (), "say --teacher.answers logits"),
        (
            lambda x: logits(x).sigmoid(),
            "probabilities",
            (),
            "say --teacher.answers logits or sigmoids",
        ),
        (
            lambda x: 100 * logits(x).softmax(1),
            "probabilities",
            (),
            "say --teacher.answers percentages",
        ),
        (lambda x: 100 * logits(x).softmax(1), "logits", (), "say --teacher.answers percentages"),
        (lone, "percentages", (), "say --teacher.answers logits"),
        (
            lambda x: lone(x).sigmoid(),
            "logits",
            ("sigmoid",),
            "say --teacher.answers probabilities",
        ),
        (
            lambda x: logits(x).argmax(1),
            "auto",
            (),
            "expected scores (1, classes), got (1,) of int64",
        ),
        (lambda x: logits(x)[:, :, None].expand(-1, -1, 2), "auto", (), "got (1, 5, 2)"),
        (lambda x: "cat", "auto", (), "got cat"),
        (
            lambda x: logits(x).softmax(1).topk(3)[0],
            "auto",
            (),
            "they are sorted, and which class each is of is lost",
        ),
        (
            lambda x: logits(x).sort(1)[0],
            "auto",
            (),
            "they are sorted, and which class each is of is lost",
        ),
        (
            lambda x: logits(x).topk(5),
            "auto",
            (),
            "they are sorted, and which class each is of is lost",
        ),
    ],
)
def test_a_form_that_cannot_be_is_refused_with_those_that_can(
    answer: Any, given: str, ends: tuple[Any, ...], words: str
) -> None:
    refused(words, teacher, answer, given, None, ends)


def two(x_BCHW: Tensor) -> tuple[Tensor, Tensor]:
    return x_BCHW.flatten(1), logits(x_BCHW)


SEVERAL: dict[str, Callable[[Tensor], Any]] = {
    "tuple": two,
    "list": lambda x: list(two(x)),
    "dict": lambda x: dict(zip(("features", "logits"), two(x), strict=True)),
    "nested": lambda x: {"out": two(x), "none": None},
}
NAMES = {"tuple": "1", "list": "1", "dict": "logits", "nested": "out.1"}


@pytest.mark.parametrize("form", SEVERAL)
def test_of_several_outputs_one_is_named(form: str) -> None:
    answer = SEVERAL[form]
    assert f"{NAMES[form]} (B, 5); name the one with the scores: --teacher.output" in str(
        refused("has 2 outputs, ", teacher, answer)
    )
    torch.testing.assert_close(probabilities(teacher(answer, output=NAMES[form])), P_BK)
    by_classes = teacher(answer, num_classes=5)
    torch.testing.assert_close(probabilities(by_classes), P_BK)
    assert f"output {NAMES[form]} (--teacher.output)" in by_classes.info.inferred
    refused("--teacher.output: p has ", teacher, answer, output="2")


def test_where_no_other_can_be_meant_none_is_named() -> None:
    labelled = {"label": lambda x: (logits(x).argmax(1), logits(x).softmax(1))}
    alone = {
        "one in a tuple": lambda x: (logits(x),),
        "beside nothing": lambda x: {"logits": logits(x), "aux": None},
    }
    for answer in (*labelled.values(), *alone.values()):
        torch.testing.assert_close(probabilities(teacher(answer)), P_BK)

    def twice(x_BCHW: Tensor) -> tuple[Tensor, Tensor]:
        return logits(x_BCHW), 2 * logits(x_BCHW)

    refused("0 (B, 5), 1 (B, 5)", teacher, twice, num_classes=5)


def test_a_batch_that_is_fixed_is_looked_at_and_filled_up() -> None:
    def fixed(x_BCHW: Tensor, wanted: str | None) -> Tensor:
        assert len(x_BCHW) == 4
        return logits(x_BCHW).softmax(1)

    program_teacher = make_program_teacher(
        Program("p", fixed, least=4, most=4), "auto", None, TeacherConfig(shape=SHAPE)
    )
    torch.testing.assert_close(program_teacher(IMAGES[:3]), P_BK[:3])
    refused(
        "256 GB",
        make_program_teacher,
        Program("p", fixed, least=10**9, most=10**9),
        "auto",
        None,
        TeacherConfig(shape=SHAPE),
    )


def test_check_images_differ_within_the_bounds() -> None:
    spec = ImageSpec((3, 5, 7), (-1.0, 1.0), 256)
    images = torch.cat(list(check_images(spec)))
    assert images.shape == (16, 3, 5, 7)
    assert torch.equal(images, spec.quantise(images))
    assert len(images.flatten(1).unique(dim=0)) == 16
    assert float(images.flatten(1).mean(1).std()) > 0.1


def test_a_linear_map_may_average_probabilities_so_that_is_asked() -> None:
    mean = torch.full((2, 1), 0.5)
    of_two = teacher_of_linear(lambda x: logits(x)[:, :2].sigmoid() @ mean)
    refused("can be probabilities or logits; say which", of_two)
    many = teacher_of_linear(lambda x: logits(x).sigmoid() @ torch.eye(5).roll(1, 0))
    refused("can be logits or sigmoids; say which", many)
    assert teacher_of_linear(lone)().label_mode.kind == "logits"


def teacher_of_linear(answer: Callable[[Tensor], object]) -> Callable[[], ProgramTeacher]:
    return lambda: teacher(answer, ends=("unbounded",))


def test_two_classes_and_answers_that_hardly_change_may_have_an_order() -> None:
    assert teacher(lambda x: logits(x)[:, :2].sort(1)[0]).num_classes == 2
    constant = torch.tensor([3.0, 2.0, 1.0, 0.0, -1.0])
    assert teacher(lambda x: constant + logits(x) / 1000).num_classes == 5


def test_a_score_beside_a_label_may_be_that_of_the_label() -> None:
    def scored(x_BCHW: Tensor) -> dict[str, Tensor]:
        p_B2 = torch.cat([-lone(x_BCHW), lone(x_BCHW)], 1).softmax(1)
        return {"label": p_B2.argmax(1), "score": p_B2.amax(1)}

    refused("say --teacher.output score", teacher, scored)
    refused("may be the score of that label", teacher, scored, "probabilities")
    assert teacher(scored, "probabilities", "score").num_classes == 2

    def of_class_1(x_BCHW: Tensor) -> dict[str, Tensor]:
        z_B1 = lone(x_BCHW)
        return {"label": (z_B1 > 0).long(), "score": z_B1.sigmoid()}

    found_BK = probabilities(teacher(of_class_1, "probabilities"))
    torch.testing.assert_close(found_BK, TWO_B2, rtol=1e-4, atol=1e-4)
