"""What the v2 client makes of a model's metadata and flags; models without an axis for the batch, or of one score an image."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from clients import v2_teacher
from damage import refused
from protocols import V2, Asked, answer, tensor
from service import Service, http

from dfme.config.settings import TeacherConfig
from dfme.config.values import from_mapping
from dfme.errors import TeacherError
from dfme.oracle.ledger import Ledger
from dfme.oracle.oracle import Oracle
from dfme.spec import ImageSpec, LabelMode
from dfme.teachers.open_inference.client import connect_v2
from dfme.teachers.open_inference.layout import ImageLayout, find_layout
from dfme.teachers.options import V2Options
from dfme.teachers.remote.teacher import RemoteTeacher

CPU = torch.device("cpu")
ANNOUNCED = {"label_mode": "probabilities:4", "bounds": [-1, 1.0], "levels": 16, "layout": "nchw"}
ANNOUNCED |= {"max_batch": 64, "num_classes": 3}


def connect(script: V2, config: dict[str, Any] | None = None, **options: Any) -> RemoteTeacher:
    """A client of the script's model, which is asked for its metadata and nothing more."""
    with Service(script) as service:
        client = connect_v2(
            V2Options(url=service.url, model="m", **options), TeacherConfig(**config or {}), CPU
        )
        client.close()
    assert not script.asked
    return client


@pytest.mark.parametrize(
    ("metadata", "given", "order", "layout"),
    [
        ((-1, 3, 8, 9), None, None, ((3, 8, 9), "nchw", (3, 8, 9), None)),
        ((-1, 8, 9, 5), None, "nhwc", ((5, 8, 9), "nhwc", (8, 9, 5), None)),
        ((1, 1, 8, 8), None, None, ((1, 8, 8), "nchw", (1, 8, 8), 1)),
        ((16, 1, 8, 8), None, None, ((1, 8, 8), "nchw", (1, 8, 8), 16)),
        ((-1, -1, -1, -1), (3, 8, 9), "nchw", ((3, 8, 9), "nchw", (3, 8, 9), None)),
        ((-1, 3, -1, -1), (3, 8, 9), None, ((3, 8, 9), "nchw", (3, 8, 9), None)),
        ((-1, 5, 5, 7), (7, 5, 5), None, ((7, 5, 5), "nhwc", (5, 5, 7), None)),
        ((-1, -1, -1), (1, 8, 9), None, ((1, 8, 9), "nchw", (8, 9), None)),
        ((-1, 64), (1, 8, 8), None, ((1, 8, 8), "nchw", (64,), None)),
        ((4, -1), (3, 8, 8), "nhwc", ((3, 8, 8), "nhwc", (192,), 4)),
        (None, (3, 8, 9), "nhwc", ((3, 8, 9), "nhwc", (8, 9, 3), None)),
    ],
)
def test_the_layout_follows_from_metadata_and_flags(
    metadata: tuple[int, ...] | None,
    given: tuple[int, int, int] | None,
    order: str | None,
    layout: tuple[Any, ...],
) -> None:
    assert find_layout(metadata, given, order) == ImageLayout(*layout)


@pytest.mark.parametrize(
    ("metadata", "given", "order", "words"),
    [
        ((-1, -1, -1, -1), None, None, "--teacher.shape: give"),
        ((-1, 3, -1, -1), None, "nchw", "--teacher.shape: give"),
        (None, None, None, "--teacher.shape: give"),
        (None, (3, 8, 8), None, "--teacher.layout: give"),
        ((-1, -1, -1, -1), (3, 8, 8), None, "--teacher.layout: give"),
        ((-1, 3, 8, 3), None, None, "--teacher.layout: give"),
        ((-1, 5, 8, 8), None, None, "--teacher.layout: give"),
        ((-1, 3, 8, 8), (3, 8, 9), None, "--teacher.shape: expected"),
        ((-1, 3, 8, 8), (3, 8, 8), "nhwc", "--teacher.shape: expected"),
        ((-1, 64), None, None, "--teacher.shape: give"),
        ((-1, 64), (1, 8, 9), None, "--teacher.shape: expected"),
        ((-1, 8, 8), (3, 8, 8), None, "--teacher.shape: expected"),
        ((-1,), None, None, "a batch of images"),
        ((), None, None, "a batch of images"),
        ((-1, 1, 2, 3, 4), None, None, "a batch of images"),
    ],
)
def test_a_layout_that_cannot_be_told_names_the_flag(
    metadata: tuple[int, ...] | None,
    given: tuple[int, int, int] | None,
    order: str | None,
    words: str,
) -> None:
    refused(words, find_layout, metadata, given, order)


@pytest.mark.integration
def test_what_our_own_server_announces_is_used() -> None:
    script = V2(outputs=[tensor("y", "FP32", [-1, -1])], parameters=ANNOUNCED)
    client = connect(script)
    assert client.spec == ImageSpec((1, 2, 2), (-1.0, 1.0), 16)
    assert (client.num_classes, client.info.max_batch, str(client.label_mode)) == (
        3,
        64,
        "probabilities:4",
    )
    client = connect(script, {"bounds": (0.0, 2.0), "levels": 4, "max_batch": 7})
    assert (client.spec.bounds, client.spec.levels, client.info.max_batch) == ((0.0, 2.0), 4, 7)
    client = connect(
        V2(parameters={**ANNOUNCED, "label_mode": "label"}, outputs=[tensor("y", "INT64", [-1])])
    )
    assert (client.label_mode, client.num_classes) == (LabelMode("label"), 3)
    strange = {"label_mode": 3, "bounds": [0, "x"], "levels": "8", "layout": 7}
    strange |= {"max_batch": True, "num_classes": -2}
    client = connect(V2(parameters=strange))
    assert (client.spec, client.num_classes, client.info.max_batch) == (
        ImageSpec((1, 2, 2)),
        3,
        None,
    )


@pytest.mark.integration
@pytest.mark.parametrize(
    ("config", "flag", "shape", "limit"),
    [
        ({"max_batch_size": 8}, None, [-1, 1, 2, 2], 8),
        ({"max_batch_size": 8}, 4, [-1, 1, 2, 2], 4),
        ({"max_batch_size": 0}, None, [-1, 1, 2, 2], None),
        ({"max_batch_size": 0}, None, [4, 1, 2, 2], 4),
        ({"max_batch_size": "8"}, None, [-1, 1, 2, 2], None),
        (None, 4, [-1, 1, 2, 2], 4),
        (None, None, [1, 1, 2, 2], 1),
    ],
)
def test_the_smallest_batch_limit_holds(
    config: dict[str, Any] | None, flag: int | None, shape: list[int], limit: int | None
) -> None:
    client = connect(V2(inputs=[tensor("x", "FP32", shape)], config=config), {"max_batch": flag})
    assert client.info.max_batch == limit


@pytest.mark.integration
@pytest.mark.parametrize(
    ("output", "config", "classes", "mode"),
    [
        (("FP32", [-1, 5]), {"num_classes": 5, "label_mode": "logits"}, 5, "logits"),
        (("FP16", [-1, 5, 1, 1]), {"label_mode": "top_k:2"}, 5, "probabilities"),
        (("FP32", [-1, 5]), {"label_mode": "label"}, 5, "probabilities"),
        (("FP64", [-1, 1]), {}, 2, "probabilities"),
        (("FP32", [-1, -1]), {"num_classes": 7}, 7, "probabilities"),
        (("INT64", [-1]), {"num_classes": 7}, 7, "label"),
        (("UINT8", [-1, 1]), {"num_classes": 7, "label_mode": "label"}, 7, "label"),
        (("INT32", [-1, -1]), {"num_classes": 7, "label_mode": "label"}, 7, "label"),
        (("INT32", [-1, -1]), {"num_classes": 7}, 7, "probabilities"),
    ],
)
def test_classes_and_label_mode_follow_from_the_output(
    output: tuple[str, list[int]], config: dict[str, Any], classes: int, mode: str
) -> None:
    client = connect(V2(outputs=[tensor("y", *output)]), config)
    assert (client.num_classes, str(client.label_mode)) == (classes, mode)


@pytest.mark.integration
def test_a_server_without_metadata_of_tensors_is_asked_by_flags() -> None:
    script = V2(inputs=[], outputs=[])
    config = {"shape": (1, 2, 2), "num_classes": 3}
    assert connect(script, config, input="x", layout="nchw").spec.shape == (1, 2, 2)
    refused("--teacher.input", connect, script, config)
    refused(
        "--teacher.num-classes: give it",
        connect,
        script,
        {"shape": (1, 2, 2)},
        input="x",
        layout="nchw",
    )


TWO = [tensor("image", "FP32", [-1, 1, 2, 2]), tensor("mask", "FP32", [-1, 1, 2, 2])]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("script", "config", "options", "words"),
    [
        (V2(inputs=TWO), {}, {}, "--teacher.input"),
        (V2(inputs=TWO), {}, {"input": "imgae"}, "did you mean image?"),
        (V2(outputs=TWO), {}, {}, "--teacher.output"),
        (V2(outputs=TWO), {}, {"output": "maks"}, "did you mean mask?"),
        (V2(outputs=[tensor("y", "FP32", [-1, 4, 4])]), {}, {}, "--teacher.output"),
        (V2(), {"num_classes": 4}, {}, "--teacher.num-classes"),
        (V2(parameters=ANNOUNCED), {"num_classes": 4}, {}, "--teacher.num-classes"),
        (V2(outputs=[tensor("y", "INT64", [-1])]), {}, {}, "--teacher.num-classes: give it"),
        (V2(), {"shape": (3, 2, 2)}, {}, "--teacher.shape"),
        (V2(inputs=[tensor("x", "BYTES", [-1, 1, 2, 2])]), {}, {}, "--teacher.input"),
        (V2(inputs=[tensor("x", "UINT8", [-1, 1, 2, 2])]), {"levels": 16}, {}, "--teacher.levels"),
        (V2(inputs={"x": 1}), {}, {}, "inputs as a list"),  # type: ignore[arg-type]
        (V2(outputs=[{"name": "y"}]), {}, {}, "names and datatypes"),
        (
            V2(pages={"/v2/models/m": http({"error": "unknown model"}, 404)}),
            {},
            {},
            "unknown model",
        ),
        (V2(pages={"/v2/models/m": http(b"<html>")}), {}, {}, "a JSON object"),
        (V2(pages={"/v2/models/m/ready": http(b"", 400)}), {}, {}, "400"),
        (V2(pages={"/v2/health/ready": http(b"", 503)}), {}, {}, "503"),
        (V2(outputs=[tensor("y", "FP32", [-1, 1_000_001])]), {}, {}, "at most 1,000,000"),
        (V2(inputs=[tensor("x", "FP32", [-1, 3, 10**4, 10**4])]), {}, {}, "images of at most"),
    ],
)
def test_what_is_missing_or_contradictory_is_said_in_a_line(
    script: V2, config: dict[str, Any], options: dict[str, Any], words: str
) -> None:
    refused(words, connect, script, config, **options)
    assert not script.asked


def test_what_needs_no_answer_is_refused_before_anybody_is_asked() -> None:
    given = {"url": "http://127.0.0.1:9", "model": "m", "attempts": 0}
    refused("--teacher.attempts", from_mapping, V2Options, given, "--teacher.")
    refused(
        "--teacher.authorised-by",
        connect_v2,
        V2Options(url="http://192.0.2.1:8000", model="m"),
        TeacherConfig(),
        CPU,
    )


IMAGES = torch.rand(5, 1, 5, 5, generator=torch.Generator().manual_seed(0))


def ten_classes(pixels: np.ndarray) -> np.ndarray:
    """The model: probabilities of ten classes for each image, float32."""
    return (
        (
            torch.tensor(pixels.reshape(-1, 25)).double()
            @ torch.rand(25, 10, generator=torch.Generator().manual_seed(1)).double()
        )
        .softmax(1)
        .float()
        .numpy()
    )


def exact(takes: tuple[int, ...], gives: tuple[int, ...]) -> Callable[[Asked], bytes]:
    """A server that takes one image of this very shape, and gives scores of the other."""

    def infer(question: Asked) -> bytes:
        if question.pixels.shape != takes:
            return http(
                {"error": f"unexpected shape for input 'x': {list(question.pixels.shape)}"}, 400
            )
        return answer(question, ten_classes(question.pixels).reshape(gives))

    return infer


@pytest.mark.integration
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
    with v2_teacher(script, encoding=encoding) as client:
        assert (client.num_classes, client.spec.shape) == (10, (1, 5, 5))
        ledger = Ledger(10)
        answers = Oracle(client, ledger)(IMAGES)
    assert np.array_equal(answers.numpy(), ten_classes(IMAGES.numpy()))
    assert (ledger.spent, ledger.failed) == (5, 0)


@pytest.mark.integration
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
    with v2_teacher(script, config) as client:
        assert client.num_classes == 10
        answers = Oracle(client, Ledger(10))(IMAGES)
    assert np.array_equal(answers.numpy(), ten_classes(IMAGES.numpy()))


@pytest.mark.integration
@pytest.mark.parametrize(
    ("takes", "gives"),
    [([-1, 1, 5, 5], [-1]), ([-1, 1, 5, 5], [-1, 1]), ([1, 1, 5, 5], [1]), ([1, 5, 5], [1])],
)
def test_one_score_an_image_is_that_of_the_second_of_two_classes(
    takes: list[int], gives: list[int]
) -> None:
    def infer(question: Asked) -> bytes:
        batch = question.pixels.size // 25
        shape = [batch if size == -1 else size for size in gives]
        return answer(
            question, question.pixels.reshape(batch, 25).mean(1).astype(np.float32).reshape(shape)
        )

    most = 8 if takes[0] == -1 else 0
    script = V2(
        inputs=[tensor("x", "FP32", takes)],
        outputs=[tensor("y", "FP32", gives)],
        config={"max_batch_size": most},
        infer=infer,
    )
    with v2_teacher(script) as client:
        answers = Oracle(client, Ledger(10))(IMAGES)
    assert torch.allclose(answers[:, 1], IMAGES.mean(dim=(1, 2, 3)))
    assert torch.allclose(answers.sum(1), torch.ones(5))


@pytest.mark.integration
@pytest.mark.parametrize("mode", [None, "label"])
def test_a_lone_logit_taken_for_a_probability_is_refused_in_every_mode(mode: str | None) -> None:
    script = V2(
        inputs=[tensor("x", "FP32", [-1, 1, 5, 5])],
        outputs=[tensor("y", "FP32", [-1, 1])],
        infer=lambda question: answer(
            question, np.full((len(question.pixels), 1), 2.5, np.float32)
        ),
    )
    config: dict[str, Any] = {} if mode is None else {"label_mode": mode}
    with (
        v2_teacher(script, config) as client,
        pytest.raises(TeacherError, match="label-mode logits"),
    ):
        Oracle(client, Ledger(10))(IMAGES)


@pytest.mark.integration
def test_an_output_of_texts_is_refused_before_the_first_query() -> None:
    script = V2(outputs=[tensor("y", "BYTES", [-1, 1])])
    words = "--teacher.output: expected numbers, got the output 'y' 'BYTES'"
    refused(words, v2_teacher(script).__enter__)
    assert not script.asked
