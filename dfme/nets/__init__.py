"""Architectures for both sides, by name. Nothing heavy is imported until a net is built."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from dfme.config.imports import find_target
from dfme.config.messages import did_you_mean
from dfme.errors import UserError
from dfme.nets.torchvision_nets import TIMM, registered_names, timm_net, torchvision_net
from dfme.spec import SMALL_SIDE, Shape

if TYPE_CHECKING:
    from torch import nn

RESNETS = (
    "resnet18_8x",
    "resnet34_8x",
    "resnet34_8x_narrow",
    "resnet50_8x",
    "wrn16_1",
    "wrn16_2",
    "wrn40_2",
    "wrn28_10",
)
WHITENED = "cnn_whitened"
NETS = (*RESNETS, "lenet5", "cnn_small", "cnn_medium", "cnn_large", WHITENED)
"""Keys of ``architectures.BUILDERS``, which imports torch, and ``whitened.cnn_whitened``."""


def check_net(name: str) -> None:
    """UserError, with the nearest name, unless ``name`` is ours, torchvision's or timm's.

    Imports neither of them, nor torch: what they offer is read from their source files.
    """
    if name in NETS:
        return
    theirs = [
        *registered_names("torchvision"),
        *(TIMM + other for other in registered_names("timm")),
    ]
    if name in theirs:
        return
    hint = did_you_mean(name, [*NETS, *theirs]) or ";"
    install = {"torchvision": "", "timm": ": pip install -e '.[timm]'"}
    lacks = "".join(
        f" ({package} is not installed{how})"
        for package, how in install.items()
        if not registered_names(package)
    )
    also = f"a torchvision classifier such as resnet18, or timm:NAME without a tag{lacks}"
    text = f"unknown net {name[:80]!r}{hint} Expected {', '.join(NETS)}, {also}"
    raise UserError(text, about="arch")


def auto_net(shape: Shape, accelerated: bool = True) -> str:
    """Default net by image size; where a CPU trains it (not ``accelerated``) one that takes minutes
    there.

    At 224x224 a batch of 256 would take ResNet-18-8x some 100 GB.
    """
    longest = max(shape[1:])
    if longest <= 8:
        return "cnn_small"
    if longest <= SMALL_SIDE:
        return "cnn_medium"
    if not accelerated:
        return "cnn_large"
    return "resnet18_8x" if longest <= 64 else "resnet18"


def is_own(name: str) -> bool:
    """True if the name is that of a custom network, ``module:Net``."""
    return ":" in name and not name.startswith(TIMM)


def find_net(name: str) -> Callable[..., Any] | None:
    """Maker of a user's ``module:Net``; None for other names. UserError if it does not exist."""
    return find_target(name, "arch") if is_own(name) else None


def build_net(
    name: str, shape: Shape, num_classes: int, own: Callable[..., Any] | None = None
) -> nn.Module:
    """A freshly initialised net for images of (C, H, W), in train mode, on torch's default device.

    ``own`` makes a custom network instead of the one of that name: no name is imported here.
    Initial weights come from torch's global random state, as torch's own layers do: the caller
    seeds it. Raises UserError for an unknown name, fewer than two classes, or a size the
    architecture cannot take.
    """
    if own is None:
        check_net(name)
    if num_classes < 2:
        raise UserError(f"num_classes: expected at least 2, got {num_classes}")
    if own is not None:
        from dfme.nets.own import own_classifier

        return own_classifier(own, shape, num_classes)
    return builder(name)(shape, num_classes)


def builder(name: str) -> Callable[[Shape, int], nn.Module]:
    """The function behind a name that ``check_net`` takes, imported now."""
    if name not in NETS:
        return partial(timm_net if name.startswith(TIMM) else torchvision_net, name)
    if name == WHITENED:
        from dfme.nets.whitened import cnn_whitened

        return lambda shape, num_classes: cnn_whitened(shape[0], num_classes)
    from dfme.nets.architectures import BUILDERS

    return lambda shape, num_classes: BUILDERS[name](shape[0], num_classes)
