"""The student's training: a fresh batch of paid answers at a time, then steps on answers paid for before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from dfme.config import StudentConfig
from dfme.losses import Distance
from dfme.precision import Precision, autocast
from dfme.replay import Replay

Metrics = dict[str, Tensor | float | Callable[[], Tensor]]
"""What a step tells, by the names in ``tracking.METRICS``. A function is called only when somebody reads it."""


@contextmanager
def evaluating(net: nn.Module) -> Iterator[nn.Module]:
    """``net`` in eval mode, and back in the mode it was found in: statistics frozen, images independent."""
    training = net.training
    net.eval()
    try:
        yield net
    finally:
        net.train(training)


def make_optimizer(net: nn.Module, config: StudentConfig) -> torch.optim.Optimizer:
    """The student's optimiser, in torch's fused form (one kernel for all parameters)."""
    if config.optimizer == "adam":
        return torch.optim.Adam(net.parameters(), config.lr, weight_decay=config.weight_decay, fused=True)
    return torch.optim.SGD(
        net.parameters(), config.lr, momentum=config.momentum, weight_decay=config.weight_decay, fused=True
    )


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Give every parameter group the learning rate ``lr``."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def forget_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """What an optimiser's ``zero_grad`` does, without the profiler's hook that costs more than the work."""
    for parameter in parameters:
        parameter.grad = None


def gradient_norm(net: nn.Module) -> Tensor:
    """Euclidean norm of the gradient of all parameters, a scalar on their device."""
    grads = [parameter.grad for parameter in net.parameters() if parameter.grad is not None]
    return nn.utils.get_total_norm(grads)


class StudentTrainer:
    """One student with its optimiser, replay and, if asked for, a moving average of its weights.

    ``lr_factor`` is asked before every batch: the schedule is a function of the budget spent.
    """

    def __init__(
        self,
        net: nn.Module,
        config: StudentConfig,
        distance: Distance,
        replay: Replay | None,
        lr_factor: Callable[[], float],
        precision: Precision = "fp32",
    ) -> None:
        self.net = net
        self.distance = distance
        self.steps = 0
        self._config = config
        self._replay = replay
        self._lr_factor = lr_factor
        self._precision = precision
        self._optimizer = make_optimizer(net, config)
        self._parameters = list(net.parameters())
        self._average = (
            AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(config.average), use_buffers=True)
            if config.average
            else None
        )

    @property
    def delivered(self) -> nn.Module:
        """The net a run delivers: the moving average if there is one, else the student itself."""
        return self.net if self._average is None else self._average.module

    def learn(self, images_BCHW: Tensor, answers: Tensor) -> Metrics:
        """One step on a fresh batch, then the replay steps it is worth. Returns the last losses."""
        lr = self._config.lr * self._lr_factor()
        set_lr(self._optimizer, lr)
        targets = self.distance.target(answers)
        metrics: Metrics = {
            "student_loss": self._step(images_BCHW, targets),
            "student_grad_norm": partial(gradient_norm, self.net),
            "student_lr": lr,
        }
        if self._replay is not None:
            self._replay.add(images_BCHW, targets)
            for _ in range(self._config.replay_steps):
                metrics["replay_loss"] = self._step(*self._replay.sample(self._config.replay_batch))
        metrics["student_steps"] = self.steps
        return metrics

    def _step(self, images_BCHW: Tensor, targets: Tensor) -> Tensor:
        if len(images_BCHW) == 1:  # batch normalisation refuses a lone value per channel; doubled, its mean is the same
            images_BCHW, targets = torch.cat([images_BCHW] * 2), torch.cat([targets] * 2)
        if not self.net.training:  # walking the modules of a net for nothing costs a hundredth of a small one's step
            self.net.train()
        forget_gradients(self._parameters)
        with autocast(images_BCHW.device, self._precision):
            scores_BK = self.net(images_BCHW)
        loss = self.distance.between(scores_BK.float(), targets).mean()
        loss.backward()
        self._optimizer.step()
        if self._average is not None:
            self._average.update_parameters(self.net)
        self.steps += 1
        return loss.detach()

    def state_dict(self) -> dict[str, Any]:
        return {
            "net": self.net.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "average": None if self._average is None else self._average.state_dict(),
            "replay": None if self._replay is None else self._replay.state_dict(),
            "steps": self.steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        self._optimizer.load_state_dict(state["optimizer"])
        if self._average is not None:
            self._average.load_state_dict(state["average"])
        if self._replay is not None:
            self._replay.load_state_dict(state["replay"])
        self.steps = state["steps"]
