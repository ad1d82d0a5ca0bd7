"""A network that tells real images from generated ones, trained beside a generator. It asks nobody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from dfme.compute import take_up
from dfme.methods.base import Components
from dfme.nets.discriminators import discriminator, gradient_norms
from dfme.randomness import derived_seed
from dfme.students.optimizers import ScheduledOptimizer


class Game(Protocol):
    """What either side minimises, as scalars."""

    normalised: bool

    def of_generator(self, net: nn.Module, fake_BCHW: Tensor, /) -> Tensor: ...

    def of_discriminator(self, net: nn.Module, real_BCHW: Tensor, fake_BCHW: Tensor, /) -> Tensor: ...


@dataclass(frozen=True)
class CrossEntropy:
    """Binary cross-entropy, in nats; the generator's is BCE(D(G(z)), 1), which does not saturate.

    Source: Goodfellow et al. 2014 (arXiv 1406.2661), section 3.
    """

    normalised = True

    def of_generator(self, net: nn.Module, fake_BCHW: Tensor) -> Tensor:
        return softplus(-net(fake_BCHW)).mean()

    def of_discriminator(self, net: nn.Module, real_BCHW: Tensor, fake_BCHW: Tensor) -> Tensor:
        return softplus(-net(real_BCHW)).mean() + softplus(net(fake_BCHW)).mean()


@dataclass(frozen=True)
class Wasserstein:
    """mean D(fake) - mean D(real) + penalty * mean (|d D / d x| - 1)^2, at random points between the two.

    Source: Gulrajani et al. 2017 (WGAN-GP, arXiv 1704.00028), algorithm 1. ``rng`` draws the points.
    """

    penalty: float
    rng: torch.Generator
    normalised = False

    def of_generator(self, net: nn.Module, fake_BCHW: Tensor) -> Tensor:
        score: Tensor = net(fake_BCHW).mean()
        return -score

    def of_discriminator(self, net: nn.Module, real_BCHW: Tensor, fake_BCHW: Tensor) -> Tensor:
        share_B111 = torch.rand(len(real_BCHW), 1, 1, 1, generator=self.rng, device=self.rng.device)
        norms_B = gradient_norms(net, torch.lerp(fake_BCHW, real_BCHW, share_B111))
        distance: Tensor = net(fake_BCHW).mean() - net(real_BCHW).mean()
        return distance + self.penalty * (norms_B - 1.0).square().mean()


class Discriminator:
    """The network with its Adam, on the method's schedule. The run's seed initialises it."""

    def __init__(self, game: Game, components: Components, lr: float, betas: tuple[float, float]) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derived_seed(components.seed, "adversary"))
            net = discriminator(components.oracle.spec.shape, normalised=game.normalised)
        self.net = net.to(components.rng["latent"].device)  # never compiled: a penalty is differentiated twice
        self._game = game
        adam = torch.optim.Adam(self.net.parameters(), lr, betas=betas, fused=True)
        self._optimizer = ScheduledOptimizer(adam, components.lr_factor)

    def generator_loss(self, x_BCHW: Tensor) -> Tensor:
        """What a generator of these images loses by being found out, a scalar with its graph."""
        return self._game.of_generator(self.net, x_BCHW)

    def learn(self, real_BCHW: Tensor, fake_BCHW: Tensor) -> Tensor:
        """One step on as many images of either kind; its loss."""
        self._optimizer.zero_grad()
        loss = self._game.of_discriminator(self.net, real_BCHW, fake_BCHW)
        loss.backward()
        self._optimizer.step()
        return loss.detach()

    def state_dict(self) -> dict[str, Any]:
        return {"net": self.net.state_dict(), "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        take_up(self.net, state["net"], "discriminator")
        take_up(self._optimizer, state["optimizer"], "discriminator_optimizer")
