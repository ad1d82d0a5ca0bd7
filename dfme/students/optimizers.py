"""Optimisers and the small things around their steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dfme.config.settings import StudentConfig


def make_optimizer(net: nn.Module, config: StudentConfig) -> torch.optim.Optimizer:
    """A student's optimiser, in torch's fused form (one kernel for all parameters)."""
    if config.optimizer == "adam":
        return torch.optim.Adam(net.parameters(), config.lr, weight_decay=config.weight_decay, fused=True)
    return torch.optim.SGD(
        net.parameters(), config.lr, momentum=config.momentum, weight_decay=config.weight_decay, fused=True
    )


class ScheduledOptimizer:
    """A torch optimiser whose learning rate is its own times ``lr_factor()``, asked at every step."""

    def __init__(self, optimizer: torch.optim.Optimizer, lr_factor: Callable[[], float]) -> None:
        self._optimizer = optimizer
        self._lr_factor = lr_factor
        self._base_lr: float = optimizer.param_groups[0]["lr"]
        self._parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    @property
    def lr(self) -> float:
        """The learning rate of a step taken now."""
        return self._base_lr * self._lr_factor()

    def zero_grad(self) -> None:
        """Drop all gradients; torch's own ``zero_grad`` runs a profiler hook that costs more than the work."""
        for parameter in self._parameters:
            parameter.grad = None

    def step(self) -> None:
        """One step at the learning rate of now."""
        self._set("lr", self.lr)
        self._optimizer.step()

    def set_weight_decay(self, value: float) -> None:
        """The weight decay of the steps to come."""
        self._set("weight_decay", value)

    def forget_moments(self) -> None:
        """Momentum and running averages start anew, as in a new optimiser."""
        self._optimizer.state.clear()

    def state_dict(self) -> dict[str, Any]:
        return self._optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._optimizer.load_state_dict(state)

    def _set(self, option: str, value: float) -> None:
        for group in self._optimizer.param_groups:
            group[option] = value


def gradient_norm(net: nn.Module) -> Tensor:
    """Euclidean norm of the gradient of all parameters, a scalar on their device."""
    grads = [parameter.grad for parameter in net.parameters() if parameter.grad is not None]
    return nn.utils.get_total_norm(grads)
