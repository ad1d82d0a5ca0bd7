"""Optimisers and the small things around their steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from dfme.compute import held_to
from dfme.config.settings import StudentConfig
from dfme.spec import LabelMode


def fitting(config: StudentConfig, mode: LabelMode) -> StudentConfig:
    """The student's settings with an optimiser of ``auto`` chosen by what the teacher answers.

    Heuristic: with few scores a high rate and decay of SGD give the best clone, with labels they keep a student from
    fitting what it has paid for (docs/results/comparison.md).
    """
    if config.optimizer != "auto":
        return config
    if mode.kind != "label":
        return replace(config, optimizer="sgd")
    return replace(config, optimizer="adam", lr=config.lr / 50, weight_decay=0.0)


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
        self.take_step: Callable[[], object] = optimizer.step  # at the learning rate that was set last
        self.weight_decay: float = optimizer.param_groups[0]["weight_decay"]
        self._rate: Tensor | None = None
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
        self.set_lr()
        self.take_step()

    def set_lr(self) -> None:
        """Steps to come are taken at the learning rate of now; a GPU's as float32, the form that a graph reads."""
        if self._rate is not None:
            self._rate.fill_(self.lr)
        else:
            on_gpu = self._parameters[0].is_cuda
            self._set("lr", torch.tensor(self.lr, dtype=torch.float32).item() if on_gpu else self.lr)

    def stay_in_place(self) -> None:
        """Moments and learning rate lie for good where a CUDA graph finds them; the numbers stay."""
        parameter = self._parameters[0]
        dtype = torch.float32 if parameter.is_cuda else torch.float64
        self._rate = torch.zeros((), dtype=dtype, device=parameter.device)
        self._set("lr", self._rate)
        self._set("capturable", True)  # Adam wants it said; a fused optimiser heeds it nowhere else
        for number, moments in self._after_a_step().items():
            self._optimizer.state[self._parameters[number]] = {key: value.zero_() for key, value in moments.items()}

    @property
    def learning(self) -> list[Any]:
        """The parameters that have a gradient."""
        return [parameter for parameter in self._parameters if parameter.grad is not None]

    @property
    def moments(self) -> list[Tensor]:
        """Momentum and running averages of all parameters, where they lie."""
        return [value for moments in self._optimizer.state.values() for value in moments.values()]

    def set_weight_decay(self, value: float) -> None:
        """The weight decay of the steps to come."""
        self.weight_decay = value
        self._set("weight_decay", value)

    def forget_moments(self) -> None:
        """Momentum and running averages start anew, as in a new optimiser, where they lie."""
        for value in self.moments:
            value.zero_()

    def state_dict(self) -> dict[str, Any]:
        """The moments by the number of their parameter, of those that took a step. Settings are no state."""
        moments = self._optimizer.state
        return {"state": {n: dict(moments[own]) for n, own in enumerate(self._parameters) if moments.get(own)}}

    def load_state_dict(self, state: dict[str, Any], name: str = "optimizer") -> None:
        """Take up what ``state_dict`` gave, copied to where it lies, or would after a step: kernels check no size.

        Raises ValueError, with ``name``, for moments that a step would not leave.
        """
        moments, fresh = self._optimizer.state, self._after_a_step()
        found = held_to({number: fresh[number] for number in state["state"]}, state["state"], name)
        self.forget_moments()
        for number, kept in found.items():
            own = moments[self._parameters[number]] or fresh[number]
            moments[self._parameters[number]] = {key: own[key].copy_(value) for key, value in kept.items()}

    def _after_a_step(self) -> dict[int, dict[str, Tensor]]:
        """What a first step leaves, by the number of the parameter, in an optimiser of the same settings."""
        others = [nn.Parameter(torch.zeros_like(parameter)) for parameter in self._parameters]
        for other in others:
            other.grad = torch.zeros_like(other)
        optimizer = type(self._optimizer)(others, **self._optimizer.defaults)
        optimizer.step()
        return {number: dict(optimizer.state[other]) for number, other in enumerate(others)}

    def _set(self, option: str, value: float | Tensor) -> None:
        for group in self._optimizer.param_groups:
            group[option] = value


def gradient_norm(net: nn.Module) -> Tensor:
    """Euclidean norm of the gradient of all parameters, a scalar on their device."""
    grads = [parameter.grad for parameter in net.parameters() if parameter.grad is not None]
    return nn.utils.get_total_norm(grads)
