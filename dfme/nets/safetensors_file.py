"""Reads safetensors files from unknown sources by the library, which checks all of the format.

It refuses a whole file if the metadata hold a null or a number, which some programs write. The
tensors of such a file are sound, so it is read from a copy with metadata of texts.
"""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dfme.errors import UserError
from dfme.files import open_file

LENGTH_BYTES = 8  # of the header's length, at the start of the file
MAX_HEADER = 16_000_000  # bytes; the header of a network of 20,000 tensors has some 3 million
MAX_AXES = 64
MAX_ELEMENTS = 2**40
METADATA = "__metadata__"


def is_safetensors(head: bytes) -> bool:
    """True if the first bytes of a file are those of a safetensors file."""
    length = int.from_bytes(head[:LENGTH_BYTES], "little")
    return head[LENGTH_BYTES : LENGTH_BYTES + 1] == b"{" and length < MAX_HEADER


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a file, copied to the CPU's memory, and its metadata as texts.

    A null of the metadata is left out, and another value that is no text is given as JSON.
    UserError for a file that is cut short, and for one whose header lies.
    """
    with _opened(path) as file:
        return {
            name: _copied(file.get_tensor(name)) for name in file.offset_keys()
        }, file.metadata() or {}


def shapes_of(path: Path) -> list[tuple[int, ...]]:
    """The shapes of a file's tensors, by its header. UserError as from ``read_safetensors``."""
    with _opened(path) as file:
        return [tuple(file.get_slice(name).get_shape()) for name in file.offset_keys()]


@contextmanager
def plain_metadata(path: Path) -> Iterator[Path]:
    """The file, or a copy of it where the library would refuse it for its metadata alone."""
    content = _with_texts(path)
    if content is None:
        yield path
        return
    with TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        copy.write_bytes(content)
        yield copy


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The open file; what is wrong with it becomes a UserError."""
    try:
        with plain_metadata(path) as plain, safe_open(plain, "pt") as file:
            shapes = [file.get_slice(name).get_shape() for name in file.offset_keys()]
            # an empty tensor has strides, too, up to the product of its other sizes
            sizes = (math.prod(max(size, 1) for size in shape) for shape in shapes)
            if max(map(len, shapes), default=0) > MAX_AXES or max(sizes, default=0) > MAX_ELEMENTS:
                raise SafetensorError("a tensor claims more than any tensor has")
            yield file
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    except SafetensorError as error:
        problem = " ".join(str(error).split())[:200]
        raise UserError(
            f"{path}: cannot be read as safetensors, perhaps cut short: {problem}"
        ) from error


def _with_texts(path: Path) -> bytes | None:
    """The file with metadata as the format wants them; None where they are, or all is garbage."""
    with open_file(path) as file:
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        try:
            header: Any = json.loads(file.read(length)) if length < MAX_HEADER else None
        except (ValueError, RecursionError):
            return None  # the library says what is wrong
        metadata = header.get(METADATA) if isinstance(header, dict) else None
        if metadata is None:
            return None
        values = metadata if isinstance(metadata, dict) else {}
        texts = {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in values.items()
            if value is not None
        }
        if texts == metadata:
            return None
        text = json.dumps({**header, METADATA: {"format": "pt", **texts}}).encode()
        return len(text).to_bytes(LENGTH_BYTES, "little") + text + file.read()


def _copied(tensor: Tensor) -> Tensor:
    """A tensor in memory of its own; a byte of a bool that is neither 0 nor 1 is no bool."""
    return tensor.view(torch.uint8).ne(0) if tensor.dtype == torch.bool else tensor.clone()
