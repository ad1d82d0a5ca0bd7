"""Weights on disk: safetensors with a few words of metadata, the same bytes for the same net."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save
from torch import nn

from dfme.disk import replacing


def save_module(path: Path, module: nn.Module, metadata: Mapping[str, str]) -> None:
    """Write a net's weights and buffers, whole or not at all. Raises RunError where the disk refuses."""
    state = {name: value.detach().cpu().contiguous().clone() for name, value in module.state_dict().items()}
    data = _sorted_header(save(state, metadata=dict(metadata)))
    with replacing(path) as file:
        file.write(data)


def _sorted_header(data: bytes) -> bytes:
    """The same safetensors file with its metadata in order: the library writes them in a random one."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + size :]
