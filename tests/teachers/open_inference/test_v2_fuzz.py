"""Fuzzed bodies, metadata and answers of the Open Inference Protocol."""

import contextlib
import dataclasses
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from protocols import tensor

from dfme.config.settings import TeacherConfig
from dfme.errors import Unusable, UserError
from dfme.spec import ImageSpec, LabelMode
from dfme.teachers.local.pytorch import Normalise
from dfme.teachers.open_inference.client import V2Adapter
from dfme.teachers.open_inference.layout import find_layout
from dfme.teachers.open_inference.message import DATATYPES, NamedTensor, pack, read_object, unpack
from dfme.teachers.open_inference.metadata import TensorMetadata, V2Model, read_model
from dfme.teachers.options import V2Options
from dfme.teachers.remote.endpoint import Reply

pytestmark = pytest.mark.exhaustive

IMAGES = np.arange(24, dtype=np.float32).reshape(2, 1, 3, 4)
VALID = [
    pack({"id": "a"}, [NamedTensor("x", IMAGES), NamedTensor("y", IMAGES)], "inputs", b)
    for b in (True, False)
]
SIZES = st.sampled_from([-1, 0, 1, 2, 3, 8, 10**9, 10**400]) | st.integers()
LEAVES = st.none() | st.booleans() | SIZES | st.floats() | st.text(max_size=6)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3), max_leaves=6)
KEYS = ["inputs", "name", "shape", "datatype", "data", "parameters", "binary_data_size"]
GARBAGE = st.recursive(
    LEAVES | st.sampled_from(sorted(DATATYPES)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner),
    max_leaves=20,
)


def in_memory(most: int, work: Callable[[], object]) -> None:
    """Hold what is at once in memory during the work to so many bytes."""
    tracemalloc.start()
    try:
        work()
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < most


def survives(body: bytes, length: int | None) -> None:
    """Reading gives tensors or a ValueError, within memory that the body's own size bounds."""

    def read() -> None:
        with contextlib.suppress(ValueError):
            unpack(body, length, "inputs", 1_000_000)

    in_memory(100_000 + 200 * len(body), read)


def damaged(
    whole: tuple[bytes, int | None], damage: list[tuple[int, bytes]]
) -> tuple[bytes, int | None]:
    body, length = whole
    for at, patch in damage:
        body = body[:at] + patch + body[at + 1 :]
    return body, length


def in_json(value: object, raw: bytes) -> tuple[bytes, int | None]:
    whole = value if isinstance(value, dict) else {"inputs": [value, {"name": "x", "data": value}]}
    head = json.dumps(whole).encode()
    return head + raw, len(head)


PATCHES = st.lists(st.tuples(st.integers(0, 400), st.binary(max_size=3)), max_size=4)
MESSAGES = {
    "random bytes": st.tuples(st.binary(max_size=300), st.none() | st.integers(-2, 400)),
    "random json": st.builds(in_json, GARBAGE, st.binary(max_size=20)),
    "damaged": st.builds(damaged, st.sampled_from(VALID), PATCHES),
}


@pytest.mark.parametrize("kind", MESSAGES)
@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_message_is_tensors_or_a_value_error_in_bounded_memory(
    kind: str, data: st.DataObject
) -> None:
    survives(*data.draw(MESSAGES[kind]))


def test_a_long_text_among_many_short_ones_takes_no_memory_of_its_own() -> None:
    data = {"data": ["a" * 100_000] + ["b"] * 2000}
    body = json.dumps({"inputs": [tensor("x", "BYTES", [2001]) | data]}).encode()
    survives(body, None)
    assert read_object(body)["inputs"][0]["shape"] == [2001]


class Documents:
    """An endpoint whose documents a test makes up."""

    url = "http://127.0.0.1:1"

    def __init__(self, documents: dict[str, Any]) -> None:
        self._documents = documents

    def get(self, path: str, most: int = 1_000_000) -> Reply:
        page = self._documents.get(path)
        return Reply(200, {}, b"" if page is None else json.dumps(page).encode())


TENSOR = {
    "name": st.sampled_from(["x", "y", "a\nb"]) | VALUES,
    "datatype": st.sampled_from(["FP32", "UINT8", "INT64", "BYTES"]) | VALUES,
    "shape": st.lists(SIZES, max_size=5) | VALUES,
}
TENSORS = st.lists(st.fixed_dictionaries(TENSOR), max_size=2) | VALUES
MODES = st.sampled_from(["label", "top_k:2", "top_k:0", "top_k:" + "9" * 5000, "probabilities:²"])
PARAMETERS = {
    "label_mode": MODES | VALUES,
    "bounds": st.lists(SIZES | st.floats(), min_size=2, max_size=2) | VALUES,
    **dict.fromkeys(("levels", "layout", "max_batch", "num_classes"), VALUES),
}
WHOLE = {
    "inputs": st.just([tensor("x", "FP32", [-1, 1, 2, 2])]),
    "outputs": st.just([tensor("y", "FP32", [-1, 3])]),
    "parameters": st.fixed_dictionaries({}, optional=PARAMETERS) | VALUES,
}
METADATA = st.fixed_dictionaries({"inputs": TENSORS, "outputs": TENSORS}) | st.fixed_dictionaries(
    WHOLE
)


@settings(max_examples=400, deadline=None)
@given(METADATA | VALUES, VALUES, VALUES)
def test_fuzzed_metadata_are_a_line_for_the_user_or_a_model(
    metadata: Any, server: Any, triton: Any
) -> None:
    extensions = {"extensions": server}
    pages = {
        "/v2/models/m": metadata,
        "/v2": extensions,
        "/v2/models/m/config": {"max_batch_size": triton},
    }
    options = V2Options(url=Documents.url, model="m")
    model, problem = None, ""
    try:
        model = read_model(Documents(pages), options, TeacherConfig())  # type: ignore[arg-type]
    except UserError as error:
        problem = str(error)
    assert "\n" not in problem
    assert len(problem) < 500
    assert problem or model is not None
    if model is not None:
        assert min(model.spec.numel, model.num_classes - 1, model.max_batch or 1) > 0


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
)
MODELS = [MODEL, dataclasses.replace(MODEL, label_mode=LabelMode("label"))]
TEXTS = st.sampled_from(["0.5:1", "1:0:a", "1:9"])
OUTPUT = {
    "name": st.just("y") | VALUES,
    "datatype": st.sampled_from(["FP32", "FP64", "INT64", "UINT64", "BOOL", "BYTES"]) | VALUES,
    "shape": st.sampled_from([[2, 3], [2], [2, 2], [2, 3, 1]]) | VALUES,
    "data": st.lists(st.integers(0, 2**64) | st.floats() | TEXTS, max_size=6) | VALUES,
}


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(MODELS),
    st.binary(max_size=200) | st.lists(st.fixed_dictionaries(OUTPUT), max_size=2),
    st.none() | st.text(),
)
def test_a_fuzzed_answer_is_unusable_or_in_form(
    model: V2Model, said: bytes | list[object], length: str | None
) -> None:
    body = (
        said
        if isinstance(said, bytes)
        else json.dumps({"model_name": "m", "outputs": said}).encode()
    )
    reply = Reply(200, {} if length is None else {"inference-header-content-length": length}, body)

    def read() -> None:
        with contextlib.suppress(Unusable):
            answers = V2Adapter(model, Normalise(None, None, 1), True, "k").decode(reply, 2)
            assert {(2, 3): torch.float32, (2,): torch.int64}[tuple(answers.shape)] == answers.dtype

    in_memory(200_000 + 200 * len(body), read)
