"""Arithmetic of a GPU on a CPU: an accelerator's rules, and TF32 products."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from dfme.answers import reading
from dfme.compute import device as device_module
from dfme.compute import device as devices
from dfme.nets.generators import Generator
from dfme.queries import textures

NOT_A_KERNEL = {
    "aten::detach",
    "aten::empty",
    "aten::empty_like",
    "aten::empty_strided",
    "aten::new_empty",
}
"""Besides views: what reserves memory or renames it."""


@contextmanager
def pretended() -> Iterator[pytest.MonkeyPatch]:
    """Every module takes the CPU for an accelerator."""
    on_accelerator = devices.on_accelerator
    with pytest.MonkeyPatch.context() as patch:
        for name, module in list(sys.modules.items()):
            if name.startswith("dfme") and vars(module).get("on_accelerator") is on_accelerator:
                patch.setattr(module, "on_accelerator", lambda device: True)
        yield patch


class HostReadError(AssertionError):
    """The host read what an accelerator holds."""


def _in_its_place(self: nn.Module, *_: object, **__: object) -> nn.Module:
    """In place of a move to another device: only what has no memory yet gets some."""
    for module in self.modules():
        for held in (module._parameters, module._buffers):
            for name, value in held.items():
                if value is not None and value.is_meta:
                    made = torch.empty(value.shape, dtype=value.dtype)
                    held[name] = nn.Parameter(made) if held is module._parameters else made
    return self


def _without_memory(*arguments: Any) -> Generator:
    """A generator on ``meta``, which tensors without values cannot be made beside."""
    with unset_fake_temporarily():
        return Generator(*arguments)


def _cells(coarser: int, _: torch.device) -> Tensor:
    """In place of the characters of ``text``, which are sent once."""
    return torch.zeros(
        len(textures.WEIGHTS) * len(textures.CHARACTERS),
        textures.SIDE // coarser,
        textures.SIDE // coarser,
    )


def _refuse(*_: object, **__: object) -> None:
    raise HostReadError("the host reads a tensor")


class NothingSent(TorchFunctionMode):
    """Refuses numbers for an accelerator, which waits for them; torch says "cpu" where it means the
    host.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        device = (kwargs or {}).get("device")
        if func is torch.tensor and isinstance(device, torch.device) and device.type != "meta":
            raise HostReadError("the host sends a tensor")
        return func(*args, **(kwargs or {}))


@contextmanager
def unreadable() -> Iterator[None]:
    """Tensors have no values meanwhile, and are on an accelerator: whatever reads one, or depends
    on it.

    Fake tensors raise where a number, a size or an index follows from values. What copies a whole
    tensor is refused here, and so are numbers sent to a device. They cannot be swapped or
    deep-copied, so that modules stay where they are and copies are clones.
    """
    with pretended() as patch, FakeTensorMode(), NothingSent():
        for name in ("cpu", "numpy", "__array__"):
            patch.setattr(Tensor, name, _refuse)
        patch.setattr(textures, "_cells", _cells)
        patch.setattr(reading, "as_tensor", lambda raw: raw)  # it takes plain tensors alone
        patch.setattr(nn.Module, "_apply", _in_its_place)
        patch.setattr(textures, "Generator", _without_memory)
        patch.setattr(
            FakeTensor, "__deepcopy__", lambda self, _: self.detach().clone(), raising=False
        )
        yield


class Launches(TorchDispatchMode):
    """Counts the kernels that are launched meanwhile.

    An operation with several kernels counts once, one of a whole list of tensors (fused, foreach)
    too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        self.count += name.startswith("aten::") and not func.is_view and name not in NOT_A_KERNEL
        return func(*args, **(kwargs or {}))


OPERANDS = {
    torch.ops.aten.convolution.default: (0, 1),
    torch.ops.aten.addmm.default: (1, 2),
    torch.ops.aten.mm.default: (0, 1),
    torch.ops.aten.bmm.default: (0, 1),
}


def rounded(x: Tensor) -> Tensor:
    """The nearest numbers of 10 bits and the exponent of fp32."""
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


class Rounding(TorchDispatchMode):
    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: object,
        args: Any = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        operands = list(args)
        for at in OPERANDS.get(func, ()):  # type: ignore[call-overload]
            operands[at] = rounded(args[at]) if args[at].dtype == torch.float32 else args[at]
        return func(*operands, **kwargs or {})


@contextmanager
def tf32() -> Iterator[None]:
    with device_module.ieee_fp32(), Rounding():
        yield


def flagged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Holds something while the real switch would be at TF32."""
    inside: list[str] = []

    @contextmanager
    def elsewhere() -> Iterator[None]:
        inside.append("tf32")
        yield
        inside.pop()

    monkeypatch.setattr(device_module, "tf32", elsewhere)
    return inside
