"""Archives of arrays and tensors: no pickle is loaded, no memory taken for more than a file holds. No torch here."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfme.disk import open_file

HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
"""How each version of an array begins; the third differs only for records with names that are not Latin."""


def read_npz(path: Path, most: int) -> dict[str, NDArray[Any]]:
    """The arrays of a file by name; ``most``: bytes of all of them together.

    Raises ValueError, in words, for larger ones, for Python objects, and for whatever is no such file; OSError
    where it cannot be read.
    """
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            entries = [entry for entry in archive.infolist() if entry.filename.endswith(".npy")]
            if sum(entry.file_size for entry in entries) > most:
                raise ValueError(f"its arrays are larger than {most:,} bytes")
            return {entry.filename.removesuffix(".npy"): _array(archive, entry) for entry in entries}
    except (OSError, ValueError):
        raise
    except MemoryError:
        raise ValueError("its arrays do not fit into memory") from None
    except Exception as error:  # a damaged archive can raise anything at all
        raise ValueError(f"{type(error).__name__}: {error}") from error


def is_inflated(path: Path) -> bool:
    """Whether an archive unpacks to more bytes than it has itself, which nothing that PyTorch saved does."""
    try:
        with zipfile.ZipFile(path) as archive:
            return sum(entry.file_size for entry in archive.infolist()) > path.stat().st_size
    except Exception:  # whatever is wrong with it, PyTorch will say
        return False


def _array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> NDArray[Any]:
    """One array, once its header is known to claim what is there."""
    with archive.open(entry) as file:
        version = np.lib.format.read_magic(file)
        if version not in HEADERS:
            raise ValueError(f"{entry.filename}: expected an array of version 1 or 2, got {version}")
        shape, _, dtype = HEADERS[version](file)
        if dtype.hasobject:
            raise ValueError(f"{entry.filename}: holds Python objects, which are not loaded: that could run any code")
        claimed, held = math.prod(shape) * dtype.itemsize, entry.file_size - file.tell()
        if claimed != held:
            raise ValueError(f"{entry.filename}: claims to be an array of {claimed} bytes, but holds {held}")
    with archive.open(entry) as file:
        array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    return array
