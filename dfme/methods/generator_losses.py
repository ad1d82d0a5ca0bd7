"""Generators' losses that the students alone decide: no query, and autograd knows their
gradient.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import combinations
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from dfme.compute.device import derived_seed
from dfme.compute.modules import Adam, evaluating
from dfme.methods.base import Components, Method, Metrics
from dfme.nets.generators import discriminator, gradient_norms
from dfme.students.optimizers import ScheduledOptimizer


class DescendingMethod(Method):
    """A method whose generator descends on a loss that asks nothing, by Adam with ``betas``."""

    betas: ClassVar[tuple[float, float]] = (0.9, 0.999)

    def __init__(self, config: Any, components: Components) -> None:
        super().__init__(config, components)
        adam = Adam(self.generator.parameters(), config.generator_lr, betas=self.betas, fused=True)
        self.generator_optimizer = ScheduledOptimizer(adam, components.lr_factor)

    def step(self) -> Metrics:
        """One iteration: g steps of the generator, which ask nothing, then d batches for the
        students.
        """
        metrics: Metrics = {}
        for _ in range(self.config.generator_steps):
            metrics |= self.generator_step()
        return metrics | self.pay_in_batches(self.cost)

    def generator_step(self) -> Metrics:
        """One step of the generator on its loss, whose gradient autograd knows."""
        gen_op = self.gen_op()
        return self.descend(gen_op, self.generator_loss(gen_op))

    def generator_loss(self, gen_op: Tensor) -> Tensor:
        """The loss, a scalar with its graph, of the generator's output before the squashing."""
        raise NotImplementedError

    def gen_op(self) -> Tensor:
        """A batch of the generator's output before the squashing (B, C, H, W), with its graph."""
        gen_op: Tensor = self.generator(
            self.generator.draw(self.config.batch_size, self.rng["latent"])
        )
        return gen_op

    def descend(self, gen_op: Tensor, loss: Tensor) -> Metrics:
        """The generator's update, in which no other network's weights get a gradient."""
        self.generator_optimizer.zero_grad()
        loss.backward(inputs=[gen_op, *self.generator.parameters()])
        self.generator_optimizer.step()
        return self.generator_metrics(gen_op.grad) | {"generator_loss": loss.detach()}


def predict(nets: Sequence[nn.Module], x_BCHW: Tensor) -> Tensor:
    """The scores (E, B, K) of every net in eval mode, with their graph."""
    with ExitStack() as stack:
        for net in nets:
            stack.enter_context(evaluating(net))
        return torch.stack([net(x_BCHW) for net in nets]).float()


def students_disagreement(scores_EBK: Tensor) -> Tensor:
    """Standard deviation (n - 1) of student probabilities, mean over images and classes
    (DisGUIDE).
    """
    # At equal probabilities the root has no slope that a float could hold.
    return scores_EBK.softmax(dim=2).var(dim=0).clamp_min(1e-12).sqrt().mean()


def pairwise_distance(scores_EBK: Tensor) -> Tensor:
    """Mean absolute difference of the students' scores, over all pairs of them (Dual Students)."""
    return torch.stack(
        [(a_BK - b_BK).abs().mean() for a_BK, b_BK in combinations(scores_EBK, 2)]
    ).mean()


def class_diversity(scores_EBK: Tensor) -> Tensor:
    """sum_k pbar_k log pbar_k, pbar the mean over students and batch: least for balanced classes.

    Source: DisGUIDE's class-diversity and DFMS's diversity loss. In nats.
    """
    mean_K = scores_EBK.softmax(dim=2).mean(dim=(0, 1))
    return (mean_K * mean_K.clamp_min(1e-12).log()).sum()


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
    """mean D(fake) - mean D(real) + penalty * mean (|d D / d x| - 1)^2, at random points between
    the two.

    Source: Gulrajani et al. 2017 (WGAN-GP, arXiv 1704.00028), algorithm 1. ``rng`` draws the
    points.
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

    def __init__(
        self,
        game: CrossEntropy | Wasserstein,
        components: Components,
        lr: float,
        betas: tuple[float, float],
    ) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derived_seed(components.seed, "adversary"))
            net = discriminator(components.oracle.spec.shape, normalised=game.normalised)
        self.net = net.to(components.rng["latent"].device)
        self._game = game
        adam = Adam(self.net.parameters(), lr, betas=betas, fused=True)
        self._optimizer = ScheduledOptimizer(adam, components.lr_factor)

    def generator_loss(self, x_BCHW: Tensor) -> Tensor:
        """Loss of a generator of these images for being found out, a scalar with its graph."""
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
        self.net.load_state_dict(state["net"])
        self._optimizer.load_state_dict(state["optimizer"])
