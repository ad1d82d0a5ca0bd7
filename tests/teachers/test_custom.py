"""Teachers of a user's own code, and what is refused of them."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refusal
from torch import Tensor, nn

from dfme.config.settings import TeacherConfig
from dfme.errors import TeacherError, UserError
from dfme.spec import ImageSpec, RequestPolicy, Teacher, TeacherInfo
from dfme.teachers.build import make_teacher
from dfme.teachers.custom import wrap_callable

MODULE = '''
import torch

class MyTeacher:
    """Doubles as documentation."""

    shape = (1, 2, 2)
    num_classes = 2

    def __init__(self, sharpness: float, path: str = "none"):
        if sharpness < 0:
            raise ValueError("sharpness must not be negative")
        self.sharpness = sharpness

    def __call__(self, images):
        score = self.sharpness * images.flatten(1).mean(1)
        return torch.stack([score, -score], 1).softmax(1)

def make_teacher(num_classes: int = 3):
    return lambda images: torch.full((len(images), num_classes), 1 / num_classes)

def make_nothing():
    return None

def predict(images):
    return images

constant = 3
'''


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"own_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name


def own(kind: str, options: dict[str, Any] | None = None, **common: Any) -> Teacher:
    return make_teacher(TeacherConfig(kind=kind, **common), options or {}, torch.device("cpu"))


def test_own_class_with_its_arguments(own_module: str) -> None:
    teacher = own(f"{own_module}:MyTeacher", {"sharpness": 2.0}, levels=256)
    assert teacher.spec == ImageSpec((1, 2, 2), (0.0, 1.0), 256)
    assert str(teacher.label_mode) == "probabilities"
    p = torch.sigmoid(torch.tensor(4.0)).item()
    torch.testing.assert_close(teacher(torch.ones(1, 1, 2, 2)), torch.tensor([[p, 1 - p]]))
    normalised = own(f"{own_module}:MyTeacher", {"sharpness": 1.0}, mean=(0.5,), std=(0.25,))
    torch.testing.assert_close(normalised(torch.ones(1, 1, 2, 2)), torch.tensor([[p, 1 - p]]))
    label = own(f"{own_module}:MyTeacher", {"sharpness": 2.0}, label_mode="label")
    assert label(torch.ones(3, 1, 2, 2)).tolist() == [0, 0, 0]


def test_own_function_shares_the_common_keys_it_asks_for(own_module: str) -> None:
    teacher = own(f"{own_module}:make_teacher", shape=(3, 4, 4), num_classes=5)
    assert teacher(torch.ones(2, 3, 4, 4)).shape == (2, 5)
    given_as_option = own(f"{own_module}:make_teacher", {"num_classes": 4}, shape=(3, 4, 4))
    assert given_as_option.num_classes == 4


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("nowhere_to_be_found:MyTeacher", {}, "no module"),
        ("MODULE:MyTeachr", {}, "MyTeacher"),
        ("MODULE:constant", {}, "constant is .*int"),
        ("MODULE:MyTeacher", {}, r"sharpness.*it is MyTeacher\(sharpness: float"),
        ("MODULE:MyTeacher", {"sharpnes": 1.0}, "sharpnes"),
        (
            "MODULE:MyTeacher",
            {"sharpness": -1.0},
            r"ValueError: sharpness must .* \(own_.*line 12\)",
        ),
        ("MODULE:predict", {}, "a function named here makes the teacher"),
        ("MODULE:make_nothing", {}, "expected a callable"),
        ("MODULE:make_teacher", {}, r"say --teacher\.shape, or give it shape = \(C, H, W\)$"),
        ("torhc", {}, "did you mean torch"),
        ("torch", {}, r"--teacher\.checkpoint: missing; expected weights"),
        ("torch", {"checkpoint": "a", "chekpoint": "b"}, "unknown option; did you mean checkpoint"),
    ],
)
def test_own_and_built_in_kinds_that_cannot_work(
    own_module: str, kind: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message) as error:
        own(kind.replace("MODULE", own_module), options)
    assert "\n" not in str(error.value)


def test_a_module_that_fails_on_import_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_broken.py").write_text("x = 1\nimport not_installed_anywhere\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    refusal(r"not_installed_anywhere.*own_broken\.py, line 2", own, "own_broken:Teacher")


def uniform(images: Tensor) -> Tensor:
    return torch.full((len(images), 4), 0.25)


@pytest.mark.parametrize(
    ("answer", "mode", "expected"),
    [
        (lambda x: np.array([[0.25, 0.75]]), None, [[0.25, 0.75]]),
        (lambda x: [[0.25, 0.75]], "probabilities:1", [[0.2, 0.8]]),
        (lambda x: torch.tensor([[0.75]]), None, [[0.25, 0.75]]),
        (lambda x: torch.tensor([1]), "label", [1]),
        (lambda x: torch.tensor([[0.25, 0.75]]), "label", [1]),
        (lambda x: torch.tensor([[3.0, -7.0]]), "logits", [[3.0, -7.0]]),
    ],
)
def test_answers_of_every_sort(
    answer: Callable[[Tensor], Any], mode: str | None, expected: Any
) -> None:
    teacher = wrap_callable(
        answer, shape=(1, 2, 2), num_classes=2, label_mode=mode, bounds=(-1.0, 1.0)
    )
    assert isinstance(teacher, Teacher)
    assert teacher.spec == ImageSpec((1, 2, 2), (-1.0, 1.0))
    assert str(teacher.label_mode) == (mode or "probabilities")
    torch.testing.assert_close(
        teacher(torch.zeros(1, 1, 2, 2)).double(), torch.tensor(expected).double()
    )


def test_attributes_win_and_contradictions_are_refused() -> None:
    class WithFacts:
        shape = (1, 2, 2)
        num_classes = 4
        bounds = (-1.0, 1.0)
        label_mode = "top_k:2"
        max_batch = 5
        class_names = ["a", "b", "c", "d"]  # noqa: RUF012 (as users write it)

        def __call__(self, images: Tensor) -> Tensor:
            return uniform(images)

    teacher = wrap_callable(WithFacts(), bounds=(0.0, 1.0), max_batch=9)
    assert teacher.spec == ImageSpec((1, 2, 2), (-1.0, 1.0))
    assert (teacher.info.max_batch, teacher.info.class_names) == (5, ("a", "b", "c", "d"))
    assert str(wrap_callable(WithFacts(), label_mode="label").label_mode) == "label"
    refusal("gives only", wrap_callable, WithFacts(), label_mode="probabilities")
    refusal(
        r"shape: got \(3, 2, 2\), but the teacher itself says \(1, 2, 2\)",
        wrap_callable,
        WithFacts(),
        shape=(3, 2, 2),
    )
    refusal(r"say --teacher\.num-classes", wrap_callable, uniform, shape=(1, 2, 2))


def test_a_module_in_training_mode_is_refused() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Softmax(1))
    refusal("eval", wrap_callable, module, shape=(1, 2, 2), num_classes=3)
    assert wrap_callable(module.eval(), shape=(1, 2, 2), num_classes=3)(
        torch.ones(2, 1, 2, 2)
    ).shape == (2, 3)


def test_a_service_of_ones_own_is_asked_with_its_key_behind_every_wrapper() -> None:
    class Client:
        shape, num_classes, wire = (1, 2, 2), 2, RequestPolicy(in_flight=3)
        keys: list[str] = []  # noqa: RUF012 (one list for all)

        def __call__(self, images: Tensor) -> Tensor:
            raise AssertionError("a teacher with ask is asked with a key")

        def ask(self, images: Tensor, key: str) -> list[list[float]]:
            self.keys.append(key)
            return [[0.25, 0.75]] * len(images)

    class Keyless:
        shape, num_classes, wire = (1, 2, 2), 2, RequestPolicy()

        def __call__(self, images: Tensor) -> Tensor:
            return torch.tensor([[0.25, 0.75]]).expand(len(images), 2)

    x_BCHW = torch.zeros(3, 1, 2, 2)
    for client in (Client(), Keyless()):
        teacher = wrap_callable(client, label_mode="label")
        assert teacher.info.wire == client.wire
        assert teacher.info.remote.ask(x_BCHW, "k").tolist() == [1, 1, 1]
    assert Client.keys == ["k"]


def test_info_stands_for_single_attributes() -> None:
    class Whole:
        shape, num_classes, info = (
            (1, 2, 2),
            4,
            TeacherInfo(max_batch=7, class_names=("a", "b", "c", "d")),
        )
        max_batch = 9

        def __call__(self, images: Tensor) -> Tensor:
            return uniform(images)

    result = wrap_callable(Whole(), max_batch=8).info
    assert (result.max_batch, result.class_names, result.remote) == (7, ("a", "b", "c", "d"), None)


@pytest.mark.parametrize(
    ("total", "words"), [(1.0, "leave out label_mode"), (100.0, "divide by 100")]
)
def test_probabilities_that_are_said_to_be_logits_are_refused(total: float, words: str) -> None:
    images = torch.rand(8, 1, 4, 4, generator=torch.Generator().manual_seed(0))

    def answer(x_BCHW: Tensor) -> Tensor:
        return x_BCHW.flatten(1)[:, :5].mul(3).softmax(1) * total

    facts = {"shape": (1, 4, 4), "num_classes": 5}
    said: Any = wrap_callable(answer, label_mode="logits", **facts)
    refusal(f"add up to {total:g} for every image.*{words}", said, images, error=TeacherError)
    logits = wrap_callable(lambda x: x.flatten(1)[:, :5].mul(3), label_mode="logits", **facts)
    assert logits(images).shape == (8, 5)
    lone = wrap_callable(lambda x: 100 * x.mean((1, 2, 3)), shape=(1, 4, 4), num_classes=2)
    refusal(
        "if these are percentages, divide them by 100; if these are",
        lone,
        images,
        error=TeacherError,
    )
