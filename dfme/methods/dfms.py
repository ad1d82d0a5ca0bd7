"""DFMS: data-free model stealing in a hard-label setting (Sanyal, Addepalli, Babu; CVPR 2022; arXiv 2204.11022)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from dfme.methods.base import Metrics, Parts
from dfme.methods.configs import DfmsConfig
from dfme.methods.gan import Adversary, CrossEntropy
from dfme.methods.generator_losses import diversity, seen_by
from dfme.methods.generator_trainer import slope
from dfme.methods.teaching import Taught, Teaching
from dfme.queries.pool import ImageSource, Passes, by_programs, open_images
from dfme.spec import LABEL_KINDS, ImageSpec, LabelKind

BETAS = (0.5, 0.999)
"""Of Adam, for both networks: DCGAN's."""


class Dfms(Taught):
    """A GAN of proxy images, drawn away from what all look alike to the student: DFMS-HL on labels, -SL on scores.

    First, without a query, ``gan_steps`` steps of a DCGAN on the proxy images. Then every iteration is
    ``student_steps`` batches for the student, cost = B * d images: of proxy images, each once, up to ``proxy_share``
    of the budget; of generated ones from then on, followed by ``generator_steps`` steps of generator and
    discriminator, which ask nothing. The generator minimises

        BCE(D(G(z)), 1) + w * sum_k pbar_k log pbar_k - adversarial * distance(S(G(z)), T(G(z))),

    pbar the student's mean probabilities over the batch, w = ``diversity``, from ``later_from`` of the budget on
    ``diversity_later``. The last term's gradient goes through the student alone, at the answers that the student's
    last batch, then the generator's own, was paid for: how these change with the images it does not see, so that it
    is no gradient of the disagreement while the teacher's slopes are the steeper ones.

    Differences from the paper, with the paper's values where we know them:

    - proxy images are ``procedural`` unless ``proxy`` names a set; the paper has other sets or coloured shapes;
    - its five stages are three: the generator has its diversity term (w of 10, later 500) as soon as its images are
      paid for, not after a training of its own, and what was answered is trained on again by replay (``student``),
      not in stages; when w changes is ours;
    - answers are to images as they are; the paper's student sees augmented ones (``student.augment``, of replays);
    - the generator is DFME's, the discriminator DCGAN's, both with DCGAN's Adam (2e-4, beta .5) and batch of 128,
      at a constant rate until the first query and on the run's schedule from then on;
    - -SL here is the same with soft answers; the term that the student's slope estimates (``adversarial``) is off by
      default, and its weight is ours;
    - average of weights, optimiser and loss are options (``student``); the last student is reported, never the best
      on the evaluation set.
    """

    label_modes: ClassVar[tuple[LabelKind, ...]] = LABEL_KINDS

    def __init__(self, config: DfmsConfig, parts: Parts) -> None:
        self._pretrained, scheduled = False, parts.lr_factor
        parts = replace(parts, lr_factor=lambda: scheduled() if self._pretrained else 1.0)
        self.cost = config.batch_size * config.student_steps
        self._config = config
        self._parts = parts
        self._proxy = by_programs(parts.opened, parts.oracle.spec, parts.queries.programs)
        self._passes = Passes(self._proxy)
        self._generating = parts.generator_trainer(config.generator_lr, betas=BETAS)
        self._adversary = Adversary(CrossEntropy(), parts, lambda: config.discriminator_lr * parts.lr_factor(), BETAS)
        self._sampler = parts.sampler(config.batch_size)
        self._teaching = Teaching(parts, self._images, config.batch_size)

    @staticmethod
    def open(config: DfmsConfig, spec: ImageSpec, budget: int) -> ImageSource:
        """The proxy images. UserError where they are missing."""
        return open_images(config.proxy, config, spec)

    @property
    def facts(self) -> dict[str, Any]:
        return {"variant": "HL" if self._parts.oracle.label_mode.kind == "label" else "SL"}

    def prepare(self) -> tuple[str, ...]:
        """Train the GAN that the rest begins with."""
        if self._pretrained:
            return ()
        for _ in range(self._config.gan_steps):
            self._generating.descend_by(self._deceived, self._config.batch_size)
            self._discriminate()
        self._pretrained = True
        return (f"gan: {self._config.gan_steps} steps on images of {self._proxy.name}, which asked nothing",)

    def step(self) -> Metrics:
        if self._on_proxy(self.cost):
            return self._teaching.spend(self.cost)
        by_answers = self._config.adversarial > 0
        metrics = self._teaching.spend(self.cost - by_answers * self._config.batch_size)
        for number in range(self._config.generator_steps):
            metrics |= self._by_answers() if by_answers and number == 0 else self._by_students()
            metrics |= self._discriminate()
        return metrics

    def _on_proxy(self, count: int) -> bool:
        """Whether the next ``count`` images that are paid for are proxy images: there are as many, and it is time."""
        left = self._proxy.remaining
        return self._parts.oracle.ledger.share < self._config.proxy_share and (left is None or left >= count)

    def _images(self, count: int) -> Tensor:
        """Images to pay for."""
        if not self._on_proxy(count):
            return self._sampler.images(count)
        parts = self._parts
        return parts.oracle.spec.quantise(self._proxy.draw(count, parts.streams["pool"]))

    def _discriminate(self) -> Metrics:
        """A step of the discriminator, on proxy images and as many of the generator's."""
        batch_size = self._config.batch_size
        real_BCHW = self._passes.draw(batch_size, self._parts.streams["proxy"])
        return {"discriminator_loss": self._adversary.learn(real_BCHW, self._generating.images(batch_size))}

    def _by_students(self) -> Metrics:
        """A step of the generator that looks at discriminator and students only."""
        return self._generating.descend_by(self._loss, self._config.batch_size)

    def _by_answers(self) -> Metrics:
        """One that first pays for the answers to its own batch, with which the students are taught."""
        parts = self._parts
        gen_op, _ = self._generating.generate(self._config.batch_size)
        x_BCHW = parts.oracle.spec.quantise(parts.generator.squash(gen_op.detach()))
        answers = parts.oracle(x_BCHW, "student")
        metrics = self._teaching.take(x_BCHW, answers)
        value, upstream_grads = slope(lambda u_BCHW: self._loss(u_BCHW, answers), gen_op)
        return metrics | self._generating.descend(gen_op, upstream_grads) | {"generator_loss": value}

    def _deceived(self, u_BCHW: Tensor) -> Tensor:
        return self._adversary.deceived(self._parts.generator.squash(u_BCHW))

    def _loss(self, u_BCHW: Tensor, answers: Tensor | None = None) -> Tensor:
        """What the generator minimises; its last term only where the answers are known."""
        config, parts = self._config, self._parts
        later = parts.oracle.ledger.share >= config.later_from
        x_BCHW = parts.generator.squash(u_BCHW)
        scores_EBK = seen_by(parts.trainer.nets, x_BCHW)
        loss = self._adversary.deceived(x_BCHW)
        loss = loss + (config.diversity_later if later else config.diversity) * diversity(scores_EBK)
        if answers is None:
            return loss
        apart = torch.stack([parts.trainer.distance(scores_BK, answers).mean() for scores_BK in scores_EBK]).mean()
        return loss - config.adversarial * apart

    def state_dict(self) -> dict[str, Any]:
        return {
            "generator": self._generating.state_dict(),
            "discriminator": self._adversary.state_dict(),
            "proxy": self._proxy.state_dict(),
            "passes": self._passes.state_dict(),
            "pretrained": self._pretrained,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._generating.load_state_dict(state["generator"])
        self._adversary.load_state_dict(state["discriminator"])
        self._proxy.load_state_dict(state["proxy"])
        self._passes.load_state_dict(state["passes"])
        self._pretrained = state["pretrained"]
