"""Bodies of the Open Inference Protocol v2: JSON with tensors as JSON or trailing raw bytes.

Raw bytes are little endian and row major without padding. JSON has lists, nested as the shape says
or flat; ``null`` is NaN, which JSON cannot write. Texts (``BYTES``) are neither read nor written: a
tensor of them has its shape alone. Binary tensor data extension: the JSON object comes first, the
HTTP header ``HEADER_LENGTH`` says how long it is, and the raw bytes of each tensor with the
parameter ``binary_data_size`` follow in the tensors' order. Source:
https://github.com/kserve/open-inference-protocol and its binary tensor data extension.
"""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dfme.teachers.arrays import Array
from dfme.teachers.json_text import HEADER_LENGTH, load_json, require_numbers

DATATYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype("?"),
    "UINT8": np.dtype("<u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("<i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
_NAMES = {dtype: name for name, dtype in DATATYPES.items()}
_MAX_AXES = 16
_MAX_ELEMENTS = 2**28  # a gigabyte of FP32: no honest batch of images is larger
_MAX_SHOWN = 200  # characters of a text in a message
_SLICE = 2**16  # elements of a list that are read in one go


@dataclass(frozen=True)
class NamedTensor:
    """Input or output of a model; of BYTES an array of objects, all None."""

    name: str
    array: Array


def datatype_of(array: Array) -> str:
    """The protocol's word for an array's type. ValueError where it has none."""
    if array.dtype == object:
        return "BYTES"
    name = _NAMES.get(array.dtype.newbyteorder("<"))
    if name is None:
        raise ValueError(f"expected an array of {', '.join(DATATYPES)} or BYTES, got {array.dtype}")
    return name


def checked_shape(shape: object, most_elements: int) -> tuple[int, ...]:
    """A shape from JSON; ValueError unless sizes are at least 0 and the tensor small enough."""
    if isinstance(shape, list | tuple) and len(shape) > _MAX_AXES:
        raise ValueError(f"expected a shape of at most {_MAX_AXES} axes, got {len(shape)}")
    if not isinstance(shape, list | tuple) or not all(
        type(size) is int and size >= 0 for size in shape
    ):
        raise ValueError(
            f"expected a shape as a list of whole numbers of 0 or more, got {short(shape)}"
        )
    most = min(most_elements, _MAX_ELEMENTS)
    # an empty tensor may still have axes too long for numpy
    if math.prod(size or 1 for size in shape) > most:
        raise ValueError(f"expected a tensor of at most {most} elements, got {short(shape)}")
    return tuple(shape)


def to_bytes(array: Array) -> bytes | memoryview:
    """The raw bytes of an array; a view of the array itself where its memory is in order
    already.
    """
    ordered = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return ordered.reshape(-1).view(np.uint8).data


def from_bytes(raw: memoryview, datatype: str, shape: Sequence[int]) -> Array:
    """Array of these raw bytes in a checked shape, not copied. ValueError unless fitting."""
    if datatype == "BYTES":
        return np.empty(shape, object)
    dtype = _dtype(datatype)
    expected = math.prod(shape) * dtype.itemsize
    if len(raw) != expected:
        raise ValueError(f"expected {expected} bytes for {datatype} {list(shape)}, got {len(raw)}")
    if datatype == "BOOL" and np.frombuffer(raw, np.uint8).max(initial=0) > 1:
        raise ValueError("expected BOOL as bytes of 0 and 1, got others")
    return np.frombuffer(raw, dtype).reshape(shape)


def to_list(array: Array) -> list[Any]:
    """Elements as one flat JSON list. NaN is null; ValueError for infinities."""
    items: list[Any] = array.reshape(-1).tolist()
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return items
    if np.isinf(array).any():
        raise ValueError("JSON has no infinity; ask for binary tensors")
    return [None if item != item else item for item in items]


def from_list(data: object, datatype: str, shape: Sequence[int]) -> Array:
    """Array of a JSON list, nested by a checked shape or flat. ValueError unless all elements
    fit.
    """
    flat = _flattened(data, shape)
    if datatype == "BYTES":
        return np.empty(shape, object)
    dtype = _dtype(datatype)
    array = np.empty(len(flat), dtype)
    for start in range(0, len(flat), _SLICE):  # other threads may work between two
        part = flat[start : start + _SLICE]
        array[start : start + _SLICE] = _elements(part, datatype, dtype)
    return array.reshape(shape)


def short(value: Any, most: int = 80) -> str:
    """A value for a message, cut to a readable length; of a large one only the beginning is looked
    at.
    """
    long = isinstance(value, list | str | bytes) and len(value) > most
    text = repr(_beginning(value[:20] if long else value, [most]))
    return text if len(text) <= most else text[: most - 3] + "..."


def _beginning(value: object, remaining: list[int]) -> object:
    """As many of a value's parts as ``remaining`` says, which is more than are shown."""
    remaining[0] -= 1
    if isinstance(value, str | bytes):
        return value[:_MAX_SHOWN]
    if isinstance(value, list):
        return [
            _beginning(part, remaining)
            for part in itertools.takewhile(lambda _: remaining[0] > 0, value)
        ]
    if isinstance(value, dict):
        pairs = itertools.takewhile(lambda _: remaining[0] > 0, value.items())
        return {_beginning(name, remaining): _beginning(part, remaining) for name, part in pairs}
    return value


_JSON_TYPES: dict[str, set[type]] = {
    "b": {bool},
    "u": {int},
    "i": {int},
    "f": {int, float, type(None)},
}


def _elements(items: list[Any], datatype: str, dtype: np.dtype[Any]) -> Array:
    """Some elements of a JSON list. ValueError unless all are of the datatype and in its range."""
    strange = set(map(type, items)) - _JSON_TYPES[dtype.kind]
    if strange:
        names = min(kind.__name__ for kind in strange)
        raise ValueError(f"expected elements that are {datatype}, got {names}")
    beyond = f"expected elements that are {datatype}, got some beyond its range"
    if dtype.kind in "iu":
        limits: Any = np.iinfo(dtype)
        if min(items) < limits.min or max(items) > limits.max:
            raise ValueError(beyond)
    try:
        with np.errstate(over="ignore"):
            return np.array(items, dtype)
    except OverflowError:
        raise ValueError(beyond) from None


def _dtype(datatype: str) -> np.dtype[Any]:
    """The numpy type of a datatype other than BYTES. ValueError for an unknown word."""
    if datatype not in DATATYPES:
        raise ValueError(
            f"expected a datatype ({', '.join(DATATYPES)}, BYTES), got {short(datatype)}"
        )
    return DATATYPES[datatype]


def _flattened(data: object, shape: Sequence[int]) -> list[Any]:
    """The leaves of nested lists of exactly this shape, or of one flat list of as many elements."""
    if not isinstance(data, list):
        raise ValueError(f"expected data as a list, got {short(data)}")
    nested = len(shape) > 1 and bool(data) and isinstance(data[0], list)
    items = data
    for size, inner in itertools.pairwise(shape) if nested else ():
        if any(type(item) is not list or len(item) != inner for item in items):
            raise ValueError(
                f"expected lists nested as {list(shape)}, got others (at the axis of {size})"
            )
        items = list(itertools.chain.from_iterable(items))
    if len(items) != math.prod(shape) or (nested and len(data) != shape[0]):
        raise ValueError(
            f"expected {math.prod(shape)} elements for {list(shape)}, got {len(items)}"
        )
    return items


# Bodies

_ALIGNMENT = 8  # raw bytes begin at a multiple of it
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
TensorList = Literal["inputs", "outputs"]


def pack(
    header: Mapping[str, Any], tensors: Sequence[NamedTensor], key: TensorList, binary: bool
) -> tuple[bytes, int | None]:
    """A body, ``header`` with tensors under ``key``, and its JSON part's length; None if all.

    ValueError for what JSON cannot carry (infinities).
    """
    raw = [to_bytes(tensor.array) for tensor in tensors] if binary else []
    entries = [_entry(tensor, len(raw[i]) if binary else None) for i, tensor in enumerate(tensors)]
    text = _ENCODER.encode({**header, key: entries}).encode()
    if not binary:
        return text, None
    # blanks after the JSON, so that what follows lies where a reader may take it as numbers
    text = text.ljust(-(-len(text) // _ALIGNMENT) * _ALIGNMENT)
    return b"".join([text, *raw]), len(text)


def unpack(
    body: bytes, header_length: int | None, key: TensorList, most_elements: int
) -> tuple[dict[str, Any], list[NamedTensor]]:
    """The JSON object without its tensors, and the tensors under ``key``, whose memory may be
    ``body``'s own.

    ``header_length`` is None where all is JSON. ValueError in words for everything that is
    malformed, of other names than once each, or of more than ``most_elements`` elements in all.
    """
    if header_length is not None and not 0 < header_length <= len(body):
        raise ValueError(
            f"expected a JSON header of 1 to {len(body)} bytes, got the length {header_length}"
        )
    text = body if header_length is None else body[:header_length]
    if key == "inputs":  # of a stranger
        require_numbers(text)
    header = read_object(text)
    entries = header.pop(key, None)
    if not isinstance(entries, list):
        raise ValueError(f"expected a list {key!r}, got {short(entries)}")
    raw = memoryview(body)[len(body) if header_length is None else header_length :]
    tensors: list[NamedTensor] = []
    for entry in entries:
        tensor, used = _tensor(entry, raw, most_elements)
        most_elements -= tensor.array.size
        raw = raw[used:]
        tensors.append(tensor)
    if len(raw):
        raise ValueError(f"expected nothing after the tensors, got {len(raw)} bytes")
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise ValueError(
            f"expected each name once in {key!r}, got {short([tensor.name for tensor in tensors])}"
        )
    return header, tensors


def read_header_length(headers: Mapping[str, str]) -> int | None:
    """Length of the JSON part by HTTP headers; None: all is JSON. ValueError for garbage."""
    text = headers.get(HEADER_LENGTH.lower())
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 12):
        raise ValueError(f"expected {HEADER_LENGTH} as a whole number, got {short(text)}")
    return int(text)


def read_object(text: bytes) -> dict[str, Any]:
    """A JSON object. ValueError in words for anything else, however it is malformed."""
    try:
        value = load_json(text)
    except RecursionError:
        raise ValueError("expected JSON, got lists or objects nested too deep") from None
    except ValueError as error:
        raise ValueError(f"expected JSON, got {short(text)} ({short(str(error))})") from None
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got {short(value)}")
    return value


def parameters_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a message, a tensor or an output. ValueError if they are no JSON object."""
    parameters = entry.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise ValueError(f"expected parameters as a JSON object, got {short(parameters)}")
    return parameters or {}


def _entry(tensor: NamedTensor, size: int | None) -> dict[str, Any]:
    """A tensor in the JSON object; ``size`` is that of its raw bytes, None for data in JSON."""
    array = tensor.array
    data = {"data": to_list(array)} if size is None else {"parameters": {"binary_data_size": size}}
    return {
        "name": tensor.name,
        "shape": list(array.shape),
        "datatype": datatype_of(array),
        **data,
    }


def _tensor(entry: object, raw: memoryview, most_elements: int) -> tuple[NamedTensor, int]:
    """A tensor and how many of the raw bytes are its."""
    if not isinstance(entry, dict):
        raise ValueError(f"expected a tensor as a JSON object, got {short(entry)}")
    name = entry.get("name")
    datatype = entry.get("datatype")
    if not isinstance(name, str) or not isinstance(datatype, str):
        raise ValueError(
            f"expected a tensor with a name and a datatype, got {short(name)} and {short(datatype)}"
        )
    try:
        shape = checked_shape(entry.get("shape"), most_elements)
        size = _binary_size(entry)
        if size is None:
            return NamedTensor(name, from_list(entry.get("data"), datatype, shape)), 0
        if size > len(raw):
            raise ValueError(f"expected {size} bytes of binary data, got {len(raw)}")
        return NamedTensor(name, from_bytes(raw[:size], datatype, shape)), size
    except ValueError as error:
        raise ValueError(f"tensor {short(name)}: {error}") from None


def _binary_size(entry: dict[str, Any]) -> int | None:
    """Number of raw bytes of a tensor; None for data in JSON."""
    size = parameters_of(entry).get("binary_data_size")
    if size is None:
        return None
    if type(size) is not int or size < 0 or "data" in entry:
        raise ValueError(
            f"expected either data or a binary_data_size of 0 or more, got {short(size)}"
        )
    return size
