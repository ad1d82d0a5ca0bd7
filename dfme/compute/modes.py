"""A net's mode and PyTorch's defaults, which are afterwards as they were."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from dfme.errors import DfmeError


@contextmanager
def defaults_kept(subject: str, error: type[DfmeError]) -> Iterator[None]:
    """Raise ``error`` if others' code changes PyTorch's defaults, which all that follows has.

    The default dtype, the default device and the recording of gradients are as before in any case.
    """
    before = _defaults()
    cause: Exception | None = None
    try:
        yield
    except Exception as problem:  # which the change may be the cause of
        cause = problem
    after = _defaults()
    changed = [f"{name} to {value}" for name, value in after.items() if value != before[name]]
    if changed:
        device = before["default device"]
        torch.set_default_dtype(before["default dtype"])
        torch.set_default_device(None if device.type == "cpu" else device)
        torch.set_grad_enabled(before["recording of gradients"])
        raise error(
            f"{subject}: it sets PyTorch's {' and its '.join(changed)}, for the whole process; "
            "expected these left as they are: give its own tensors a dtype and a device"
        ) from cause
    if cause is not None:
        raise cause


def _defaults() -> dict[str, Any]:
    return {
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "recording of gradients": torch.is_grad_enabled(),
    }


@contextmanager
def evaluating(net: nn.Module) -> Iterator[nn.Module]:
    """``net`` in eval mode, and back in the mode it was found in: statistics frozen, images
    independent.
    """
    training = net.training
    _set_mode(net, training=False)
    try:
        yield net
    finally:
        _set_mode(net, training=training)


def _set_mode(net: nn.Module, *, training: bool) -> None:
    """``net.train(training)`` in a tenth of its time, which for ResNet-18 equals a dozen
    launches.
    """
    modules = [net]
    while modules:
        module = modules.pop()
        if type(module).train is nn.Module.train and "training" in vars(module):
            vars(module)["training"] = training
            modules += [child for child in module._modules.values() if child is not None]
        else:  # it has its own idea of a mode
            module.train(training)
