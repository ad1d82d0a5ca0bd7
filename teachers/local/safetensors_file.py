"""Reads safetensors files from unknown sources.

The safetensors library refuses a whole file if its metadata holds a null or a number, which some
programs write. The tensors of such a file are sound, so the header is read here. Every rule of the
format is checked before memory is allocated.
"""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch
from torch import Tensor

from dfme.errors import UserError
from dfme.files import open_file

LENGTH_BYTES = 8  # of the header's length, at the start of the file
MAX_HEADER = 16_000_000  # bytes; the header of a network of 20,000 tensors has some 3 million
MAX_AXES = 64
MAX_ELEMENTS = 2**40
METADATA = "__metadata__"

DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "U16": torch.uint16,
    "I16": torch.int16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "F32": torch.float32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F64": torch.float64,
    "C64": torch.complex64,
}


class _Entry(NamedTuple):
    """A tensor of the header; ``begin`` and ``end`` count bytes from the end of the header."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


def is_safetensors(head: bytes) -> bool:
    """True if the first bytes of a file are those of a safetensors file."""
    length = int.from_bytes(head[:LENGTH_BYTES], "little")
    return head[LENGTH_BYTES : LENGTH_BYTES + 1] == b"{" and length < MAX_HEADER


def has_odd_metadata(path: Path) -> bool:
    """True if the safetensors library would refuse the file for its metadata alone."""
    try:
        with open_file(path) as file:
            metadata = _header(file)[0].get(METADATA, {})
    except (OSError, ValueError, RecursionError):
        return False  # reading the file raises an error that says what is wrong
    return metadata is not None and metadata != _texts(metadata)


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a file on the CPU, and its metadata as texts.

    A null of the metadata is left out, and another value that is no text is given as JSON.
    UserError for a file that is cut short, and for a header whose entries overlap, leave a gap,
    reach beyond the file, or contradict their own shapes.
    """
    with _readable(path) as file:
        header, size = _header(file)
        metadata = _texts(header.pop(METADATA, None))
        entries = _entries(header, size)
        return {entry.name: _tensor(file, entry) for entry in entries}, metadata


def shapes_of(path: Path) -> list[tuple[int, ...]]:
    """The shapes of a file's tensors, by its header. UserError as from ``read_safetensors``."""
    with _readable(path) as file:
        header, size = _header(file)
        header.pop(METADATA, None)
        return [entry.shape for entry in _entries(header, size)]


@contextmanager
def _readable(path: Path) -> Iterator[IO[bytes]]:
    """The open file; what is wrong with it becomes a UserError."""
    try:
        with open_file(path) as file:
            yield file
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        problem = " ".join(str(error).split())[:200] or "its header is nested too deep"
        raise UserError(
            f"{path}: cannot be read as safetensors, perhaps cut short: {problem}"
        ) from error


def _header(file: IO[bytes]) -> tuple[dict[str, Any], int]:
    """The header, and how many bytes follow it; the file is left at the first of these."""
    total = file.seek(0, 2)
    file.seek(0)
    length = int.from_bytes(file.read(LENGTH_BYTES), "little")
    size = total - LENGTH_BYTES - length
    if length > MAX_HEADER or size < 0:
        raise ValueError(f"its header claims {length:,} bytes, and the file has {total:,}")
    header = json.loads(file.read(length), object_pairs_hook=_without_repeats)
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object")
    return header, size


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of the header. ValueError for a repeated name: readers keep different values."""
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a name stands twice in its header")
    return value


def _texts(metadata: object) -> dict[str, str]:
    """The metadata as the format wants it."""
    if not isinstance(metadata, dict):
        return {}
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in metadata.items()
        if value is not None
    }


def _entries(header: dict[str, Any], size: int) -> list[_Entry]:
    """The tensors in the order in which they lie, without a gap, an overlap, or bytes left over."""
    entries = sorted(
        (_entry(name, value) for name, value in header.items()), key=lambda entry: entry[3:]
    )
    place = 0
    for entry in entries:
        if entry.begin != place:
            raise ValueError(
                f"{entry.name[:80]!r} begins at byte {entry.begin:,}, expected {place:,}"
            )
        place = entry.end
    if place != size:
        raise ValueError(f"its tensors take {place:,} bytes, and the file has {size:,} for them")
    return entries


def _entry(name: str, value: object) -> _Entry:
    """One tensor of the header. ValueError unless its dtype, shape and place agree."""
    match value:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [begin, end]}:
            pass
        case _:
            raise ValueError(f"{name[:80]!r} lacks a dtype, a shape or a place")
    if dtype not in DTYPES:
        raise ValueError(f"{name[:80]!r} has the dtype {dtype[:20]!r}, which PyTorch cannot take")
    are_sizes = all(type(number) is int and number >= 0 for number in (*shape, begin, end))
    if not are_sizes or len(shape) > MAX_AXES:
        raise ValueError(f"{name[:80]!r} has sizes that are no whole numbers")
    # an empty tensor has strides, too, up to the product of its other sizes
    if math.prod(max(size, 1) for size in shape) > MAX_ELEMENTS:
        raise ValueError(f"{name[:80]!r} claims more than any tensor has")
    expected = math.prod(shape) * DTYPES[dtype].itemsize
    if end - begin != expected:
        raise ValueError(f"{name[:80]!r} takes {end - begin:,} bytes, expected {expected:,}")
    return _Entry(name, DTYPES[dtype], tuple(shape), begin, end)


def _tensor(file: IO[bytes], entry: _Entry) -> Tensor:
    """The next tensor of the file, copied into memory."""
    data = bytearray(file.read(entry.end - entry.begin))
    if not data:
        return torch.empty(entry.shape, dtype=entry.dtype)
    if entry.dtype == torch.bool:  # a byte that is neither 0 nor 1 is no bool
        return torch.frombuffer(data, dtype=torch.uint8).ne(0).reshape(entry.shape)
    return torch.frombuffer(data, dtype=entry.dtype).reshape(entry.shape)
