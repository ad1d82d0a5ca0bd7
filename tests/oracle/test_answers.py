"""Every answer that a label mode rules out is refused, saying what was expected and what came."""

import numpy as np
import pytest
import torch

from dfme.answers.reading import read_answers
from dfme.compute import DeferredChecks
from dfme.errors import TeacherError
from dfme.spec import LabelMode

CPU = torch.device("cpu")
HALF = [[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]]
NAN = float("nan")


def read(raw: object, mode: str, deferred: DeferredChecks | None = None) -> torch.Tensor:
    return read_answers(raw, 2, 3, LabelMode.parse(mode), deferred or DeferredChecks(), CPU)


@pytest.mark.parametrize(
    ("mode", "raw", "dtype"),
    [
        ("logits", torch.tensor(HALF) * 100 - 7, torch.float32),
        ("logits", torch.tensor([[3e38, 3e38, -3.4e38]] * 2), torch.float32),
        ("probabilities", HALF, torch.float32),
        ("probabilities", np.array(HALF), torch.float32),
        ("probabilities", torch.tensor(HALF, dtype=torch.float16), torch.float32),
        ("probabilities", torch.softmax(torch.randn(2, 3), 1).bfloat16(), torch.float32),
        ("probabilities", [[0, 1, 0], [1, 0, 0]], torch.float32),
        ("probabilities:1", [[0.3, 0.3, 0.3], [0.4, 0.4, 0.3]], torch.float32),
        ("top_k:1", [[NAN, 0.5, NAN], [0.9, NAN, NAN]], torch.float32),
        ("top_k:3", HALF, torch.float32),
        ("label", [2, 0], torch.int64),
        ("label", np.array([2, 0], dtype=np.int32), torch.int64),
    ],
)
def test_right_answers_come_back_as_our_own_tensor(mode: str, raw: object, dtype: torch.dtype) -> None:
    answers = read(raw, mode)
    expected = torch.as_tensor(raw)
    assert answers.dtype == dtype
    assert torch.equal(answers.nan_to_num(-1), expected.to(dtype).nan_to_num(-1))


def test_an_answer_is_copied_and_carries_no_gradient() -> None:
    buffer = torch.tensor(HALF, requires_grad=True)
    answers = read(buffer, "probabilities")
    with torch.no_grad():
        buffer.zero_()
    assert not answers.requires_grad
    assert answers.tolist() == torch.tensor(HALF).tolist()


@pytest.mark.parametrize(
    ("mode", "raw", "words"),
    [
        ("logits", None, ["tensor", "NoneType"]),
        ("logits", [[1.0, 2.0], [3.0]], ["list"]),
        ("logits", (torch.zeros(2, 3), torch.zeros(2, 5)), ["tuple"]),
        ("logits", torch.zeros(1, 3), ["(2, 3)", "(1, 3)"]),
        ("logits", torch.zeros(2, 7), ["(2, 3)", "(2, 7)", "--teacher.num-classes 7"]),
        ("logits", torch.zeros(2), ["(2,)", "--teacher.label-mode label"]),
        ("logits", torch.zeros(2, 3, 1), ["(2, 3, 1)"]),
        ("logits", torch.zeros(2, 3, dtype=torch.complex64), ["complex64"]),
        ("logits", torch.zeros(2, 3, dtype=torch.bool), ["bool"]),
        ("logits", torch.tensor([[0.0, NAN, 1.0], [0.0, 0.0, 0.0]]), ["finite", "nan"]),
        ("logits", torch.tensor([[0.0, float("inf"), 1.0], [0.0, 0.0, 0.0]]), ["finite", "inf"]),
        ("probabilities", torch.tensor([[0.5, NAN, 0.5], [0.2, 0.3, 0.5]]), ["NaN"]),
        ("probabilities", torch.tensor([[0.5, 0.3, 0.5], [0.2, 0.3, 0.5]]), ["0.3", "logits"]),
        ("probabilities", torch.tensor([[1.1, -0.1, 0.0], [0.2, 0.3, 0.5]]), ["-0.1"]),
        ("probabilities:4", [[0.3, 0.3, 0.3], [0.4, 0.4, 0.3]], ["0.1"]),
        ("top_k:1", [[NAN, 0.5, NAN], [NAN, NAN, NAN]], ["at most 2 NaN", "2 to 3 NaN"]),
        ("top_k:2", [[0.2, 0.1, -5.0], [0.9, NAN, 0.1]], ["-5"]),
        ("top_k:1", [[0.8, 0.7, 0.6], [0.9, NAN, 0.1]], ["2.1"]),
        ("top_k:1", [[NAN, 1.5, NAN], [0.9, NAN, NAN]], ["1.5"]),
        ("top_k:1", [[NAN, -0.5, NAN], [0.9, NAN, NAN]], ["-0.5"]),
        ("label", torch.zeros(2, 3), ["labels", "scores", "--teacher.label-mode"]),
        ("label", torch.zeros(2, 1, dtype=torch.int64), ["(2, 1)"]),
        ("label", torch.zeros(2), ["integers", "float32"]),
        ("label", [0, 3], ["0 to 2", "0 to 3"]),
        ("label", [-1, 2], ["-1"]),
    ],
)
def test_wrong_answers_are_refused_by_name(mode: str, raw: object, words: list[str]) -> None:
    with pytest.raises(TeacherError, match=r"^teacher: expected ") as caught:
        read(raw, mode)
    assert "\n" not in str(caught.value)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.gpu
def test_on_a_gpu_a_wrong_value_is_noticed_when_the_sentinel_is_asked() -> None:
    deferred, cuda = DeferredChecks(), torch.device("cuda")
    wrong = torch.full((2, 3), NAN, device=cuda)
    answers = read_answers(wrong, 2, 3, LabelMode.parse("logits"), deferred, cuda)
    assert answers.device.type == "cuda"
    with pytest.raises(TeacherError, match="nan"):
        deferred.verify()
