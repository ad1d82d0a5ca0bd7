"""What a v2 server refuses: batches that are too large, and binary tensors it cannot read. And fuzzed answers."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import tracemalloc

import numpy as np
import pytest
import torch
from clients import GREY, v2_teacher
from hypothesis import given, settings
from hypothesis import strategies as st
from protocols import V2, Asked, answer, scores
from service import http

from dfme.config.settings import TeacherConfig
from dfme.errors import BatchTooLarge, Refused, Unusable
from dfme.spec import ImageSpec, LabelMode
from dfme.teachers.open_inference.answers import batch_limit
from dfme.teachers.open_inference.client import RequestWriter, V2Adapter
from dfme.teachers.open_inference.layout import find_layout
from dfme.teachers.open_inference.metadata import TensorMetadata, V2Model
from dfme.teachers.remote.endpoint import Reply


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        (b"[request id: 7] inference request batch-size must be <= 8 for 'm'", 8),
        (b'{"error":"batch of 65 images: expected at most 64 images"}', 64),
        (b"Batch size 12 exceeds maximum batch size of 4", 4),
        (b"batch 12 > max_batch_size: 4", 4),
        (b"unexpected shape for input 'x' for model 'm'. Expected [1,3,4,4], got [8,3,4,4]", 1),
        (b"unexpected shape for input 'x' for model 'm'. Expected [1,3,4,4], got [8,3,5,5]", False),
        (b"unexpected shape for input 'x' for model 'm'. Expected [-1,3,4,4], got [8,3,5,5]", False),
        (b"Got invalid dimensions for input: x for the following indices index: 0 Got: 8 Expected: 1", 1),
        (b"the batch is too large", None),
        (b"Batch of 9 exceeds what this model takes", None),
        (b"inference request batch-size must be >= 1", False),
        (b"expected pixels within 0 and 1, got 0 to 7", False),
        (b"", False),
        (b"\xff" * 100, False),
    ],
)
def test_a_limit_is_found_in_the_words_of_a_refusal(text: bytes, limit: int | bool | None) -> None:
    found = batch_limit(text)
    assert found == limit
    assert type(found) is type(limit)


@pytest.mark.integration
def test_a_batch_that_is_refused_for_its_size_says_the_limit() -> None:
    script = V2(infer=lambda asked: http({"error": "inference request batch-size must be <= 1 for 'm'"}, 400))
    with v2_teacher(script) as made:
        with pytest.raises(BatchTooLarge, match="must be <= 1") as caught:
            made(GREY)
        assert caught.value.limit == 1
        script.infer = lambda asked: answer(asked, scores(asked.pixels))
        made(GREY)
    assert [asked.binary for asked in script.asked] == [True, True]


def refusing_binary(status: int) -> V2:
    """A server that announces binary tensors and cannot read them."""

    def infer(asked: Asked) -> bytes:
        return http({"error": "cannot parse"}, status) if asked.binary else answer(asked, scores(asked.pixels))

    return V2(infer=infer)


@pytest.mark.integration
@pytest.mark.parametrize("status", [400, 415, 422])
def test_a_server_that_cannot_read_binary_is_asked_in_json(status: int) -> None:
    script = refusing_binary(status)
    with v2_teacher(script) as made:
        with pytest.raises(Refused, match="from here on in JSON") as caught:
            made.ask(GREY, "k")
        assert caught.value.retry
        assert caught.value.reason == str(status)
        assert np.array_equal(made.ask(GREY, "k").numpy(), scores(GREY.numpy()))
        script.infer = lambda asked: http({"error": "no"}, status)
        with pytest.raises(Refused) as caught:
            made(GREY)
        assert not caught.value.retry
    assert [asked.binary for asked in script.asked] == [True, False, False]


@pytest.mark.integration
@pytest.mark.parametrize(("encoding", "status"), [("binary", 400), ("auto", 403)])
def test_no_other_refusal_changes_the_encoding(encoding: str, status: int) -> None:
    script = refusing_binary(status)
    with v2_teacher(script, encoding=encoding) as made:
        for _ in range(2):
            with pytest.raises(Refused) as caught:
                made(GREY)
            assert not caught.value.retry
    assert [asked.binary for asked in script.asked] == [True, True]


@pytest.mark.integration
def test_an_encoding_that_has_worked_is_kept() -> None:
    script = V2()
    with v2_teacher(script) as made:
        made(GREY)
        script.infer = lambda asked: http({"error": "pixels out of range"}, 400)
        with pytest.raises(Refused, match="pixels out of range") as caught:
            made(GREY)
        assert not caught.value.retry
    assert [asked.binary for asked in script.asked] == [True, True]


@pytest.mark.integration
@pytest.mark.parametrize("extensions", [[], ["model_repository"], None])
def test_a_server_that_announces_nothing_is_asked_in_json(extensions: list[str] | None) -> None:
    script = V2(extensions=extensions)  # type: ignore[arg-type]
    with v2_teacher(script) as made:
        made(GREY)
    assert [asked.binary for asked in script.asked] == [False]


MODEL = V2Model(
    name="m",
    version=None,
    path="/v2/models/m",
    input=TensorMetadata("x", "FP32", (-1, 1, 2, 2)),
    output=TensorMetadata("y", "FP32", (-1, 3)),
    layout=find_layout((-1, 1, 2, 2), None, None),
    spec=ImageSpec((1, 2, 2)),
    num_classes=3,
    label_mode=LabelMode("probabilities"),
    max_batch=None,
    binary=True,
    classification=0,
)
MODELS = [
    MODEL,
    dataclasses.replace(MODEL, label_mode=LabelMode("label")),
    dataclasses.replace(MODEL, classification=2, label_mode=LabelMode("top_k", k=2)),
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.sampled_from(["0.5:1", "1:0:a"]),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=12,
)
OUTPUTS = st.fixed_dictionaries(
    {
        "name": st.just("y") | VALUES,
        "datatype": st.sampled_from(["FP32", "FP64", "INT64", "UINT64", "BOOL", "BYTES"]) | VALUES,
        "shape": st.sampled_from([[2, 3], [2], [2, 2], [2, 3, 1]]) | VALUES,
        "data": st.lists(st.integers(0, 2**64) | st.floats() | st.sampled_from(["0.5:1", "1:0:a", "1:9"]), max_size=6)
        | VALUES,
    }
)


@pytest.mark.exhaustive
@settings(max_examples=400, deadline=None)
@given(st.sampled_from(MODELS), st.binary(max_size=200) | st.lists(OUTPUTS, max_size=2), st.none() | st.text())
def test_a_fuzzed_answer_is_unusable_or_in_form(model: V2Model, said: bytes | list[object], length: str | None) -> None:
    body = said if isinstance(said, bytes) else json.dumps({"model_name": "m", "outputs": said}).encode()
    headers = {} if length is None else {"inference-header-content-length": length}
    tracemalloc.start()
    try:
        with contextlib.suppress(Unusable):
            answers = V2Adapter(model, RequestWriter(model, TeacherConfig()), True, "k").decode(
                Reply(200, headers, body), 2
            )
            kinds = {(2, 3): torch.float32, (2,): torch.int64}
            assert kinds[tuple(answers.shape)] == answers.dtype
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 200_000 + 200 * len(body)
