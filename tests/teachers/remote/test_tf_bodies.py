"""Bodies and metadata of TensorFlow Serving: an answer, a signature, or a line that says what is wrong."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from clients import answer_or_unusable
from hypothesis import given, settings
from hypothesis import strategies as st

from dfme.config.settings import TeacherConfig
from dfme.errors import UserError
from dfme.spec import ImageSpec, LabelMode
from dfme.teachers.remote.json_bodies import numbers
from dfme.teachers.remote.tf_serving import TfServingAdapter
from dfme.teachers.remote.tf_signature import image_axes, most_images, number_of_classes, read_signature

H, W, C, K = 3, 4, 2, 3

ADAPTER = TfServingAdapter(
    "/p",
    None,
    None,
    "scores",
    "nhwc",
    (H, W, C),
    ImageSpec((C, H, W)),
    False,
    K,
    LabelMode("probabilities"),
    False,
    K,
)


def decoded(body: bytes, batch: int = 2) -> torch.Tensor | None:
    """The answer, or None for one that is unusable; nothing else may come."""
    answer = answer_or_unusable(ADAPTER, body, batch)
    assert answer is None or (answer.shape, answer.dtype) == ((batch, K), torch.float32)
    return answer


@pytest.mark.parametrize(
    "body",
    [b"", b"\xff\xfe[", b"[" * 100_000, b'{"predictions":' * 50_000, b"1" * 5000, b'{"error": "no"}', b"NaN"]
    + [
        json.dumps({"predictions": rows}).encode()
        for rows in ([[1, 2, 3]], [[1, 2], [1, 2]], [[1, 2, "3"]] * 2, [[1, 2, True]] * 2, [[1, 2, 10**400]] * 2, {})
    ],
)
def test_what_is_no_answer_is_unusable(body: bytes) -> None:
    assert decoded(body) is None


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
documents = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
)
rows = st.lists(st.lists(scalars, min_size=K, max_size=K), min_size=2, max_size=2)


@pytest.mark.exhaustive
@given(st.binary(max_size=200))
@settings(max_examples=150, deadline=None)
def test_random_bytes_are_an_answer_or_unusable(body: bytes) -> None:
    decoded(body)


@pytest.mark.exhaustive
@given(st.sampled_from(["predictions", "outputs", "error"]), documents | rows)
@settings(max_examples=200, deadline=None)
def test_random_json_is_an_answer_or_unusable(name: str, value: Any) -> None:
    decoded(json.dumps({name: value}).encode())


sizes = st.fixed_dictionaries({"size": scalars}) | scalars
infos = st.fixed_dictionaries(
    {
        "dtype": st.just("DT_FLOAT") | scalars,
        "tensor_shape": st.fixed_dictionaries({"dim": st.lists(sizes, max_size=5)}),
    }
)
sides = st.dictionaries(st.text(max_size=4), infos | documents, max_size=2)
signatures = st.fixed_dictionaries({"inputs": sides, "outputs": sides}) | documents


@pytest.mark.exhaustive
@given(signatures, st.sampled_from(["nhwc", "nchw"]))
@settings(max_examples=300, deadline=None)
def test_random_metadata_are_a_signature_or_a_users_error(signature: Any, layout: Any) -> None:
    metadata = {"metadata": {"signature_def": {"signature_def": {"serving_default": signature}}}}
    try:
        read = read_signature(metadata, None, "m")
        for info in read.inputs.values():
            most_images(info)
            shape, axes = image_axes(info, layout, None)
            assert math.prod(shape) == math.prod(axes) > 0
        for info in read.outputs.values():
            assert number_of_classes(info, TeacherConfig()) > 1
    except UserError as error:
        words = str(error)
    else:
        return
    assert words.isprintable()
    assert len(words) < 500


@pytest.mark.exhaustive
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
@settings(max_examples=200, deadline=None)
def test_a_float_is_written_in_few_digits_and_read_back_exactly(values: list[float]) -> None:
    array = np.array(values, np.float32)
    written = json.dumps(numbers(array))
    assert np.array_equal(np.array(json.loads(written), np.float32), array)


def test_a_usual_pixel_takes_no_more_digits_than_numpys_shortest() -> None:
    array = np.random.default_rng(0).random(2000, np.float32)
    ours = [len(repr(value)) for value in numbers(array)]
    shortest = [len(repr(float(str(value)))) for value in array]
    assert sum(ours) <= 1.02 * sum(shortest)
