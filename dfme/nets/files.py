"""Weights on disk: safetensors with a few words of metadata, the same bytes for the same net.

And what must be known of a stranger's file before memory is taken for what it claims to hold.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from dfme.errors import UserError
from dfme.files import replacing

SHOWN = 4  # names in a message
MAX_TENSORS = 20_000  # of a network; those of 1,202 layers have 4,000

SMALL_NETWORK = 1_000_000  # numbers in a network whose memory does not matter
MAX_TABLES = 20_000_000  # numbers in a network besides its weights


def save_module(path: Path, module: nn.Module, metadata: Mapping[str, str]) -> None:
    """Write a net's weights and buffers, whole or not at all. Raises RunError where the disk
    refuses.
    """
    save_tensors(path, module.state_dict(), metadata)


def save_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], mode: int = 0o666
) -> None:
    """Write tensors by name as safetensors, whole or not at all; ``mode`` as of ``replacing``.

    The same tensors and metadata give the same bytes. RunError where the disk refuses.
    """
    state = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    data = _sorted_header(save(state, metadata=dict(metadata)))
    with replacing(path, mode=mode) as file:
        file.write(data)


def on_meta_device(build: Callable[[], nn.Module]) -> nn.Module | None:
    """The net that ``build`` makes, as names and shapes; None if it needs real memory. UserError if
    none.
    """
    try:
        with torch.device("meta"):
            return build()
    except NotImplementedError:
        return None
    except UserError:
        raise
    except Exception as error:  # sizes that no tensor can have
        raise UserError(
            f"cannot build the network it describes: {' '.join(str(error).split())[:200]}"
        ) from error


@contextmanager
def of_bounded_size() -> Iterator[None]:
    """UserError when a built net has too many layers, since a file can name any number."""
    built = itertools.count(1)

    def count(*_: object) -> None:
        if next(built) > MAX_TENSORS:
            raise UserError(
                f"the network it describes has more than {MAX_TENSORS:,} tensors; expected an "
                "image "
                "classifier"
            )

    with register_module_parameter_registration_hook(count):
        yield


def require_as_large(outline: nn.Module, shapes: list[tuple[int, ...]], *, source: str) -> None:
    """UserError where a network would take memory for numbers that its files do not hold.

    ``outline`` has names and shapes alone. A part that lacks weights is named when they are loaded,
    so the network may be twice as large as they are. What it computes for itself may be
    ``MAX_TABLES``.
    """
    stored = sum(map(math.prod, shapes))
    described = sum(parameter.numel() for parameter in outline.parameters())
    tables = sum(buffer.numel() for buffer in outline.buffers())
    if described > 2 * stored + SMALL_NETWORK or tables > max(stored, MAX_TABLES):
        raise UserError(
            f"{source}: describes a network of {described + tables:,} numbers, but the weights "
            f"hold {stored:,}"
        )


def state_dict_problems(net: nn.Module, state: Mapping[str, Tensor]) -> str:
    """Differences of names and shapes between a state dict and a net, with the first of each."""
    return differences(net.state_dict(), state)


def differences(expected: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> str:
    """Differences of names and shapes between two state dicts, with the first of each.

    Batch counters (``num_batches_tracked``) may be missing, as in checkpoints of old PyTorch
    versions.
    """
    missing = [
        name for name in expected if name not in state and not name.endswith("num_batches_tracked")
    ]
    unexpected = [name for name in state if name not in expected]
    reshaped = [
        name for name in state if name in expected and state[name].shape != expected[name].shape
    ]
    problems = []
    if missing:
        problems.append(f"{len(missing)} of {len(expected)} missing, first {_first(missing)}")
    if unexpected:
        problems.append(f"{len(unexpected)} unexpected, first {_first(unexpected)}")
    if reshaped:
        name = reshaped[0]
        problems.append(
            f"{len(reshaped)} of another shape, first {name}: {tuple(state[name].shape)} in the "
            "file, "
            f"{tuple(expected[name].shape)} in the network"
        )
    return "; ".join(problems)


def _first(names: list[str]) -> str:
    """One name for each part of a network, so that one line tells where all of them come from."""
    parts = {name.partition(".")[0]: name for name in reversed(names)}
    return ", ".join(name[:80] for name in list(parts.values())[::-1][:SHOWN])


def _sorted_header(data: bytes) -> bytes:
    """The same safetensors file with its metadata in order: the library writes them in a random
    one.
    """
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


Shapes = dict[str, tuple[int, ...]]

MARKS: dict[str, str] = {
    "resnet": "layer4.0.shortcut.0.weight",
    "lenet": "fc2.weight",
    "wrn": "block3.layer.0.conv1.weight",
    "cnn": "features.0.weight",
}
"""A parameter that every net of a family of ours has, and no net of the others: only such nets are
tried.
"""

TORCHVISION_RESNETS: dict[tuple[int, ...], str] = {
    (2, 2, 2, 2, False, 64, 64): "resnet18",
    (3, 4, 6, 3, False, 64, 64): "resnet34",
    (3, 4, 6, 3, True, 64, 64): "resnet50",
    (3, 4, 6, 3, True, 128, 4): "resnext50_32x4d",
    (3, 4, 6, 3, True, 128, 128): "wide_resnet50_2",
    (3, 4, 23, 3, True, 64, 64): "resnet101",
    (3, 4, 23, 3, True, 256, 8): "resnext101_32x8d",
    (3, 4, 23, 3, True, 256, 4): "resnext101_64x4d",
    (3, 4, 23, 3, True, 128, 128): "wide_resnet101_2",
    (3, 8, 36, 3, True, 64, 64): "resnet152",
}
"""Blocks per stage, bottlenecks or not, and the shape of layer1.0.conv2.weight without the kernel
-> name.
"""


@dataclass(frozen=True)
class Guess:
    """Facts that a state dict tells about its net."""

    arch: str
    channels: int
    num_classes: int


def infer_net(state_dict: Mapping[str, Tensor]) -> Guess | None:
    """The architecture a state dict belongs to, or None.

    One of ours must match in every name and shape but for ``num_batches_tracked``; a torchvision
    ResNet is known by its blocks, its 7x7 stem and its ``fc``.
    """
    shapes = _shapes(state_dict)
    return _ours(shapes) or _torchvision_resnet(shapes)


def _shapes(state_dict: Mapping[str, Tensor]) -> Shapes:
    return {
        key: tuple(x.shape)
        for key, x in state_dict.items()
        if not key.endswith("num_batches_tracked")
    }


def _ours(shapes: Shapes) -> Guess | None:
    from dfme.nets import NETS, builder

    families = tuple(family for family, mark in MARKS.items() if mark in shapes)
    for name in NETS:
        if not name.startswith(families):
            continue
        with torch.device("meta"):  # names and shapes only
            build = builder(name)
            ours = _shapes(build((3, 8, 8), 10).state_dict())
            if ours.keys() != shapes.keys():
                continue
            # Parameters are registered in the order of the computation: the stem first, the head
            # last.
            stem = next(iter(ours))
            head = list(ours)[-1]
            if len(shapes[stem]) != 4 or not shapes[head]:
                continue
            channels = shapes[stem][1]
            num_classes = shapes[head][0]
            if (
                channels
                and num_classes
                and _shapes(build((channels, 8, 8), num_classes).state_dict()) == shapes
            ):
                return Guess(name, channels, num_classes)
    return None


def _torchvision_resnet(shapes: Shapes) -> Guess | None:
    stem = shapes.get("conv1.weight", ())
    middle = shapes.get("layer1.0.conv2.weight", ())
    head = shapes.get("fc.weight", ())
    if len(stem) != 4 or stem[2:] != (7, 7) or len(middle) != 4 or len(head) != 2:
        return None
    blocks = {match[1] for name in shapes if (match := re.match(r"layer(\d\.\d+)\.", name))}
    counts = [sum(block.startswith(f"{stage}.") for block in blocks) for stage in range(1, 5)]
    name = TORCHVISION_RESNETS.get((*counts, "layer1.0.conv3.weight" in shapes, *middle[:2]))
    return None if name is None else Guess(name, stem[1], head[0])
