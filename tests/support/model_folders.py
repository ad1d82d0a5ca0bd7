"""Folders of models on this machine, and a machine without a network."""

import json
import pickle
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from damage import Harm
from torch import nn

from dfme.nets.files import save_module
from dfme.teachers.local.weights import Card

near = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-5)
"""Asserts that two tensors are equal but for the rounding of another order of operations."""


@contextmanager
def no_network() -> Iterator[None]:
    """Any attempt to look a host up or to connect fails the test."""

    def refuse(*args: object, **kwargs: object) -> None:
        pytest.fail(f"a network connection was attempted: {args}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", refuse)
        patch.setattr(socket.socket, "connect", refuse)
        yield


def save_weights(path: Path, module: nn.Module, card: Card) -> None:
    """A teacher's weights and card, as training leaves them."""
    save_module(path, module, card.to_metadata())


def edit(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def spoil(folder: Path, how: Any) -> None:
    """Change ``config.json`` by keys, replace it by a text, or do what a function does to the
    folder.
    """
    if isinstance(how, dict):
        edit(folder / "config.json", **how)
    elif isinstance(how, str):
        (folder / "config.json").write_text(how)
    else:
        how(folder)


def pickled_weights(folder: Path) -> None:
    """A pickle, which leaves a trace beside the folder when it is read, in place of the weights."""
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Harm(folder.parent / "trace")))


def no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def no_config(folder: Path) -> None:
    (folder / "config.json").unlink()
