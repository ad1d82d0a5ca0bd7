"""Bodies of the Open Inference Protocol v2: JSON with tensors as JSON or trailing raw bytes.

Binary tensor data extension: the JSON object comes first, the HTTP header ``HEADER_LENGTH`` says
how long it is, and the raw bytes of each tensor with the parameter ``binary_data_size`` follow in
the tensors' order. Source: https://github.com/kserve/open-inference-protocol and its binary tensor
data extension.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from dfme.teachers.json_text import HEADER_LENGTH, load_json, require_numbers
from dfme.teachers.open_inference.tensors import (
    NamedTensor,
    checked_shape,
    datatype_of,
    from_bytes,
    from_list,
    short,
    to_bytes,
    to_list,
)

_ALIGNMENT = 8  # raw bytes begin at a multiple of it
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
TensorList = Literal["inputs", "outputs"]


def pack(
    header: Mapping[str, Any], tensors: Sequence[NamedTensor], key: TensorList, binary: bool
) -> tuple[bytes, int | None]:
    """A body, ``header`` with tensors under ``key``, and its JSON part's length; None if all.

    ValueError for what JSON cannot carry (infinities, texts not in UTF-8).
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
