"""A generator's training: whatever its gradient is made of, it passes the one seam, at the generator's output."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from dfme.compute import DeferredChecks
from dfme.estimators import upstream as seam
from dfme.nets.generators import GeneratorNet
from dfme.students.optimizers import forget_gradients, gradient_norm, set_options
from dfme.students.trainer import Metrics

Loss = Callable[[Tensor], Tensor]
"""From u (B, C, H, W), which requires a gradient, to a scalar."""


def slope(loss: Loss, gen_op: Tensor) -> tuple[Tensor, Tensor]:
    """The value of a loss of ours at the generator's output, detached, and its gradient there (B, C, H, W)."""
    u_BCHW = gen_op.detach().requires_grad_()
    value = loss(u_BCHW)
    (grad_BCHW,) = torch.autograd.grad(value, u_BCHW)
    return value.detach(), grad_BCHW


class GeneratorTrainer:
    """A generator with its optimiser. ``lr_factor`` is asked before every step: a function of the budget spent.

    ``betas`` are Adam's; torch's own by default.
    """

    def __init__(
        self,
        net: GeneratorNet,
        lr: float,
        lr_factor: Callable[[], float],
        rng: torch.Generator,
        deferred: DeferredChecks,
        optimizer: Literal["adam", "sgd"] = "adam",
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        self.net = net
        self._lr = lr
        self._lr_factor = lr_factor
        self._rng = rng
        self._sentinel = deferred
        self._parameters = list(net.parameters())
        self._optimizer: torch.optim.Optimizer = (
            torch.optim.Adam(self._parameters, lr, betas=betas, fused=True)
            if optimizer == "adam"
            else torch.optim.SGD(self._parameters, lr, fused=True)
        )

    def generate(self, count: int, watch: bool = False) -> tuple[Tensor, Tensor | None]:
        """``gen_op`` (B, C, H, W) with its graph and, if watched, what the last convolution read (B, F, H, W)."""
        latent_BL = self.net.draw(count, self._rng)
        with self.net.watched() if watch else nullcontext([None]) as read:
            gen_op = self.net(latent_BL)
        return gen_op, read[0]

    @torch.no_grad()
    def images(self, count: int) -> Tensor:
        """Images (B, C, H, W) as it makes them now, in the mode it is in; nobody is asked."""
        return self.net.squash(self.generate(count)[0])

    def descend(self, gen_op: Tensor, upstream_grads: Tensor) -> Metrics:
        """One step, from the gradient of the loss in ``gen_op``."""
        lr = self._lr * self._lr_factor()
        set_options(self._optimizer, lr=lr)
        forget_gradients(self._parameters)
        seam.backward(gen_op, upstream_grads, self._sentinel)
        self._optimizer.step()
        return {
            "generator_lr": lr,
            "upstream_grad_norm": upstream_grads.norm,
            "generator_grad_norm": partial(gradient_norm, self.net),
        }

    def descend_by(self, loss: Loss, count: int) -> Metrics:
        """One step on a loss of ours, which asks nobody: autograd gives its gradient in ``gen_op``."""
        gen_op, _ = self.generate(count)
        value, upstream_grads = slope(loss, gen_op)
        return self.descend(gen_op, upstream_grads) | {"generator_loss": value}

    def state_dict(self) -> dict[str, Any]:
        return {"net": self.net.state_dict(), "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        self._optimizer.load_state_dict(state["optimizer"])
