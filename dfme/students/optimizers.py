"""Optimisers and the small things around their steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dfme.compute.modules import SGD, Adam, validate_like
from dfme.config.settings import ScheduleConfig, StudentConfig


def make_optimizer(net: nn.Module, config: StudentConfig) -> torch.optim.Optimizer:
    """A student's optimiser, in torch's fused form (one kernel for all parameters)."""
    if config.optimizer in ("adam", "adamw"):
        return Adam(
            net.parameters(),
            config.lr,
            weight_decay=config.weight_decay,
            decoupled_weight_decay=config.optimizer == "adamw",
            fused=True,
        )
    return SGD(
        net.parameters(), config.lr, config.momentum, weight_decay=config.weight_decay, fused=True
    )


class ScheduledOptimizer:
    """A torch optimiser whose learning rate is its own times ``lr_factor()``, asked at every
    step.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, lr_factor: Callable[[], float]) -> None:
        self._optimizer = optimizer
        self.rate = 0.0  # of the last step
        self._lr_factor = lr_factor
        self._base_lr: float = optimizer.param_groups[0]["lr"]
        self._parameters = [
            parameter for group in optimizer.param_groups for parameter in group["params"]
        ]

    @property
    def lr(self) -> float:
        return self._base_lr * self._lr_factor()

    def zero_grad(self) -> None:
        """Drop all gradients; torch's ``zero_grad`` runs a profiler hook dearer than the work."""
        for parameter in self._parameters:
            parameter.grad = None

    def step(self) -> None:
        """One step at the present learning rate."""
        self.rate = self.lr
        self._set("lr", self.rate)
        self._optimizer.step()

    def set_weight_decay(self, value: float) -> None:
        self._set("weight_decay", value)

    def forget_moments(self) -> None:
        """Momentum and running averages start anew, as in a new optimiser."""
        for moments in self._optimizer.state.values():
            for value in moments.values():
                value.zero_()

    def state_dict(self) -> dict[str, Any]:
        """The moments by the number of their parameter, of those that took a step. Settings are no
        state.
        """
        moments = [self._optimizer.state.get(own) for own in self._parameters]
        return {"state": {number: dict(each) for number, each in enumerate(moments) if each}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what ``state_dict`` gave, copied into moments of the right size: kernels check
        none.
        """
        moments = self._optimizer.state
        fresh = self._after_a_step()
        validate_like(
            {number: fresh[number] for number in state["state"]}, state["state"], "optimizer"
        )
        self.forget_moments()
        for number, kept in state["state"].items():
            own = moments[self._parameters[number]] or fresh[number]
            moments[self._parameters[number]] = {
                key: value.copy_(kept[key]) for key, value in own.items()
            }

    def _after_a_step(self) -> dict[int, dict[str, Tensor]]:
        """State after a first step, by the number of the parameter, in an optimiser of the same
        settings.
        """
        others = [nn.Parameter(torch.zeros_like(parameter)) for parameter in self._parameters]
        for other in others:
            other.grad = torch.zeros_like(other)
        optimizer = type(self._optimizer)(others, **self._optimizer.defaults)
        optimizer.step()
        return {number: dict(optimizer.state[other]) for number, other in enumerate(others)}

    def _set(self, option: str, value: float) -> None:
        for group in self._optimizer.param_groups:
            group[option] = value


def gradient_norm(net: nn.Module) -> Tensor:
    """Euclidean norm of the gradient of all parameters, a scalar on their device."""
    grads = [parameter.grad for parameter in net.parameters() if parameter.grad is not None]
    return nn.utils.get_total_norm(grads)


class Budget(Protocol):
    """A budget, of which a ``share`` (0 to 1) is spent by now."""

    @property
    def share(self) -> float: ...


@dataclass(frozen=True)
class Schedule:
    """A learning rate's schedule over a budget; without one, all is spent from the start."""

    config: ScheduleConfig
    budget: Budget | None = None

    @property
    def share(self) -> float:
        """Share of the budget that is spent."""
        return 1.0 if self.budget is None else self.budget.share

    def factor(self) -> float:
        """Factor of a learning rate now."""
        return self.at(self.share)

    def at(self, share: float) -> float:
        """Factor of a learning rate once ``share`` of the budget is spent."""
        if self.config.kind == "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * min(share, 1.0)))
        if self.config.kind == "steps":
            passed = sum(share >= milestone for milestone in self.config.milestones)
            return float(self.config.decay**passed)
        return 1.0


def weight_decay(config: StudentConfig, images: int) -> float:
    """The students' weight decay with so many paid images held; fewer than a replayed batch count
    as one.

    A prior on the weights would be worth less by 1/n beside n images, what an optimiser needs not
    at all. Between them is 1/sqrt(n), a heuristic of ours: measured in docs/results/comparison.md.
    """
    if not config.decay_images:
        return config.weight_decay
    return config.weight_decay * math.sqrt(config.decay_images / max(images, config.batch(images)))


LEAP = 0.1
"""Share of the budget from which on the rate falls within the steps on one batch of so much;
heuristic.
"""

LAST_LEAP = 0.025
"""The same of the last batch, at whose end a cosine is zero; of a smaller one the steps are taken
there.
"""


@dataclass(frozen=True)
class Stretch:
    """The part of the budget that the steps on one batch stand for, from ``begin`` to ``end``.

    Each of the ``steps`` after the first ``first`` ones has the learning rate of its own place in
    it.
    """

    begin: float
    end: float
    first: int
    steps: int

    def share(self, steps: int) -> float:
        """The share of the budget that counts as spent for the step after so many."""
        done = min(1.0, (steps - self.first) / self.steps)
        return self.begin + (self.end - self.begin) * done


@dataclass(frozen=True)
class StepPlan:
    """The steps of a student: ``during``, evenly while the budget is spent, or those of rounds.

    ``during`` of None plans no number: each fresh batch is worth a step and its replay steps.
    ``rounds`` are shares of the budget, the last one 1, at which the ``final`` steps are taken, so
    many in each; ``during`` is 0 then. Under a larger budget the rounds that were due before ended
    after ``ends`` steps, and those beyond the share ``since``, spent by then, come.
    """

    during: int | None = None
    final: tuple[int, ...] = (0,)
    rounds: tuple[float, ...] = (1.0,)
    ends: tuple[int, ...] = ()
    since: float = 0.0

    @staticmethod
    def of(config: StudentConfig, images: int, most: int | None = None) -> StepPlan:
        """The plan for a budget of so many images, of which at ``most`` so many are held at a
        time.
        """
        if config.rounds:
            return StepPlan(0, config.round_steps(images, most), config.rounds)
        return StepPlan(config.steps) if config.steps else StepPlan()

    def goes_on(self, larger: StepPlan, spent: float, since: float) -> StepPlan:
        """Plan ``larger``, of a larger budget, once the share ``spent`` of this one's is, its
        ``since``.
        """
        return replace(larger, ends=tuple(self.edges[1 : self._reached(spent) + 1]), since=since)

    @cached_property
    def edges(self) -> list[int]:
        """The steps after which rounds begin, and after which the last one ends: all that the plan
        has.
        """
        edges = [self.during or 0, *self.ends]
        for due, steps in zip(self.rounds, self.final, strict=True):
            if self.since < due:
                edges.append(edges[-1] + steps)
        return edges

    def steps_due(self, share: float, steps: int) -> int:
        """Final steps to take before another image is paid for, after ``steps`` steps."""
        reached = self._reached(share)
        return max(0, self.edges[reached] - steps) if reached else 0

    def _reached(self, share: float) -> int:
        """Rounds that are due once ``share`` of the budget is spent."""
        return len(self.ends) + sum(self.since < due <= share for due in self.rounds)

    def stretch(self, share: float, batch: float, steps: int, due: int) -> Stretch | None:
        """The stretch of ``due`` steps on a batch, after ``steps``, if it is too long to be one
        point.

        ``share`` of the budget is spent, ``batch`` of it on this batch. A budget of one batch would
        else take all of its steps where the schedule ends.
        """
        if due < 1:
            return None
        begin = max(0.0, share - batch) if self.during is None else steps / self.during
        if share - begin <= (LEAP if share < 1 else LAST_LEAP):
            return None
        return Stretch(begin, share, steps, due)

    def left_over(self, steps: int) -> Stretch | None:
        """The stretch of steps that the budget was spent without: of a last batch that taught
        nobody.
        """
        during = self.during or 0
        return Stretch(steps / during, 1.0, steps, during - steps) if steps < during else None

    def round_at(self, steps: int) -> int:
        """The number, from 0, of the round that begins after ``steps`` steps; -1 within a round."""
        return self.edges[:-1].index(steps) if steps in self.edges[:-1] else -1

    def progress(self, share: float, steps: int) -> float:
        """Progress of training, 0 to 1: the share of the budget spent, or how far the round is."""
        if not any(self.final):
            return share
        begin, end = next(
            (pair for pair in pairwise(self.edges) if steps < pair[1]), self.edges[-2:]
        )
        return min(1.0, (steps - begin) / (end - begin))
