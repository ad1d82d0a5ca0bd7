"""Safetensors files: read as the library does, with nulls allowed, hostile headers refused."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import refused
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from tables import all_hold

from dfme.teachers.local.safetensors_file import DTYPES, read_safetensors
from dfme.teachers.local.weights import read_weights


def written(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(begin: int, end: int, *shape: Any, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def test_every_dtype_is_read_as_the_library_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "all.safetensors"
    tensors = {
        name: torch.arange(12).reshape(3, 4).to(dtype).contiguous()
        for name, dtype in DTYPES.items()
    }
    tensors["empty"] = torch.empty(0, 5)
    tensors["number"] = torch.tensor(2.5)
    save_file(tensors, path, metadata={"format": "pt"})
    found, metadata = read_safetensors(path)
    expected = load_file(path)
    assert metadata == {"format": "pt"}
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        assert found[name].shape == value.shape, name
        ours, theirs = (each.reshape(-1).view(torch.uint8) for each in (found[name], value))
        assert torch.equal(ours, theirs), name


NULLS = [
    {"format": "pt", "author": None},
    {"format": None, "shape": None, "num_classes": None},
    {"num_classes": 3, "tags": ["a"], "nested": {"a": None}},
    None,
    [1],
    "text",
]


def test_metadata_that_the_library_refuses_is_read(tmp_path: Path) -> None:
    def holds(metadata: Any) -> None:
        header = {"__metadata__": metadata, "fc.weight": entry(0, 24, 3, 2)}
        path = written(tmp_path / "x.safetensors", header, torch.arange(6.0).numpy().tobytes())
        state, card = read_weights(path)
        assert torch.equal(state["fc.weight"], torch.arange(6.0).reshape(3, 2))
        assert card.num_classes == (
            3 if isinstance(metadata, dict) and 3 in metadata.values() else None
        )

    all_hold(holds, ((metadata,) for metadata in NULLS))
    written(
        tmp_path / "x.safetensors", {"__metadata__": {"a": None}, "w": entry(0, 4, 1)}, bytes(4)
    )
    with pytest.raises(SafetensorError), safe_open(tmp_path / "x.safetensors", framework="pt"):
        pass  # else this reader could go


W = entry(0, 4, 1)
HOSTILE: dict[str, tuple[Any, bytes, str]] = {
    "overlap": ({"a": entry(0, 8, 2), "b": entry(4, 12, 2)}, bytes(12), "begins at byte 4"),
    "the same bytes twice": ({"a": W, "b": W}, bytes(4), "begins at byte 0, expected 4"),
    "a gap": ({"a": W, "b": entry(8, 12, 1)}, bytes(12), "begins at byte 8, expected 4"),
    "a gap at the start": ({"a": entry(4, 8, 1)}, bytes(8), "begins at byte 4, expected 0"),
    "beyond the file": (
        {"a": entry(0, 4_000_000_000, 10**9)},
        bytes(4),
        "take 4,000,000,000 bytes",
    ),
    "bytes left over": ({"a": W}, bytes(8), "the file has 8"),
    "a size too small": ({"a": entry(0, 4, 1000)}, bytes(4), "takes 4 bytes, expected 4,000"),
    "a product beyond 64 bits": (
        {"a": entry(0, 4, 2**40, 2**40)},
        bytes(4),
        "more than any tensor",
    ),
    "nothing times infinity": ({"a": entry(0, 0, 0, 2**70)}, b"", "more than any tensor"),
    "nothing, stepping far": ({"a": entry(0, 0, 2**40, 0, 2**40)}, b"", "more than any tensor"),
    "negative": ({"a": entry(-4, 0, 1)}, bytes(4), "no whole numbers"),
    "two negatives": ({"a": entry(0, 4, -1, -1)}, bytes(4), "no whole numbers"),
    "a bool": ({"a": entry(0, 4, True)}, bytes(4), "no whole numbers"),
    "a fraction": ({"a": entry(0, 4, 1.0)}, bytes(4), "no whole numbers"),
    "backwards": ({"a": entry(4, 0, 1)}, bytes(4), "takes -4 bytes"),
    "many axes": ({"a": entry(0, 4, *[1] * 65)}, bytes(4), "no whole numbers"),
    "unknown dtype": ({"a": entry(0, 4, 1, dtype="F4")}, bytes(4), "the dtype 'F4'"),
    "dtype of another type": ({"a": entry(0, 4, 1, dtype=["F32"])}, bytes(4), "lacks a dtype"),
    "no shape": (
        {"a": {"dtype": "F32", "data_offsets": [0, 4]}},
        bytes(4),
        "lacks a dtype, a shape",
    ),
    "three offsets": (
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 4]}},
        bytes(4),
        "lacks a dtype, a shape or a place",
    ),
    "no entry": ({"a": None}, b"", "lacks a dtype"),
    "a name twice": (b'{"a":1,"a":2}', b"", "stands twice"),
    "no JSON": (b"{nonsense", b"", "cannot be read as safetensors"),
    "no text": (b"{\xff\xff}", b"", "cannot be read as safetensors"),
    "deep": (b'{"a":' + b"[" * 100_000, b"", "cannot be read as safetensors"),
    "a number of 5,000 digits": (b'{"a":' + b"9" * 5_000 + b"}", b"", "cannot be read"),
}


@pytest.mark.timeout(20)
def test_a_header_that_lies_is_refused_in_one_line(tmp_path: Path) -> None:
    def holds(case: str) -> None:
        header, data, words = HOSTILE[case]
        refused(words, read_weights, written(tmp_path / "x.safetensors", header, data))

    all_hold(holds, ((case,) for case in HOSTILE))


def test_a_header_longer_than_the_file_or_than_any(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    for length in (1_000, 15_999_999, 2**63, 2**64 - 1):
        path.write_bytes(struct.pack("<Q", length) + b'{"a":1}')
        refused("safetensors", read_weights, path)


def test_bytes_that_are_no_bools_become_bools(tmp_path: Path) -> None:
    path = written(tmp_path / "x.safetensors", {"a": entry(0, 3, 3, dtype="BOOL")}, b"\0\1\7")
    assert read_safetensors(path)[0]["a"].tolist() == [False, True, True]
