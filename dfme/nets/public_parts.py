"""The parts of a backbone in order of computation, after each of which it can be cut.

A net is cut after a part where the part's output alone decides the features. Whether it does is
tried: the output on one image, put in place of that on another, must give the first one's features.
So a block with a shortcut around its inner layers is one part, of any family of nets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from dfme.nets.input_form import Size

CONTAINERS = (nn.Sequential, nn.ModuleList)
SMALL: Size = (64, 64)
"""Pixels at which nets are tried that take any size, since it is quicker."""


def parts_of(backbone: nn.Module, size: Size) -> list[str]:
    """Names of submodules in order of computation, the last of which ends in the features.

    Each is called once and gives one tensor; what follows one part sees nothing else of the image.
    The finest such parts are given, down to the blocks of a net, or to what a block consists of
    where nothing leads around it. Random state stays as it is.
    """
    training = backbone.training
    backbone.eval()
    with torch.no_grad():
        try:
            first_BCHW, second_BCHW = _images(backbone, SMALL)
            outputs, features_BD = _outputs(backbone, first_BCHW)
        except Exception:  # a net of one size may say so in any way
            first_BCHW, second_BCHW = _images(backbone, size)
            outputs, features_BD = _outputs(backbone, first_BCHW)

        def is_cut(name: str) -> bool:
            held = outputs[name]
            layer = backbone.get_submodule(name)
            handle = layer.register_forward_hook(lambda *_: held)
            try:
                got_BD = backbone(second_BCHW)
            finally:
                handle.remove()
            return bool(torch.equal(got_BD, features_BD))

        parts = [*_finest(backbone, "", outputs, is_cut)]
    backbone.train(training)
    order = {name: number for number, name in enumerate(outputs)}
    return sorted(parts, key=order.__getitem__)


def _images(backbone: nn.Module, size: Size) -> tuple[Tensor, Tensor]:
    """Two images of noise, on the backbone's device."""
    rng = torch.Generator().manual_seed(0)
    first_BCHW, second_BCHW = torch.randn(2, 1, 3, *size, generator=rng).unbind()
    device = next(backbone.parameters()).device
    return first_BCHW.to(device), second_BCHW.to(device)


def _outputs(backbone: nn.Module, x_BCHW: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """The output of each submodule that is called once and gives a tensor, in order, and the
    features.
    """
    calls: dict[str, list[object]] = {}

    def noting(name: str) -> Callable[..., None]:
        def note(layer: nn.Module, inputs: Any, output: object) -> None:
            calls.setdefault(name, []).append(output)

        return note

    handles = [
        layer.register_forward_hook(noting(name))
        for name, layer in backbone.named_modules()
        if name
    ]
    try:
        features_BD: Tensor = backbone(x_BCHW)
    finally:
        for handle in handles:
            handle.remove()
    once = {name: given[0] for name, given in calls.items() if len(given) == 1}
    return {
        name: value.clone() for name, value in once.items() if isinstance(value, Tensor)
    }, features_BD


def _finest(
    layer: nn.Module, name: str, outputs: dict[str, Tensor], is_cut: Callable[[str], bool]
) -> Iterator[str]:
    """The finest cuts within a layer down to its blocks; else the layer, if it is one itself."""
    inner = list[str]()
    is_plain = isinstance(layer, nn.Sequential) and "." not in name  # as of a VGG
    if _has_blocks(layer) or is_plain or not name:
        for child_name, child in layer.named_children():
            inner += _finest(child, f"{name}.{child_name}" if name else child_name, outputs, is_cut)
    if inner:
        yield from inner
    elif name in outputs and is_cut(name):
        yield name


def _has_blocks(layer: nn.Module) -> bool:
    """True for what consists of further parts: a list of layers below it that have layers."""
    lists = [module for module in layer.modules() if isinstance(module, CONTAINERS)]
    blocks = chain.from_iterable(lists)
    return any(next(block.children(), None) is not None for block in blocks)
