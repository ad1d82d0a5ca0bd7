"""Users' students and generators: from ``module:Net`` or Python, and tried at once."""

import copy
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dfme.compute.modules import defaults_kept
from dfme.config.imports import blaming, name_of
from dfme.errors import UserError
from dfme.nets.generators import GeneratorNet
from dfme.spec import ImageSpec, Shape


class OwnGenerator(GeneratorNet):
    """Any network from z (B, Z) to u (B, C, H, W), before the squashing, as the generator."""

    def __init__(self, net: nn.Module, latent_size: int, spec: ImageSpec) -> None:
        super().__init__(spec)
        self.net = net
        self.latent_size = latent_size

    def forward(self, z_BZ: Tensor) -> Tensor:
        u_BCHW: Tensor = self.net(z_BZ)
        return u_BCHW


def own_classifier(make: Callable[..., Any], shape: Shape, num_classes: int) -> nn.Module:
    """A user's student: ``make`` called with ``shape`` and ``num_classes``, or a module's copy.

    UserError if it cannot be made, or is no network from images (B, C, H, W) to scores (B,
    num_classes).
    """
    net = _made(make, "the student", shape=shape, num_classes=num_classes)
    _require(net, "the student", torch.zeros(2, *shape), (2, num_classes))
    return net


def own_generator(make: Callable[..., Any], latent_size: int, spec: ImageSpec) -> GeneratorNet:
    """A user's generator: ``make`` called with ``latent_size``, ``shape``, ``spec``, or a copy.

    UserError if it cannot be made, or is no network from latents (B, latent_size) to (B, C, H, W).
    """
    net = _made(make, "the generator", latent_size=latent_size, shape=spec.shape, spec=spec)
    generator = net if isinstance(net, GeneratorNet) else OwnGenerator(net, latent_size, spec)
    _require(
        generator,
        "the generator",
        generator.draw(2, torch.Generator().manual_seed(0)),
        (2, *spec.shape),
    )
    return generator


def _made(make: Callable[..., Any], what: str, **arguments: Any) -> nn.Module:
    """The network. A file may name ``make``: only what takes one of the arguments by name is
    called.
    """
    if isinstance(make, nn.Module):
        return copy.deepcopy(make).cpu().train()
    name = name_of(make)
    try:
        wanted = {
            key: arguments[key] for key in inspect.signature(make).parameters if key in arguments
        }
    except (TypeError, ValueError):
        wanted = {}
    if not wanted:
        raise UserError(
            f"{what} {name}: expected a parameter named {' or '.join(arguments)}, got none of them"
        )
    failed = f"{what} {name}: called with {', '.join(wanted)}, it failed"
    with blaming(failed, UserError), defaults_kept(f"{what} {name}", UserError):
        net = make(**wanted)
    if not isinstance(net, nn.Module):
        raise UserError(
            f"{what} {name}: expected a torch module, got an object of type {type(net).__name__}"
        )
    return net


def _require(net: nn.Module, what: str, inputs: Tensor, shape: tuple[int, ...]) -> None:
    """UserError unless the net, in eval mode, makes trainable floats of this shape."""
    name = type(getattr(net, "net", net)).__name__
    expected = f"{what} {name}: expected floats {shape} for {tuple(inputs.shape)}"
    with blaming(f"{expected}, but it failed", UserError), torch.enable_grad():
        output = net.eval()(inputs)
    net.train()
    if not isinstance(output, Tensor) or not output.is_floating_point() or output.shape != shape:
        got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise UserError(f"{expected}, got {got}")
    if not output.requires_grad:
        raise UserError(f"{expected} by parameters to train, got none that its output depends on")
