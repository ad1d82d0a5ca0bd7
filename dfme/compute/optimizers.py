"""Torch's optimisers, without a compiler that they would load."""

import inspect
from typing import TypeVar

import torch

Eager = TypeVar("Eager", bound=torch.optim.Optimizer)


def _eager(optimizer: type[Eager]) -> type[Eager]:
    """The optimiser without its marks for ``torch.compile``: they import a compiler, which takes
    1.3 s.
    """
    plain = {
        "add_param_group": inspect.unwrap(optimizer.add_param_group),
        "step": torch.no_grad()(inspect.unwrap(optimizer.step)),
    }
    return type(optimizer.__name__, (optimizer,), plain)


SGD = _eager(torch.optim.SGD)

Adam = _eager(torch.optim.Adam)
