"""Fuzzed bodies and metadata of the Open Inference Protocol: tensors and models, or one line that says why not."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from protocols import tensor

from dfme.config.settings import TeacherConfig
from dfme.errors import UserError
from dfme.teachers.open_inference.message import pack, read_object, unpack
from dfme.teachers.open_inference.metadata import read_model
from dfme.teachers.open_inference.tensors import DATATYPES, NamedTensor
from dfme.teachers.remote.endpoint import Reply
from dfme.teachers.remote.options import V2Options

pytestmark = pytest.mark.exhaustive

MOST = 1_000_000
IMAGES = np.arange(24, dtype=np.float32).reshape(2, 1, 3, 4)
VALID = [pack({"id": "a"}, [NamedTensor("x", IMAGES), NamedTensor("y", IMAGES)], "inputs", b) for b in (True, False)]
GARBAGE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(sorted(DATATYPES)),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["inputs", "name", "shape", "datatype", "data", "parameters", "binary_data_size"]), inner
        )
    ),
    max_leaves=20,
)


def survives(body: bytes, length: int | None) -> None:
    """Reading gives tensors or a ValueError, within memory that the body's own size bounds."""
    tracemalloc.start()
    try:
        unpack(body, length, "inputs", MOST)
    except ValueError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 100_000 + 200 * len(body)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300), st.none() | st.integers(-2, 400))
def test_random_bytes_are_a_value_error_in_bounded_memory(body: bytes, length: int | None) -> None:
    survives(body, length)


@settings(max_examples=300, deadline=None)
@given(GARBAGE, st.binary(max_size=20))
def test_random_json_is_a_value_error_in_bounded_memory(value: object, raw: bytes) -> None:
    head = json.dumps(value if isinstance(value, dict) else {"inputs": [value, {"name": "x", "data": value}]}).encode()
    survives(head + raw, len(head))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(VALID), st.lists(st.tuples(st.integers(0, 400), st.binary(max_size=3)), max_size=4))
def test_damaged_messages_are_a_value_error_in_bounded_memory(
    whole: tuple[bytes, int | None], damage: list[tuple[int, bytes]]
) -> None:
    body, length = whole
    for at, patch in damage:
        body = body[:at] + patch + body[at + 1 :]
    survives(body, length)


def test_a_long_text_among_many_short_ones_takes_no_memory_of_its_own() -> None:
    body = json.dumps({"inputs": [tensor("x", "BYTES", [2001]) | {"data": ["a" * 100_000] + ["b"] * 2000}]}).encode()
    survives(body, None)
    assert read_object(body)["inputs"][0]["shape"] == [2001]


class Documents:
    """An endpoint whose documents a test makes up."""

    url = "http://127.0.0.1:1"

    def __init__(self, documents: dict[str, bytes]) -> None:
        self._documents = documents

    def get(self, path: str, most: int = 1_000_000) -> Reply:
        return Reply(200, {}, self._documents.get(path, b""))


SIZES = st.sampled_from([-1, 0, 1, 2, 3, 8, 10**9, 10**400]) | st.integers()
LEAVES = st.none() | st.booleans() | SIZES | st.floats() | st.text(max_size=6)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3), max_leaves=6)
TENSORS = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.sampled_from(["x", "y", "a\nb"]) | VALUES,
            "datatype": st.sampled_from(["FP32", "UINT8", "INT64", "BYTES"]) | VALUES,
            "shape": st.lists(SIZES, max_size=5) | VALUES,
        }
    ),
    max_size=2,
)
PARAMETERS = st.fixed_dictionaries(
    {},
    optional={
        "label_mode": st.sampled_from(["label", "top_k:2", "top_k:0", "top_k:" + "9" * 5000, "probabilities:²"])
        | VALUES,
        "bounds": st.lists(SIZES | st.floats(), min_size=2, max_size=2) | VALUES,
        **dict.fromkeys(("levels", "layout", "max_batch", "num_classes"), VALUES),
    },
)
METADATA = st.fixed_dictionaries({"inputs": TENSORS | VALUES, "outputs": TENSORS | VALUES}) | st.fixed_dictionaries(
    {
        "inputs": st.just([tensor("x", "FP32", [-1, 1, 2, 2])]),
        "outputs": st.just([tensor("y", "FP32", [-1, 3])]),
        "parameters": PARAMETERS | VALUES,
    }
)


@settings(max_examples=400, deadline=None)
@given(METADATA | VALUES, VALUES, VALUES, st.sampled_from([0, 2]))
def test_fuzzed_metadata_are_a_line_for_the_user_or_a_model(metadata: Any, server: Any, triton: Any, k: int) -> None:
    documents = {
        "/v2/models/m": metadata,
        "/v2": {"extensions": server} if k else {"extensions": ["classification"]},
        "/v2/models/m/config": {"max_batch_size": triton},
    }
    endpoint = Documents({path: json.dumps(document).encode() for path, document in documents.items()})
    options = V2Options(url=endpoint.url, model="m", classification=k)
    model, problem = None, ""
    try:
        model = read_model(endpoint, options, TeacherConfig())  # type: ignore[arg-type]
    except UserError as error:
        problem = str(error)
    assert "\n" not in problem
    assert len(problem) < 500
    assert problem or model is not None
    if model is not None:
        assert model.spec.numel > 0
        assert model.num_classes > 1
        assert model.max_batch is None or model.max_batch > 0
