"""From a state dict to the architecture it belongs to, by its parameters' names and shapes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Shapes = dict[str, tuple[int, ...]]

# A parameter that every net of one of our modules has and no net of the others: only such nets are then tried.
MARKS: dict[str, str] = {
    "dfme.nets.resnet8x": "layer4.0.shortcut.0.weight",
    "dfme.nets.lenet": "fc2.weight",
    "dfme.nets.wideresnet": "block3.layer.0.conv1.weight",
    "dfme.nets.small": "features.0.weight",
}

# torchvision's ResNets: blocks per stage -> {(bottleneck, shape of layer1.0.conv2.weight without the kernel): name}
TORCHVISION_RESNETS: dict[tuple[int, ...], dict[tuple[bool, int, int], str]] = {
    (2, 2, 2, 2): {(False, 64, 64): "resnet18"},
    (3, 4, 6, 3): {
        (False, 64, 64): "resnet34",
        (True, 64, 64): "resnet50",
        (True, 128, 4): "resnext50_32x4d",
        (True, 128, 128): "wide_resnet50_2",
    },
    (3, 4, 23, 3): {
        (True, 64, 64): "resnet101",
        (True, 256, 8): "resnext101_32x8d",
        (True, 256, 4): "resnext101_64x4d",
        (True, 128, 128): "wide_resnet101_2",
    },
    (3, 8, 36, 3): {(True, 64, 64): "resnet152"},
}


@dataclass(frozen=True)
class Guess:
    """What a state dict tells about its net. ``size`` is (H, W), None where the weights fit every size."""

    arch: str
    channels: int
    num_classes: int
    size: tuple[int, int] | None = None


def infer_net(state_dict: Mapping[str, Tensor]) -> Guess | None:
    """The architecture a state dict belongs to, or None.

    One of ours must match in every name and shape (a missing ``num_batches_tracked``, as in files from before
    it existed, is forgiven); a torchvision ResNet is known by its blocks, its 7x7 stem and its ``fc``.
    """
    shapes = _shapes(state_dict)
    return _ours(shapes) or _torchvision_resnet(shapes)


def _shapes(state_dict: Mapping[str, Tensor]) -> Shapes:
    return {
        name: tuple(tensor.shape) for name, tensor in state_dict.items() if not name.endswith("num_batches_tracked")
    }


def _ours(shapes: Shapes) -> Guess | None:
    import torch

    from dfme.nets import NETS, builder

    for name, place in NETS.items():
        if MARKS.get(place.partition(":")[0]) not in shapes:
            continue
        with torch.device("meta"):  # names and shapes only
            build = builder(name)
            ours = _shapes(build((3, 8, 8), 10).state_dict())
            if ours.keys() != shapes.keys():
                continue
            # Parameters are registered in the order of the computation: the stem first, the head last.
            stem, head = next(iter(ours)), list(ours)[-1]
            if len(shapes[stem]) != 4 or not shapes[head]:
                continue
            channels, num_classes = shapes[stem][1], shapes[head][0]
            if channels and num_classes and _shapes(build((channels, 8, 8), num_classes).state_dict()) == shapes:
                return Guess(name, channels, num_classes)
    return None


def _torchvision_resnet(shapes: Shapes) -> Guess | None:
    stem, middle = shapes.get("conv1.weight", ()), shapes.get("layer1.0.conv2.weight", ())
    head = shapes.get("fc.weight", ())
    if len(stem) != 4 or stem[2:] != (7, 7) or len(middle) != 4 or len(head) != 2:
        return None
    blocks = {match[1] for name in shapes if (match := re.match(r"layer(\d\.\d+)\.", name))}
    counts = tuple(sum(block.startswith(f"{stage}.") for block in blocks) for stage in range(1, 5))
    kind = ("layer1.0.conv3.weight" in shapes, middle[0], middle[1])
    name = TORCHVISION_RESNETS.get(counts, {}).get(kind)
    return None if name is None else Guess(name, stem[1], head[0])
