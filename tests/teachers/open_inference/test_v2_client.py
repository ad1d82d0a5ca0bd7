"""The v2 client against a server that a test scripts: what is sent, what is taken, and what is
refused.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from clients import GREY, IMAGES, v2_teacher
from damage import refused
from protocols import LENGTH, V2, Asked, answer, scores, tensor
from service import http

from dfme.config.values import narrowed
from dfme.errors import BatchTooLarge, Refused, Unusable
from dfme.spec import LabelMode, RequestPolicy
from dfme.teachers.label_modes import restrict
from dfme.teachers.open_inference.client import V2Adapter
from dfme.teachers.options import V2Options

pytestmark = pytest.mark.integration


def colour(datatype: str = "FP32", shape: list[int] | None = None) -> list[dict[str, Any]]:
    return [tensor("x", datatype, shape or [-1, 3, 2, 2])]


@pytest.mark.parametrize("encoding", ["binary", "json"])
@pytest.mark.parametrize("datatype", ["FP32", "FP16", "FP64"])
def test_pixels_arrive_and_scores_come_back_to_the_last_bit(encoding: str, datatype: str) -> None:
    script = V2(inputs=colour(datatype))
    with v2_teacher(script, encoding=encoding) as client:
        scores_BK = client.ask(IMAGES, "k1")
    (question,) = script.asked
    assert question.binary == (encoding == "binary")
    assert question.path == "/v2/models/m/infer"
    assert question.message["id"] == question.headers["idempotency-key"] == "k1"
    assert np.array_equal(question.pixels, IMAGES.numpy())
    assert scores_BK.dtype == torch.float32
    assert np.array_equal(scores_BK.numpy(), scores(IMAGES.numpy()))
    assert (client.spec.shape, client.num_classes, client.label_mode) == (
        (3, 2, 2),
        3,
        LabelMode("probabilities"),
    )
    assert client.info.max_batch is None


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
    with v2_teacher(script, {"bounds": (-1.0, 1.0)}, encoding=encoding) as client:
        assert (client.spec.levels, client.spec.bounds) == (256, (-1.0, 1.0))
        client.ask(
            client.spec.quantise(torch.from_numpy(codes.astype(np.float32) / 127.5 - 1)), "k"
        )
        client.ask(torch.full((1, 1, 16, 16), 9.0), "k")
    assert np.array_equal(script.asked[0].pixels, codes)
    assert script.asked[0].message["inputs"][0]["datatype"] == "UINT8"
    assert (script.asked[1].pixels == 255).all()


GIVEN = {"shape": (3, 2, 2)}
LAST = IMAGES.permute(0, 2, 3, 1)


@pytest.mark.parametrize("encoding", ["binary", "json"])
@pytest.mark.parametrize(
    ("shape", "config", "layout", "sent"),
    [
        ([-1, 2, 2, 3], {}, "auto", LAST),
        ([-1, -1, -1, -1], GIVEN, "nhwc", LAST),
        ([-1, -1, -1, 3], GIVEN, "auto", LAST),
        ([-1, 12], GIVEN, "auto", IMAGES.reshape(2, 12)),
        ([-1, 12], GIVEN, "nhwc", LAST.reshape(2, 12)),
        ([3, 2, 2], {}, "auto", IMAGES),
        ([-1, 2, 2], {}, "auto", GREY[:, 0]),
    ],
)
def test_images_travel_in_the_models_layout(
    shape: list[int], config: dict[str, Any], layout: str, sent: torch.Tensor, encoding: str
) -> None:
    script = V2(inputs=colour(shape=shape))
    with v2_teacher(script, config, layout=layout, encoding=encoding) as client:
        client(IMAGES if client.spec.shape[0] == 3 else GREY)
    assert np.array_equal(script.asked[0].pixels, sent.numpy())


def test_the_services_own_normalisation_is_done_before_sending() -> None:
    script = V2(inputs=colour())
    with v2_teacher(script, {"mean": (0.5, 0.25, 0.0), "std": (0.5,) * 3}) as client:
        client(IMAGES)
    mean = np.array([0.5, 0.25, 0.0], np.float32).reshape(3, 1, 1)
    assert np.array_equal(script.asked[0].pixels, (IMAGES.numpy() - mean) * 2)
    normalised = v2_teacher(V2(inputs=colour("UINT8")), {"mean": (0.5,) * 3, "std": (0.5,) * 3})
    refused("--teacher.mean", normalised.__enter__)


def test_a_version_is_asked_for_and_checked() -> None:
    script = V2()
    with v2_teacher(script, version="2/x") as client:
        script.infer = lambda question: answer(
            question, scores(question.pixels), model_version="2/x"
        )
        client(GREY)
        script.infer = lambda question: answer(question, scores(question.pixels))
        refused("expected model_version '2/x', got '1'", client, GREY, error=Unusable)
    assert script.asked[0].path == "/v2/models/m/versions/2%2Fx/infer"
    assert "/v2/models/m/versions/2%2Fx/ready" in script.got


def test_named_tensors_are_chosen_among_several() -> None:
    inputs, outputs = (
        [tensor(name, "FP32", [-1, 1]), *others]
        for name, others in (("mask", colour()), ("features", [tensor("y", "FP32", [-1, 3])]))
    )
    said = [tensor("features", "FP32", [1, 1]) | {"data": [0.0]}]
    said.append(tensor("y", "FP64", [2, 3]) | {"data": [[0, 0.5, 0.5], [1, 0, 0]]})
    script = V2(inputs, outputs, infer=lambda question: http({"model_name": "m", "outputs": said}))
    with v2_teacher(script, input="x", output="y") as client:
        assert client(IMAGES).tolist() == [[0, 0.5, 0.5], [1, 0, 0]]
    assert script.asked[0].message["inputs"][0]["name"] == "x"


def answers(*shape: int, dtype: str = "<f4", **changes: Any) -> Callable[[Asked], bytes]:
    """An answer of small numbers in this shape."""
    array = (np.arange(math.prod(shape)).reshape(shape) % 2).astype(dtype)
    return lambda question: answer(question, array, **changes)


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
    with v2_teacher(
        V2(outputs=[tensor("y", datatype, [-1, *shape[1:]])], infer=infer), config
    ) as client:
        given = client(GREY)
        assert (given.tolist(), given.dtype == torch.int64) == (read, dtype == "<i8")
        assert client.label_mode.kind == config.get("label_mode", "probabilities")
        if given.ndim == 2:
            assert restrict(client, LabelMode("label"))(GREY).tolist() == given.argmax(1).tolist()


@pytest.mark.parametrize(
    ("infer", "words"),
    [
        (answers(1, 3), "got FP32 [1, 3]"),
        (answers(2, 4), "got FP32 [2, 4]"),
        (answers(2), "got FP32 [2]"),
        (answers(2, dtype="<i8"), "--teacher.label-mode label"),
        (answers(2, 3, name="z"), "the output y"),
        (lambda question: http({"outputs": []}), "the output y"),
        (answers(2, 3, model_name="n"), "model_name 'm'"),
        (answers(2, 3, id="other"), "id 'key'"),
        (answers(2, 3, id=5), "id 'key'"),
        (lambda question: http(b""), "expected JSON"),
        (lambda question: http(b"{}", **{LENGTH: "x"}), "a whole number"),
        (lambda question: http(b"[" * 3_000_000), "more"),
    ],
)
def test_what_cannot_be_the_answer_is_unusable(infer: Callable[[Asked], bytes], words: str) -> None:
    with v2_teacher(V2(infer=infer)) as client:
        assert refused(words, client.ask, GREY, "key", error=Unusable).reason


def test_labels_that_are_no_whole_numbers_are_unusable() -> None:
    script = V2(outputs=[tensor("y", "INT64", [-1])], infer=answers(2))
    with v2_teacher(script, {"label_mode": "label", "num_classes": 3}) as client:
        refused("labels [2] as whole numbers", client, GREY, error=Unusable)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        (b"[request id: 7] inference request batch-size must be <= 8 for 'm'", 8),
        (b'{"error":"batch of 65 images: expected at most 64 images"}', 64),
        (b"Batch size 12 exceeds maximum batch size of 4", 4),
        (b"batch 12 > max_batch_size: 4", 4),
        (b"unexpected shape for input 'x' for model 'm'. Expected [1,3,4,4], got [8,3,4,4]", 1),
        (b"unexpected shape for input 'x' for model 'm'. Expected [1,3,4,4], got [8,3,5,5]", False),
        (
            b"unexpected shape for input 'x' for model 'm'. Expected [-1,3,4,4], got [8,3,5,5]",
            False,
        ),
        (
            b"Got invalid dimensions for input: x for the following indices index: 0 Got: 8 Expected: 1",
            1,
        ),
        (b"the batch is too large", None),
        (b"Batch of 9 exceeds what this model takes", None),
        (b"inference request batch-size must be >= 1", False),
        (b"expected pixels within 0 and 1, got 0 to 7", False),
        (b"", False),
        (b"\xff" * 100, False),
    ],
)
def test_a_limit_is_found_in_the_words_of_a_refusal(text: bytes, limit: int | bool | None) -> None:
    result = V2Adapter.batch_limit(text)
    assert result == limit
    assert type(result) is type(limit)


def test_a_batch_that_is_refused_for_its_size_says_the_limit() -> None:
    script = V2(
        infer=lambda question: http(
            {"error": "inference request batch-size must be <= 1 for 'm'"}, 400
        )
    )
    with v2_teacher(script) as client:
        assert refused("must be <= 1", client, GREY, error=BatchTooLarge).limit == 1
        script.infer = lambda question: answer(question, scores(question.pixels))
        client(GREY)
    assert [question.binary for question in script.asked] == [True, True]


def refusing_binary(status: int) -> V2:
    """A server that announces binary tensors and cannot read them."""

    def infer(question: Asked) -> bytes:
        return (
            http({"error": "cannot parse"}, status)
            if question.binary
            else answer(question, scores(question.pixels))
        )

    return V2(infer=infer)


@pytest.mark.parametrize("status", [400, 415, 422])
def test_a_server_that_cannot_read_binary_is_asked_in_json(status: int) -> None:
    script = refusing_binary(status)
    with v2_teacher(script) as client:
        caught = refused("from here on in JSON", client.ask, GREY, "k", error=Refused)
        assert (caught.retry, caught.reason) == (True, str(status))
        assert np.array_equal(client.ask(GREY, "k").numpy(), scores(GREY.numpy()))
        script.infer = lambda question: http({"error": "no"}, status)
        assert not refused("no", client, GREY, error=Refused).retry
    assert [question.binary for question in script.asked] == [True, False, False]


@pytest.mark.parametrize(("encoding", "status"), [("binary", 400), ("auto", 403)])
def test_no_other_refusal_changes_the_encoding(encoding: str, status: int) -> None:
    script = refusing_binary(status)
    with v2_teacher(script, encoding=encoding) as client:
        for _ in range(2):
            assert not refused("", client, GREY, error=Refused).retry
    assert [question.binary for question in script.asked] == [True, True]


def test_an_encoding_that_has_worked_is_kept() -> None:
    script = V2()
    with v2_teacher(script) as client:
        client(GREY)
        script.infer = lambda question: http({"error": "pixels out of range"}, 400)
        assert not refused("pixels out of range", client, GREY, error=Refused).retry
    assert [question.binary for question in script.asked] == [True, True]


@pytest.mark.parametrize("extensions", [[], ["model_repository"], None])
def test_a_server_that_announces_nothing_is_asked_in_json(extensions: list[str] | None) -> None:
    script = V2(extensions=extensions)  # type: ignore[arg-type]
    with v2_teacher(script) as client:
        client(GREY)
    assert [question.binary for question in script.asked] == [False]


@pytest.mark.parametrize("status", [400, 413, 422])
@pytest.mark.parametrize(
    ("said", "batch", "limit"),
    [("batch: at most 8", 9, 8), ("batch: at most 1", 2, 1), ("too many images", 9, None)],
)
def test_a_refusal_for_size_names_the_limit(
    status: int, said: str, batch: int, limit: int | None
) -> None:
    with v2_teacher(
        V2(infer=lambda question: http(said.encode(), status)), encoding="json"
    ) as client:
        assert (
            refused(said, client, torch.zeros(batch, 1, 2, 2), error=BatchTooLarge).limit == limit
        )


OTHERS = [
    (400, "no", 9),
    (404, "too many images", 9),
    (429, "too many images", 9),
    (413, "too many images", 1),
]
OTHERS += [(400, f"batch: at most {limit}", 9) for limit in (0, 9, 64)] + [
    (413, "batch: at most 8", 1)
]


@pytest.mark.parametrize(("status", "said", "batch"), OTHERS)
def test_any_other_refusal_stays_what_it_is(status: int, said: str, batch: int) -> None:
    """Also one for size that no smaller batch could heal: a limit that was kept, a lone image."""
    with v2_teacher(
        V2(infer=lambda question: http(said.encode(), status)), encoding="json"
    ) as client:
        refusal = refused(said, client, torch.zeros(batch, 1, 2, 2), error=Refused)
    assert (type(refusal), refusal.reason) == (Refused, str(status))


def test_the_wire_is_what_the_options_say() -> None:
    limits = {"images_per_second": 5.0, "requests_per_second": 2.0}
    options = V2Options(url="", model="m", in_flight=3, attempts=7, patience=11.0, **limits)
    assert narrowed(RequestPolicy, options) == RequestPolicy(
        3, 7, RequestPolicy().unusable, 11.0, 5.0, 2.0
    )
