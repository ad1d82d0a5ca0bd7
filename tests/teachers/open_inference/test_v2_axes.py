"""Protocol v2 without an axis for the batch, and with one score an image: against a server of exact
shapes.

A model whose configuration says ``max_batch_size`` 0 takes and gives tensors of the very shapes
that its metadata state (Triton's model configuration, section Maximum Batch Size).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from clients import v2_teacher
from damage import refused
from protocols import V2, Asked, answer, tensor
from service import http

from dfme.errors import TeacherError
from dfme.oracle.ledger import Ledger
from dfme.oracle.oracle import Oracle

pytestmark = pytest.mark.integration

IMAGES = torch.rand(5, 1, 5, 5, generator=torch.Generator().manual_seed(0))
TEN = torch.rand(25, 10, generator=torch.Generator().manual_seed(1)).double()


def ten_classes(pixels: np.ndarray) -> np.ndarray:
    """The model: probabilities of ten classes for each image, float32."""
    return (torch.tensor(pixels.reshape(-1, 25)).double() @ TEN).softmax(1).float().numpy()


def exact(takes: tuple[int, ...], gives: tuple[int, ...]) -> Callable[[Asked], bytes]:
    """A server that takes one image of this very shape, and gives scores of the other."""

    def infer(asked: Asked) -> bytes:
        if asked.pixels.shape != takes:
            return http(
                {"error": f"unexpected shape for input 'x': {list(asked.pixels.shape)}"}, 400
            )
        return answer(asked, ten_classes(asked.pixels).reshape(gives))

    return infer


@pytest.mark.parametrize("config", [{"max_batch_size": 0}, None], ids=["says so", "does not say"])
@pytest.mark.parametrize("gives", [(10,), (1, 10)])
@pytest.mark.parametrize("encoding", ["binary", "json"])
def test_a_size_without_a_batch_is_the_number_of_classes(
    config: dict[str, int] | None, gives: tuple[int, ...], encoding: str
) -> None:
    script = V2(
        inputs=[tensor("x", "FP32", [1, 5, 5])],
        outputs=[tensor("y", "FP32", list(gives))],
        config=config,
        infer=exact((1, 5, 5), gives),
    )
    with v2_teacher(script, encoding=encoding) as made:
        assert (made.num_classes, made.spec.shape) == (10, (1, 5, 5))
        ledger = Ledger(10)
        answers = Oracle(made, ledger)(IMAGES)
    assert np.array_equal(answers.numpy(), ten_classes(IMAGES.numpy()))
    assert (ledger.spent, ledger.failed) == (5, 0)


@pytest.mark.parametrize(
    ("takes", "gives", "shape"),
    [
        ([-1, 1, 5, 5], [10], None),  # the output alone leaves its axis out
        ([1, 1, 5, 5], [10], None),
        ([1, 1, 5, 5], [1, 10, 1, 1], None),
        ([5, 5], [10], None),
        ([25], [10], (1, 5, 5)),
        ([5, 5, 1], [10, 1], (1, 5, 5)),
    ],
)
def test_ten_classes_in_other_shapes(
    takes: list[int], gives: list[int], shape: tuple[int, int, int] | None
) -> None:
    one = tuple(abs(size) for size in takes)
    script = V2(
        inputs=[tensor("x", "FP32", takes)],
        outputs=[tensor("y", "FP32", gives)],
        config={"max_batch_size": 0},
        infer=exact(one, tuple(gives)),
    )
    config = {} if shape is None else {"shape": shape}
    with v2_teacher(script, config) as made:
        assert made.num_classes == 10
        answers = Oracle(made, Ledger(10))(IMAGES)
    assert np.array_equal(answers.numpy(), ten_classes(IMAGES.numpy()))


@pytest.mark.parametrize(
    ("takes", "gives"),
    [([-1, 1, 5, 5], [-1]), ([-1, 1, 5, 5], [-1, 1]), ([1, 1, 5, 5], [1]), ([1, 5, 5], [1])],
)
def test_one_score_an_image_is_that_of_the_second_of_two_classes(
    takes: list[int], gives: list[int]
) -> None:
    def infer(asked: Asked) -> bytes:
        batch = asked.pixels.size // 25
        shape = [batch if size == -1 else size for size in gives]
        return answer(
            asked, asked.pixels.reshape(batch, 25).mean(1).astype(np.float32).reshape(shape)
        )

    most = 8 if takes[0] == -1 else 0
    script = V2(
        inputs=[tensor("x", "FP32", takes)],
        outputs=[tensor("y", "FP32", gives)],
        config={"max_batch_size": most},
        infer=infer,
    )
    with v2_teacher(script) as made:
        answers = Oracle(made, Ledger(10))(IMAGES)
    assert torch.allclose(answers[:, 1], IMAGES.mean(dim=(1, 2, 3)))
    assert torch.allclose(answers.sum(1), torch.ones(5))


@pytest.mark.parametrize("mode", [None, "label"])
def test_a_lone_logit_taken_for_a_probability_is_refused_in_every_mode(mode: str | None) -> None:
    script = V2(
        inputs=[tensor("x", "FP32", [-1, 1, 5, 5])],
        outputs=[tensor("y", "FP32", [-1, 1])],
        infer=lambda asked: answer(asked, np.full((len(asked.pixels), 1), 2.5, np.float32)),
    )
    config: dict[str, Any] = {} if mode is None else {"label_mode": mode}
    with v2_teacher(script, config) as made, pytest.raises(TeacherError, match="label-mode logits"):
        Oracle(made, Ledger(10))(IMAGES)


def test_an_output_of_texts_is_refused_before_the_first_query() -> None:
    script = V2(outputs=[tensor("y", "BYTES", [-1, 1])])
    words = "--teacher.output: expected numbers, got the output 'y' 'BYTES'"
    refused(words, v2_teacher(script).__enter__)
    assert not script.asked
