"""The last stage of an ensemble: one fresh net learns its vote, on images that are paid for. It asks nothing."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from dfme.config.settings import StudentConfig
from dfme.spec import LabelMode
from dfme.students.losses import recovered_logits
from dfme.students.optimizers import ScheduledOptimizer, make_optimizer

LOGITS = LabelMode("logits")


class Distillation:
    """``net`` learns the vote's recovered logits by L1 over ``steps`` steps, learning rate by a cosine to zero.

    Source: distillation is Hinton, Vinyals & Dean's (2015, arXiv 1503.02531); logits in place of probabilities are
    what learns most from few images here (``dfme.students.losses.make_distance``), and a vote has them also where
    the teacher answers labels.
    """

    def __init__(self, net: nn.Module, config: StudentConfig, steps: int) -> None:
        self.net = net
        self.steps = steps
        self.done = 0
        self._optimizer = ScheduledOptimizer(make_optimizer(net, config), self._lr_factor)

    @property
    def left(self) -> int:
        return self.steps - self.done

    def step(self, images_BCHW: Tensor, vote: nn.Module) -> Tensor:
        """One step on these images; the loss, mean over them. ``vote`` gives scores (B, K)."""
        with torch.no_grad():
            target_BK = recovered_logits(vote(images_BCHW), LOGITS)
        self.net.train()
        self._optimizer.zero_grad()
        loss: Tensor = (self.net(images_BCHW) - target_BK).abs().mean()
        loss.backward()
        self._optimizer.step()
        self.done += 1
        return loss.detach()

    def _lr_factor(self) -> float:
        return 0.5 * (1.0 + math.cos(math.pi * self.done / self.steps))

    def state_dict(self) -> dict[str, Any]:
        return {"net": self.net.state_dict(), "optimizer": self._optimizer.state_dict(), "done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.done = state["done"]
