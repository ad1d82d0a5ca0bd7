"""Bodies of the Open Inference Protocol: what is packed comes back."""

import json
import math
import struct
import time
from functools import partial

import numpy as np
from damage import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tables import all_hold

from dfme.teachers.open_inference.message import (
    DATATYPES,
    NamedTensor,
    datatype_of,
    from_bytes,
    from_list,
    pack,
    read_header_length,
    short,
    to_bytes,
    unpack,
)

MOST = 1_000_000
malformed = partial(refused, error=ValueError)
SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4)
NUMBERS = st.sampled_from(sorted(DATATYPES)).flatmap(
    lambda name: hnp.arrays(DATATYPES[name], SHAPES)
)
IMAGES = np.arange(24, dtype=np.float32).reshape(2, 1, 3, 4)


def same(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays agree to the last bit, NaN with NaN."""
    if one.shape != other.shape or datatype_of(one) != datatype_of(other):
        return False
    if one.dtype.kind == "f":
        return np.array_equal(one, other, equal_nan=True)
    return one.tolist() == other.tolist()


@settings(max_examples=20, deadline=None)
@given(st.lists(NUMBERS, max_size=4), st.sampled_from(["inputs", "outputs"]))
def test_binary_tensors_come_back_to_the_last_bit(arrays: list[np.ndarray], key: str) -> None:
    tensors = [NamedTensor(f"t{i}", array) for i, array in enumerate(arrays)]
    body, length = pack({"id": "a", "parameters": {"p": 1}}, tensors, key, binary=True)
    header, back = unpack(body, length, key, MOST)
    assert header == {"id": "a", "parameters": {"p": 1}}
    assert [t.name for t in back] == [t.name for t in tensors]
    assert all(same(one.array, other.array) for one, other in zip(tensors, back, strict=True))
    assert [bytes(to_bytes(t.array)) for t in back] == [bytes(to_bytes(t.array)) for t in tensors]


@settings(max_examples=20, deadline=None)
@given(NUMBERS)
def test_json_tensors_come_back_and_infinities_are_refused(array: np.ndarray) -> None:
    if array.dtype.kind == "f" and np.isinf(array).any():
        malformed(
            "JSON has no infinity", pack, {}, [NamedTensor("t", array)], "inputs", binary=False
        )
        return
    body, length = pack({}, [NamedTensor("t", array)], "inputs", binary=False)
    assert length is None
    assert same(unpack(body, None, "inputs", MOST)[1][0].array, array)
    nested = json.loads(json.dumps(array.tolist()))
    assert same(from_list(nested, datatype_of(array), array.shape), array)


def test_a_long_list_is_read_like_a_short_one_up_to_its_end() -> None:
    numbers = [*range(200)] * 1_000
    for datatype in ("FP32", "UINT8", "INT64"):
        assert (from_list(numbers, datatype, [400, 500]).ravel() == np.array(numbers)).all()
        for odd, text in ((True, "got bool"), ("1", "got str")):
            malformed(
                f"elements that are {datatype}, {text}",
                from_list,
                [*numbers, odd],
                datatype,
                [200_001],
            )
    malformed("some beyond its range", from_list, [*numbers, 256], "UINT8", [200_001])
    malformed("some beyond its range", from_list, [*numbers, 2**63], "INT64", [200_001])
    malformed("some beyond its range", from_list, [*numbers, 10**400], "FP32", [200_001])


def test_a_message_shows_the_beginning_of_a_value_however_large_it_is() -> None:
    for value in (
        {"a": [1, None, "x"]},
        [[[1.5]]],
        "text",
        b"bytes",
        7,
        None,
        {},
        [],
        {"b": {"c": True}},
    ):
        assert short(value) == repr(value)
    wide = dict.fromkeys(range(100_000), [[0.5] * 100] * 100)
    started = time.process_time()
    for value in (wide, [wide] * 60, [[[0] * 100_000] * 60] * 60, {"x" * 10_000: "y" * 10_000}):
        text = short(value)
        assert (len(text), text[-3:]) == (80, "...")
    assert time.process_time() - started < 0.5
    assert short(wide).startswith("{0: [[0.5, 0.5, ")
    assert short("x" * 100) == repr("x" * 20)


def test_the_bytes_are_those_of_the_specification() -> None:
    assert bytes(to_bytes(np.array([[1, 2], [3, 4]], dtype=">i2").T)) == struct.pack(
        "<4h", 1, 3, 2, 4
    )
    assert bytes(to_bytes(np.array([True, False]))) == b"\x01\x00"
    body, length = pack(
        {"id": "7"}, [NamedTensor("x", np.array([1.5], np.float32))], "inputs", binary=True
    )
    assert length is not None
    assert length % 8 == 0
    assert json.loads(body[:length]) == {
        "id": "7",
        "inputs": [
            {"name": "x", "shape": [1], "datatype": "FP32", "parameters": {"binary_data_size": 4}}
        ],
    }
    assert body[length:] == struct.pack("<f", 1.5)


def test_numbers_are_read_where_they_lie() -> None:
    body, length = pack({}, [NamedTensor("x", IMAGES)], "inputs", binary=True)
    array = unpack(body, length, "inputs", MOST)[1][0].array
    assert np.shares_memory(array, np.frombuffer(body, np.uint8))
    assert not array.flags.writeable
    assert array.flags.aligned


def test_one_message_may_mix_binary_and_json() -> None:
    raw = struct.pack("<2f", 1.0, 2.0)
    entries = [
        {"name": "a", "shape": [2], "datatype": "INT64", "data": [3, 4]},
        {
            "name": "b",
            "shape": [2],
            "datatype": "FP32",
            "parameters": {"binary_data_size": 8, "other": True},
        },
        {"name": "c", "shape": [1, 2], "datatype": "FP16", "data": [[None, 0.5]]},
    ]
    head = json.dumps({"model_name": "m", "outputs": entries}).encode()
    header, tensors = unpack(head + raw, len(head), "outputs", MOST)
    assert header == {"model_name": "m"}
    assert [t.array.tolist() for t in tensors[:2]] == [[3, 4], [1.0, 2.0]]
    assert math.isnan(tensors[2].array[0, 0])


def entry(**changes: object) -> dict[str, object]:
    """A tensor of two numbers in JSON, with changes; None leaves a key out."""
    whole = {"name": "x", "shape": [2], "datatype": "FP32", "data": [1.0, 2.0], **changes}
    return {key: value for key, value in whole.items() if value is not None}


def binary(size: object) -> dict[str, object]:
    return {"data": None, "parameters": {"binary_data_size": size}}


MALFORMED_TENSORS: list[tuple[str, list[dict[str, object]]]] = [
    ("a name and a datatype", [{"name": 3}, {"datatype": None}]),
    ("got 'BF16'", [{"datatype": "BF16"}]),
    ("a list of whole numbers", [{"shape": shape} for shape in ("2", [2.0], [True], [-1])]),
    ("at most 16 axes", [{"shape": [1] * 17}]),
    (f"at most {MOST} elements", [{"shape": [10**30]}, {"shape": [0, 10**9]}]),
    ("elements for", [{"shape": [3]}, {"shape": []}]),
    ("data as a list", [{"data": "12"}, {"data": None}]),
    (
        "elements that are FP32",
        [{"data": [1.0, "2"]}, {"data": [1.0, True]}, {"data": [[1.0], [2.0]]}],
    ),
    (
        "nested as",
        [{"shape": [2, 1], "data": [[1.0], [2.0, 3.0]]}, {"shape": [2, 1], "data": [[1.0], 2.0]}],
    ),
    ("nested as", [{"shape": [1, 2], "data": [[1.0], [2.0]]}]),
    ("expected 2 elements", [{"shape": [1, 2], "data": [[1.0, 2.0], [3.0, 4.0]]}]),
    (
        "beyond its range",
        [{"datatype": "UINT8", "data": [1, 256]}, {"datatype": "UINT64", "data": [1, -1]}],
    ),
    ("beyond its range", [{"datatype": "FP64", "data": [1, 10**400]}]),
    ("elements that are INT64", [{"datatype": "INT64", "data": [1, 2.0]}]),
    ("elements that are INT32", [{"datatype": "INT32", "data": [1, None]}]),
    ("elements that are BOOL", [{"datatype": "BOOL", "data": [1, 0]}]),
    ("parameters as a JSON object", [{"parameters": []}]),
    ("either data or", [{"parameters": {"binary_data_size": 8}}, binary(8.0)]),
    ("expected 8 bytes", [binary(8)]),
]
MALFORMED_MESSAGES: list[tuple[str, bytes, int | None]] = [
    ("expected JSON", b"\xff\xfe\x00", None),
    ("a JSON object", b"[1]", None),
    ("a list 'inputs'", b'{"inputs": {}}', None),
    ("a tensor as a JSON object", b'{"inputs": [1]}', None),
    ("expected JSON", b'{"inputs": []}x', None),
    ("nothing after the tensors", b'{"inputs": []}x', 14),
    ("a JSON header of 1 to 14 bytes", b'{"inputs": []}', 15),
    ("a JSON header of 1 to 14 bytes", b'{"inputs": []}', 0),
    ("nested too deep", b'{"inputs": ' + b"[" * 200_000, None),
    ("expected JSON", b'{"inputs": ' + b"9" * 200_000, None),
    ("each name once", json.dumps({"inputs": [entry(), entry()]}).encode(), None),
]


def test_a_malformed_message_is_described_in_a_line() -> None:
    tensors = ((words, change) for words, changes in MALFORMED_TENSORS for change in changes)
    wrong = [
        (words, json.dumps({"inputs": [entry(**change)]}).encode(), None)
        for words, change in tensors
    ]

    def is_described(words: str, body: bytes, length: int | None) -> None:
        assert len(str(malformed(words, unpack, body, length, "inputs", MOST))) < 300

    all_hold(is_described, [*wrong, *MALFORMED_MESSAGES])


def test_raw_bytes_must_fit_their_shape() -> None:
    for raw, datatype, shape in [
        (b"\0" * 7, "FP32", [2]),
        (b"\2", "BOOL", [1]),
    ]:
        malformed("expected", from_bytes, memoryview(raw), datatype, shape)
    malformed("got complex64", datatype_of, np.zeros(2, np.complex64))


def test_the_most_elements_are_those_of_all_tensors_together() -> None:
    body, length = pack(
        {}, [NamedTensor("a", IMAGES), NamedTensor("b", IMAGES)], "inputs", binary=True
    )
    assert len(unpack(body, length, "inputs", 48)[1]) == 2
    malformed("tensor 'b': expected a tensor of at most 23", unpack, body, length, "inputs", 47)


def test_the_length_of_the_header_is_a_whole_number() -> None:
    assert read_header_length({"inference-header-content-length": "17"}) == 17
    assert read_header_length({}) is None
    for text in ("", "-1", "1.5", "١٢", "9" * 5000):
        malformed(
            "as a whole number", read_header_length, {"inference-header-content-length": text}
        )
