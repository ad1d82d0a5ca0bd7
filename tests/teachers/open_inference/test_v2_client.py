"""The v2 client against a server that a test scripts: what is sent, what is taken, and what is refused."""

from __future__ import annotations

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
from service import http

from dfme.errors import Unusable, UserError
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
    assert made.max_batch is None


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


@pytest.mark.parametrize(
    ("shape", "config", "layout", "sent"),
    [
        ([-1, 2, 2, 3], {}, "auto", IMAGES.permute(0, 2, 3, 1)),
        ([-1, -1, -1, -1], {"shape": (3, 2, 2)}, "nhwc", IMAGES.permute(0, 2, 3, 1)),
        ([-1, -1, -1, 3], {"shape": (3, 2, 2)}, "auto", IMAGES.permute(0, 2, 3, 1)),
        ([-1, 12], {"shape": (3, 2, 2)}, "auto", IMAGES.reshape(2, 12)),
        ([-1, 12], {"shape": (3, 2, 2)}, "nhwc", IMAGES.permute(0, 2, 3, 1).reshape(2, 12)),
        ([3, 2, 2], {}, "auto", IMAGES),
        ([-1, 2, 2], {}, "auto", GREY[:, 0]),
    ],
)
@pytest.mark.parametrize("encoding", ["binary", "json"])
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
    with pytest.raises(UserError, match=r"--teacher\.mean.*takes bytes"), normalised:
        pass


def test_a_version_is_asked_for_and_checked() -> None:
    script = V2()
    with v2_teacher(script, version="2/x") as made:
        script.infer = lambda asked: answer(asked, scores(asked.pixels), model_version="2/x")
        made(GREY)
        script.infer = lambda asked: answer(asked, scores(asked.pixels))
        with pytest.raises(Unusable, match="expected model_version '2/x', got '1'"):
            made(GREY)
    assert script.asked[0].path == "/v2/models/m/versions/2%2Fx/infer"
    assert "/v2/models/m/versions/2%2Fx/ready" in script.got


def test_named_tensors_are_chosen_among_several() -> None:
    script = V2(
        inputs=[tensor("mask", "FP32", [-1, 1]), *colour()],
        outputs=[tensor("y", "FP32", [-1, 3]), tensor("features", "FP32", [-1, 512])],
    )
    both = [tensor("features", "FP32", [1, 1]), tensor("y", "FP64", [2, 3])]
    data = ([0.0], [[0, 0.5, 0.5], [1, 0, 0]])
    outputs = [{**entry, "data": numbers} for entry, numbers in zip(both, data, strict=True)]
    script.infer = lambda asked: http({"model_name": "m", "outputs": outputs})
    with v2_teacher(script, input="x", output="y") as made:
        assert made(IMAGES).tolist() == [[0, 0.5, 0.5], [1, 0, 0]]
    assert script.asked[0].message["inputs"][0]["name"] == "x"


def answers(*shape: int, dtype: str = "<f4", **changes: Any) -> Callable[[Asked], bytes]:
    """An answer of small numbers in this shape."""
    array = (np.arange(math.prod(shape)).reshape(shape) % 2).astype(dtype)
    return lambda asked: answer(asked, array, **changes)


@pytest.mark.parametrize("binary", [True, False])
def test_sizes_of_one_and_single_scores_and_labels_are_read(binary: bool) -> None:
    script = V2(outputs=[tensor("y", "FP32", [-1, 3, 1, 1])])
    script.infer = answers(2, 3, 1, 1, binary=binary)
    with v2_teacher(script) as made:
        assert made(GREY).tolist() == [[0, 1, 0], [1, 0, 1]]
    script = V2(outputs=[tensor("y", "FP32", [-1, 1])], infer=answers(2, 1, binary=binary))
    with v2_teacher(script) as made, v2_teacher(script, {"label_mode": "logits"}) as logits:
        assert made.num_classes == 2
        assert made(GREY).tolist() == [[1, 0], [0, 1]]
        assert logits(GREY).tolist() == [[0, 0], [0, 1]]
    for shape in ((2,), (2, 1)):
        script = V2(outputs=[tensor("y", "INT64", [-1, *shape[1:]])], infer=answers(*shape, dtype="<i8"))
        with v2_teacher(script, {"label_mode": "label", "num_classes": 3}) as made:
            labels_B = made(GREY)
            assert (labels_B.dtype, labels_B.tolist()) == (torch.int64, [0, 1])
            assert made.label_mode == LabelMode("label")
    script = V2(outputs=[tensor("y", "UINT8", [-1, 3])], infer=answers(2, 3, dtype="u1", binary=binary))
    with v2_teacher(script) as made:
        assert made(GREY).tolist() == [[0, 1, 0], [1, 0, 1]]
        assert restrict(made, LabelMode("label"))(GREY).tolist() == [1, 0]


def test_unrevealed_scores_are_nan_in_either_encoding() -> None:
    hidden = np.array([[np.nan, 0.75, np.nan], [0.5, np.nan, np.nan]], np.float32)
    for encoding in ("binary", "json"):
        script = V2(parameters={"label_mode": "top_k:1"}, infer=lambda asked: answer(asked, hidden))
        with v2_teacher(script, encoding=encoding) as made:
            assert np.array_equal(made(GREY).numpy(), hidden, equal_nan=True)
            assert made.label_mode == LabelMode("top_k", k=1)


@pytest.mark.parametrize(
    ("infer", "words"),
    [
        (answers(1, 3), r"expected scores \[2, 3\], got FP32 \[1, 3\]"),
        (answers(2, 4), r"expected scores \[2, 3\], got FP32 \[2, 4\]"),
        (answers(2), r"expected scores \[2, 3\], got FP32 \[2\]"),
        (answers(2, dtype="<i8"), "--teacher.label-mode label"),
        (answers(2, 3, name="z"), r"expected the output y, got \['z'\]"),
        (lambda asked: http({"outputs": []}), "expected the output y"),
        (lambda asked: http({"outputs": None}), "expected a list 'outputs', got None"),
        (answers(2, 3, model_name="n"), "expected model_name 'm', got 'n'"),
        (answers(2, 3, id="other"), "expected id 'key', got 'other'"),
        (answers(2, 3, id=5), "expected id 'key', got 5"),
        (answers(2, 3, shape=[2, 4]), "expected 32 bytes for FP32"),
        (lambda asked: http({"error": "sorry"}), "expected a list 'outputs', got None"),
        (lambda asked: http(b"\x80garbage"), "expected JSON"),
        (lambda asked: http(b""), "expected JSON"),
        (lambda asked: http(b"{}", **{LENGTH: "x"}), "as a whole number"),
        (lambda asked: http(b"{}", **{LENGTH: "9"}), "a JSON header of 1 to 2 bytes"),
        (lambda asked: http(b"[" * 3_000_000), "more"),
    ],
)
def test_what_cannot_be_the_answer_is_unusable(infer: Callable[[Asked], bytes], words: str) -> None:
    with v2_teacher(V2(infer=infer)) as made, pytest.raises(Unusable, match=words) as caught:
        made.ask(GREY, "key")
    assert "\n" not in str(caught.value)
    assert caught.value.reason


def test_labels_that_are_no_whole_numbers_are_unusable() -> None:
    script = V2(outputs=[tensor("y", "INT64", [-1])], infer=answers(2))
    words = r"expected labels \[2\] as whole numbers, got FP32 \[2\]"
    with v2_teacher(script, {"label_mode": "label", "num_classes": 3}) as made, pytest.raises(Unusable, match=words):
        made(GREY)


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
        (texts(["0.5", "0.5:2"], ["1:0", "0:1"]), "score:index, got b'0.5'"),
        (texts(["x:1", "0.5:2"], ["1:0", "0:1"]), "score:index, got b'x:1'"),
        (texts(["nan:1", "0.5:2"], ["1:0", "0:1"]), "score:index, got b'nan:1'"),
        (texts(["1:-1", "0.5:2"], ["1:0", "0:1"]), "score:index, got b'1:-1'"),
        (texts(["0.5:2"], ["1:0"]), r"expected BYTES \[2, 2\] .*, got BYTES \[2, 1\]"),
        (answers(2, 2), r"expected BYTES \[2, 2\] .*, got FP32 \[2, 2\]"),
    ],
)
def test_texts_that_are_no_classification_are_unusable(infer: Callable[[Asked], bytes], words: str) -> None:
    with v2_teacher(V2(infer=infer), classification=2) as made, pytest.raises(Unusable, match=words):
        made(GREY)
