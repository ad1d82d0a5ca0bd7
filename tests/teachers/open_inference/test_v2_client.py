"""The v2 client against a server that a test scripts: what is sent, what is taken, and what is refused."""

import json
import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from clients import GREY, IMAGES, v2_teacher
from protocols import LENGTH, V2, Asked, answer, scores, tensor
from refusals import refused
from service import http

from dfme.errors import Unusable
from dfme.spec import LabelMode
from dfme.teachers.label_modes import restrict

pytestmark = pytest.mark.integration


def colour(datatype: str = "FP32", shape: list[int] | None = None) -> list[dict[str, Any]]:
    return [tensor("x", datatype, shape or [-1, 3, 2, 2])]


@pytest.mark.parametrize("encoding", ["binary", "json"])
@pytest.mark.parametrize("datatype", ["FP32", "FP16", "FP64"])
def test_pixels_arrive_and_scores_come_back_to_the_last_bit(encoding: str, datatype: str) -> None:
    script = V2(inputs=colour(datatype))
    with v2_teacher(script, encoding=encoding) as made:
        scores_BK = made.ask(IMAGES, "k1")
    (asked,) = script.asked
    assert asked.binary == (encoding == "binary")
    assert asked.path == "/v2/models/m/infer"
    assert asked.message["id"] == asked.headers["idempotency-key"] == "k1"
    assert np.array_equal(asked.pixels, IMAGES.numpy())
    assert scores_BK.dtype == torch.float32
    assert np.array_equal(scores_BK.numpy(), scores(IMAGES.numpy()))
    assert (made.spec.shape, made.num_classes, made.label_mode) == ((3, 2, 2), 3, LabelMode("probabilities"))
    assert made.info.max_batch is None


def test_the_request_is_as_the_extension_wants_it() -> None:
    script = V2()
    with v2_teacher(script) as binary, v2_teacher(script, encoding="json") as plain:
        binary.ask(GREY, "a")
        plain.ask(GREY, "b")
    first, second = script.asked
    assert first.headers["content-type"] == "application/octet-stream"
    assert first.message["parameters"] == {"binary_data_output": True}
    assert first.message["outputs"] == [{"name": "y", "parameters": {"binary_data": True}}]
    assert second.headers["content-type"] == "application/json"
    assert "parameters" not in second.message
    assert second.message["outputs"] == [{"name": "y"}]


@pytest.mark.parametrize("encoding", ["binary", "json"])
def test_bytes_carry_each_of_their_levels(encoding: str) -> None:
    codes = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16)
    script = V2(inputs=[tensor("x", "UINT8", [-1, 1, 16, 16])])
    with v2_teacher(script, {"bounds": (-1.0, 1.0)}, encoding=encoding) as made:
        assert (made.spec.levels, made.spec.bounds) == (256, (-1.0, 1.0))
        made.ask(made.spec.quantise(torch.from_numpy(codes.astype(np.float32) / 127.5 - 1)), "k")
        made.ask(torch.full((1, 1, 16, 16), 9.0), "k")
    assert np.array_equal(script.asked[0].pixels, codes)
    assert script.asked[0].message["inputs"][0]["datatype"] == "UINT8"
    assert (script.asked[1].pixels == 255).all()


GIVEN = {"shape": (3, 2, 2)}
LAST = IMAGES.permute(0, 2, 3, 1)
TRAVELS: list[tuple[list[int], dict[str, Any], str, torch.Tensor]] = [
    ([-1, 2, 2, 3], {}, "auto", LAST),
    ([-1, -1, -1, -1], GIVEN, "nhwc", LAST),
    ([-1, -1, -1, 3], GIVEN, "auto", LAST),
    ([-1, 12], GIVEN, "auto", IMAGES.reshape(2, 12)),
    ([-1, 12], GIVEN, "nhwc", LAST.reshape(2, 12)),
    ([3, 2, 2], {}, "auto", IMAGES),
    ([-1, 2, 2], {}, "auto", GREY[:, 0]),
]


@pytest.mark.parametrize("encoding", ["binary", "json"])
@pytest.mark.parametrize(("shape", "config", "layout", "sent"), TRAVELS)
def test_images_travel_in_the_models_layout(
    shape: list[int], config: dict[str, Any], layout: str, sent: torch.Tensor, encoding: str
) -> None:
    script = V2(inputs=colour(shape=shape))
    with v2_teacher(script, config, layout=layout, encoding=encoding) as made:
        made(IMAGES if made.spec.shape[0] == 3 else GREY)
    assert np.array_equal(script.asked[0].pixels, sent.numpy())


def test_the_services_own_normalisation_is_done_before_sending() -> None:
    script = V2(inputs=colour())
    with v2_teacher(script, {"mean": (0.5, 0.25, 0.0), "std": (0.5,) * 3}) as made:
        made(IMAGES)
    mean = np.array([0.5, 0.25, 0.0], np.float32).reshape(3, 1, 1)
    assert np.array_equal(script.asked[0].pixels, (IMAGES.numpy() - mean) * 2)
    normalised = v2_teacher(V2(inputs=colour("UINT8")), {"mean": (0.5,) * 3, "std": (0.5,) * 3})
    refused("--teacher.mean", normalised.__enter__)


def test_a_version_is_asked_for_and_checked() -> None:
    script = V2()
    with v2_teacher(script, version="2/x") as made:
        script.infer = lambda asked: answer(asked, scores(asked.pixels), model_version="2/x")
        made(GREY)
        script.infer = lambda asked: answer(asked, scores(asked.pixels))
        refused("expected model_version '2/x', got '1'", made, GREY, error=Unusable)
    assert script.asked[0].path == "/v2/models/m/versions/2%2Fx/infer"
    assert "/v2/models/m/versions/2%2Fx/ready" in script.got


def test_named_tensors_are_chosen_among_several() -> None:
    inputs, outputs = (
        [tensor(name, "FP32", [-1, 1]), *others]
        for name, others in (("mask", colour()), ("features", [tensor("y", "FP32", [-1, 3])]))
    )
    said = [tensor("features", "FP32", [1, 1]) | {"data": [0.0]}]
    said.append(tensor("y", "FP64", [2, 3]) | {"data": [[0, 0.5, 0.5], [1, 0, 0]]})
    script = V2(inputs, outputs, infer=lambda asked: http({"model_name": "m", "outputs": said}))
    with v2_teacher(script, input="x", output="y") as made:
        assert made(IMAGES).tolist() == [[0, 0.5, 0.5], [1, 0, 0]]
    assert script.asked[0].message["inputs"][0]["name"] == "x"


def answers(*shape: int, dtype: str = "<f4", **changes: Any) -> Callable[[Asked], bytes]:
    """An answer of small numbers in this shape."""
    array = (np.arange(math.prod(shape)).reshape(shape) % 2).astype(dtype)
    return lambda asked: answer(asked, array, **changes)


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize(
    ("shape", "dtype", "config", "read"),
    [
        ((2, 3, 1, 1), "<f4", {}, [[0, 1, 0], [1, 0, 1]]),
        ((2, 1), "<f4", {}, [[1, 0], [0, 1]]),
        ((2, 1), "<f4", {"label_mode": "logits"}, [[0, 0], [0, 1]]),
        ((2,), "<i8", {"label_mode": "label", "num_classes": 3}, [0, 1]),
        ((2, 1), "<i8", {"label_mode": "label", "num_classes": 3}, [0, 1]),
        ((2, 3), "u1", {}, [[0, 1, 0], [1, 0, 1]]),
    ],
)
def test_sizes_of_one_and_single_scores_and_labels_are_read(
    shape: tuple[int, ...], dtype: str, config: dict[str, Any], read: list[Any], binary: bool
) -> None:
    datatype = {"<f4": "FP32", "<i8": "INT64", "u1": "UINT8"}[dtype]
    infer = answers(*shape, dtype=dtype, binary=binary)
    with v2_teacher(V2(outputs=[tensor("y", datatype, [-1, *shape[1:]])], infer=infer), config) as made:
        given = made(GREY)
        assert (given.tolist(), given.dtype == torch.int64) == (read, dtype == "<i8")
        assert made.label_mode.kind == config.get("label_mode", "probabilities")
        if given.ndim == 2:
            assert restrict(made, LabelMode("label"))(GREY).tolist() == given.argmax(1).tolist()


def test_unrevealed_scores_are_nan_in_either_encoding() -> None:
    hidden = np.array([[np.nan, 0.75, np.nan], [0.5, np.nan, np.nan]], np.float32)
    for encoding in ("binary", "json"):
        script = V2(parameters={"label_mode": "top_k:1"}, infer=lambda asked: answer(asked, hidden))
        with v2_teacher(script, encoding=encoding) as made:
            assert np.array_equal(made(GREY).numpy(), hidden, equal_nan=True)
            assert made.label_mode == LabelMode("top_k", k=1)


NO_ANSWERS: list[tuple[Callable[[Asked], bytes], str]] = [
    (answers(1, 3), "got FP32 [1, 3]"),
    (answers(2, 4), "got FP32 [2, 4]"),
    (answers(2), "got FP32 [2]"),
    (answers(2, dtype="<i8"), "--teacher.label-mode label"),
    (answers(2, 3, name="z"), "the output y"),
    (lambda asked: http({"outputs": []}), "the output y"),
    (lambda asked: http({"outputs": None}), "a list 'outputs'"),
    (answers(2, 3, model_name="n"), "model_name 'm'"),
    (answers(2, 3, id="other"), "id 'key'"),
    (answers(2, 3, id=5), "id 'key'"),
    (answers(2, 3, shape=[2, 4]), "32 bytes for FP32"),
    (lambda asked: http({"error": "sorry"}), "a list 'outputs'"),
    (lambda asked: http(b"\x80garbage"), "expected JSON"),
    (lambda asked: http(b""), "expected JSON"),
    (lambda asked: http(b"{}", **{LENGTH: "x"}), "a whole number"),
    (lambda asked: http(b"{}", **{LENGTH: "9"}), "a JSON header"),
    (lambda asked: http(b"[" * 3_000_000), "more"),
]


@pytest.mark.parametrize(("infer", "words"), NO_ANSWERS)
def test_what_cannot_be_the_answer_is_unusable(infer: Callable[[Asked], bytes], words: str) -> None:
    with v2_teacher(V2(infer=infer)) as made:
        assert refused(words, made.ask, GREY, "key", error=Unusable).reason


def test_labels_that_are_no_whole_numbers_are_unusable() -> None:
    script = V2(outputs=[tensor("y", "INT64", [-1])], infer=answers(2))
    with v2_teacher(script, {"label_mode": "label", "num_classes": 3}) as made:
        refused("labels [2] as whole numbers", made, GREY, error=Unusable)


def texts(*rows: list[str], **changes: Any) -> Callable[[Asked], bytes]:
    """A classification as the extension has it, in the encoding that is asked for."""
    flat = [text.encode() for row in rows for text in row]
    raw = b"".join(struct.pack("<I", len(text)) + text for text in flat)
    output = {**tensor("y", "BYTES", [len(rows), len(rows[0])]), **changes}

    def infer(asked: Asked) -> bytes:
        message = {"model_name": "m", "outputs": [output]}
        if not asked.binary:
            return http({**message, "outputs": [{**output, "data": [text.decode() for text in flat]}]})
        output["parameters"] = {"binary_data_size": len(raw)}
        head = json.dumps(message).encode()
        return http(head + raw, **{LENGTH: str(len(head))})

    return infer


@pytest.mark.parametrize("encoding", ["binary", "json"])
def test_the_best_classes_are_read_from_texts(encoding: str) -> None:
    script = V2(infer=texts(["0.5:2:a cat: large", "0.25:0"], ["1e-3:1:ü", "0:2:"]))
    with v2_teacher(script, encoding=encoding, classification=2) as made:
        assert made.label_mode == LabelMode("top_k", k=2)
        nan = math.nan
        expected = torch.tensor([[0.25, nan, 0.5], [nan, 1e-3, 0.0]])
        assert torch.equal(made(GREY).nan_to_num(9), expected.nan_to_num(9))
    assert script.asked[0].message["outputs"][0]["parameters"]["classification"] == 2
    script.infer = texts(["0.5:2"], ["0.4:1"])
    with v2_teacher(script, {"label_mode": "label"}, encoding=encoding, classification=1) as made:
        assert (made.label_mode, made(GREY).tolist()) == (LabelMode("label"), [2, 1])


@pytest.mark.parametrize(
    ("infer", "words"),
    [
        (texts(["0.5:2", "0.5:2"], ["1:0", "0:1"]), "a class twice or beyond"),
        (texts(["0.5:3", "0.5:2"], ["1:0", "0:1"]), "a class twice or beyond"),
        *((texts([odd, "0.5:2"], ["1:0", "0:1"]), "score:index") for odd in ("0.5", "x:1", "nan:1", "1:-1")),
        (texts(["0.5:2"], ["1:0"]), "got BYTES [2, 1]"),
        (answers(2, 2), "got FP32 [2, 2]"),
    ],
)
def test_texts_that_are_no_classification_are_unusable(infer: Callable[[Asked], bytes], words: str) -> None:
    with v2_teacher(V2(infer=infer), classification=2) as made:
        refused(words, made, GREY, error=Unusable)
