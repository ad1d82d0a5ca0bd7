"""Weights on disk: safetensors with a few words of metadata, the same bytes for the same net.

And what must be known of a stranger's file before memory is taken for what it claims to hold.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from dfme.errors import UserError
from dfme.files import replacing

MAX_TENSORS = 20_000  # of a network; those of 1,202 layers have 4,000


def save_module(path: Path, module: nn.Module, metadata: Mapping[str, str]) -> None:
    """Write a net's weights and buffers, whole or not at all. Raises RunError where the disk refuses."""
    state = {name: value.detach().cpu().contiguous().clone() for name, value in module.state_dict().items()}
    data = _sorted_header(save(state, metadata=dict(metadata)))
    with replacing(path) as file:
        file.write(data)


def on_meta_device(build: Callable[[], nn.Module]) -> nn.Module | None:
    """The net that ``build`` makes, names and shapes only; None for the few architectures that need real memory.

    Raises UserError where there is no such net.
    """
    try:
        with torch.device("meta"):
            return build()
    except NotImplementedError:
        return None
    except UserError:
        raise
    except Exception as error:  # sizes that no tensor can have
        raise UserError(f"cannot build the network it describes: {' '.join(str(error).split())[:200]}") from error


@contextmanager
def of_bounded_size() -> Iterator[None]:
    """Stop with UserError when a net is built that has more layers than any, since a file can name any number."""
    built = itertools.count(1)

    def count(*_: object) -> None:
        if next(built) > MAX_TENSORS:
            raise UserError(
                f"the network it describes has more than {MAX_TENSORS:,} tensors; expected an image classifier"
            )

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()


def state_dict_problems(net: nn.Module, state: Mapping[str, Tensor]) -> str:
    """How a state dict differs from a net's own in names and shapes, with the first of each; empty if not at all.

    Batch counters (``num_batches_tracked``) may be missing, as in checkpoints of old PyTorch versions.
    """
    own = net.state_dict()
    missing = [name for name in own if name not in state and not name.endswith("num_batches_tracked")]
    unexpected = [name for name in state if name not in own]
    reshaped = [name for name in state if name in own and state[name].shape != own[name].shape]
    problems = []
    if missing:
        problems.append(f"{len(missing)} of {len(own)} missing, first {missing[0]}")
    if unexpected:
        problems.append(f"{len(unexpected)} unexpected, first {unexpected[0]}")
    if reshaped:
        name = reshaped[0]
        problems.append(
            f"{len(reshaped)} of another shape, first {name}: {tuple(state[name].shape)} in the file, "
            f"{tuple(own[name].shape)} in the network"
        )
    return "; ".join(problems)


def _sorted_header(data: bytes) -> bytes:
    """The same safetensors file with its metadata in order: the library writes them in a random one."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + size :]
