"""The server's protocol on bytes alone: what it reads and writes."""

import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from refusals import refusal
from tables import all_hold

from dfme.spec import ImageSpec, LabelMode
from dfme.teachers.open_inference import server
from dfme.teachers.open_inference.server import Question, Service, read_question, write_answer

SPEC = ImageSpec((1, 2, 3))
PLAIN = Service("small", SPEC, 4, LabelMode("probabilities"), max_batch=5)
BYTES = Service(
    "bytes", ImageSpec((1, 2, 3), bounds=(-1.0, 2.0), levels=256), 4, LabelMode("probabilities")
)
IMAGES = np.linspace(0, 1, 12, dtype="<f4").reshape(2, 1, 2, 3)


def request(entry: dict[str, Any] | None = None, **header: Any) -> bytes:
    """A request in JSON, with changes to its input."""
    image = {"name": "image", "datatype": "FP32", "shape": [2, 1, 2, 3], "data": IMAGES.tolist()}
    return json.dumps({"inputs": [image | (entry or {})], **header}).encode()


def binary_request(array: np.ndarray, datatype: str = "FP32", **header: Any) -> tuple[bytes, int]:
    raw = array.tobytes()
    image = {"name": "image", "datatype": datatype, "shape": list(array.shape)}
    image["parameters"] = {"binary_data_size": len(raw)}
    text = json.dumps({"inputs": [image], **header}).encode()
    return text + raw, len(text)


def output(**parameters: Any) -> list[dict[str, Any]]:
    return [{"name": "scores", "parameters": parameters}]


def test_json_nested_json_flat_and_raw_bytes_are_the_same_images():
    flat = request({"data": IMAGES.ravel().tolist()}, id="a1")
    for body, length in ((request(id="a1"), None), (flat, None), binary_request(IMAGES, id="a1")):
        question = read_question(PLAIN, body, length)
        assert question.images.dtype == np.float32
        assert np.array_equal(question.images, IMAGES)
        assert (question.id, question.binary) == ("a1", False)


def test_a_byte_is_its_share_of_the_bounds():
    levels = np.array([0, 1, 51, 128, 254, 255], np.uint8).reshape(1, 1, 2, 3)
    images = read_question(BYTES, *binary_request(levels, "UINT8")).images
    assert np.allclose(
        images.ravel(), [-1 + i * 3 / 255 for i in (0, 1, 51, 128, 254, 255)], atol=1e-6
    )
    assert (images.min(), images.max()) == (-1, 2)
    # floats are taken as well
    assert np.array_equal(read_question(BYTES, *binary_request(IMAGES)).images, IMAGES)


@pytest.mark.parametrize(
    ("header", "binary"),
    [
        ({"parameters": {"binary_data_output": True}}, True),
        ({"parameters": {"binary_data_output": True}, "outputs": output(binary_data=False)}, False),
        ({"outputs": output(binary_data=True)}, True),
        ({"outputs": [{"name": "scores"}]}, False),
        ({"outputs": [], "parameters": {"priority": 7}}, False),
    ],
)
def test_the_form_of_the_answer_is_as_asked(header: dict[str, Any], binary: bool) -> None:
    assert read_question(PLAIN, request(**header), None).binary is binary


WRONG = [
    (b"", "expected JSON"),
    (b"{}", "inputs"),
    (b"[" * 100_000, "expected JSON"),
    (request({"name": "x"}), "expected one input 'image', got ['x']"),
    (request({"datatype": "FP64"}), "expected FP32, got FP64"),
    (request({"shape": [2, 6]}), "expected lists nested as [2, 6]"),
    (request({"shape": [2, 6], "data": [0] * 12}), "expected a shape [-1, 1, 2, 3], got [2, 6]"),
    (request({"shape": [0, 1, 2, 3], "data": []}), "got [0, 1, 2, 3]"),
    (request({"shape": [3, 1, 2, 3], "data": [0] * 12}), "18 elements"),
    (request({"shape": [-1, 1, 2, 3]}), "whole numbers"),
    (request({"data": [0.5] * 11 + [1.0001]}), "expected pixels within 0 and 1, got 0.5 to 1.0001"),
    (request({"data": [0.5] * 11 + [float("nan")]}), "expected pixels within 0 and 1, got nan"),
    (request({"data": [0.5] * 11 + ["0.5"]}), "expected elements that are FP32"),
    (request({"data": None}), "list"),
    (request(id=7), "expected an id as text, got 7"),
    (request(outputs=[{"name": "label"}]), "expected the output 'scores', got 'label'"),
    (request(outputs=[{"name": "scores"}] * 2), "expected outputs as a list of one object"),
    (
        request(outputs=output(binary_data=1)),
        "parameter binary_data: expected true or false, got 1",
    ),
    (request(outputs=output(classification=3)), "parameter classification: expected none"),
    (request(parameters=[]), "expected parameters as a JSON object"),
]


def test_what_is_wrong_is_said_in_words() -> None:
    def holds(body: bytes, words: str) -> None:
        caught = refusal(re.escape(words), read_question, PLAIN, body, None, error=ValueError)
        assert len(str(caught)) < 500

    all_hold(holds, WRONG)


def test_an_answer_has_name_version_and_id_and_hides_what_is_not_revealed():
    body, length = write_answer(
        PLAIN, Question(IMAGES, id="q"), np.array([[0.25, 0.75]], np.float32)
    )
    tensor = {"name": "scores", "datatype": "FP32", "shape": [1, 2], "data": [0.25, 0.75]}
    assert length is None
    assert json.loads(body) == {
        "model_name": "small",
        "model_version": "1",
        "id": "q",
        "outputs": [tensor],
    }
    hiding = Service("three", SPEC, 3, LabelMode.parse("top_k:1"))
    answers = np.array([[np.nan, 0.5, np.nan]], np.float32)
    body, _ = write_answer(hiding, Question(IMAGES), answers)
    assert json.loads(body)["outputs"][0]["data"] == [None, 0.5, None]
    body, length = write_answer(hiding, Question(IMAGES, binary=True), answers)
    assert np.array_equal(np.frombuffer(body[length:], "<f4"), answers[0], equal_nan=True)
    hard = Service("hard", SPEC, 4, LabelMode("label"))
    body, _ = write_answer(hard, Question(IMAGES), np.array([3, 0]))
    labels = {"name": "label", "datatype": "INT64", "shape": [2], "data": [3, 0]}
    assert json.loads(body)["outputs"] == [labels]


def test_metadata_and_configuration_describe_the_same_tensors():
    described = server.model_metadata(BYTES)
    assert described["inputs"] == [{"name": "image", "datatype": "UINT8", "shape": [-1, 1, 2, 3]}]
    assert described["outputs"] == [{"name": "scores", "datatype": "FP32", "shape": [-1, 4]}]
    assert (described["parameters"]["bounds"], described["parameters"]["max_batch"]) == (
        [-1.0, 2.0],
        None,
    )
    for service, limit, dims in ((BYTES, 0, [-1, 1, 2, 3]), (PLAIN, 5, [1, 2, 3])):
        config = server.model_config(service)
        assert (config["max_batch_size"], config["input"][0]["dims"]) == (limit, dims)


@pytest.mark.exhaustive
@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from("name datatype shape data parameters inputs outputs id".split()),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
        ),
        max_leaves=8,
    ),
)
@example("shape", [10**12])
@example("shape", [2**64, 0])
@example("data", [10**400] * 12)
@example("parameters", {"binary_data_size": 10**30})
def test_any_value_anywhere_is_refused_or_read(key: str, value: object) -> None:
    inside = key in ("name", "datatype", "shape", "data")
    try:
        question = read_question(
            PLAIN, request({key: value}) if inside else request(**{key: value}), None
        )
    except ValueError:
        return
    assert question.images.shape[1:] == SPEC.shape
    assert 1 <= len(question.images) <= 5
    assert np.isfinite(question.images).all()
