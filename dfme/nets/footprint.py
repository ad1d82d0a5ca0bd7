"""The memory that a network takes for a batch: counted on tensors without memory, before any is reserved."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dfme.compute import evaluating


def weight_bytes(net: nn.Module) -> int:
    """Bytes of its parameters."""
    return sum(parameter.nbytes for parameter in net.parameters())


def peak_bytes(net: nn.Module, inputs: tuple[int, ...], training: bool = False) -> int | None:
    """Most bytes that live at once, weights apart, while ``net`` answers float32 ``inputs`` or, ``training``, learns.

    What the kernels need beside their results is not in it. None for a net that does not run without memory.
    """
    hollow = {name: torch.empty_like(tensor, device="meta") for name, tensor in net.state_dict(keep_vars=True).items()}
    for name, parameter in net.named_parameters():
        hollow[name].requires_grad_(training and parameter.requires_grad)
    mode = net.train if training else net.eval
    living = _Living()
    with evaluating(net), living, torch.set_grad_enabled(training):
        try:
            output = torch.func.functional_call(mode(), hollow, (torch.empty(inputs, device="meta"),))
            if training:
                output.sum().backward()
        except (RuntimeError, NotImplementedError, TypeError):
            return None
    return living.peak


class _Living(TorchDispatchMode):
    """Adds up, after each operation, the tensors that are still held by somebody."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak: int = 0
        self._held: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                self._held[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self._held = {key: entry for key, entry in self._held.items() if not entry[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._held.values()))
        return result
