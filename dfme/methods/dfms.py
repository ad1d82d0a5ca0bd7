"""DFMS (Sanyal, Addepalli, Babu; CVPR 2022; arXiv 2204.11022): stealing with hard labels."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dfme.answers.reading import unanswered
from dfme.methods.base import Components, Metrics
from dfme.methods.configs import DfmsConfig
from dfme.methods.generator_losses import (
    CrossEntropy,
    DescendingMethod,
    Discriminator,
    class_diversity,
    predict,
)
from dfme.queries.pool import ImageSource, Passes, by_programs, open_pool
from dfme.spec import ImageSpec

BETAS = (0.5, 0.999)
"""Of Adam, for both networks: DCGAN's."""


class Dfms(DescendingMethod):
    """A GAN of proxy images with class diversity by the student: DFMS-HL (labels), -SL (scores).

    First, without a query, ``gan_steps`` steps of a DCGAN on the proxy images. Then every iteration
    is ``student_steps`` batches for the student, cost = B * d images: of proxy images, each once,
    up to ``proxy_share`` of the budget; of generated ones from then on, followed by
    ``generator_steps`` steps of generator and discriminator, which ask nothing. The generator
    minimises

        BCE(D(G(z)), 1) + w * sum_k pbar_k log pbar_k - adversarial * distance(S(G(z)), T(G(z))),

    pbar the student's mean probabilities over the batch, w = ``diversity``, from ``later_from`` of
    the budget on ``diversity_later``. The last term's gradient goes through the student alone, at
    the answers that the student's last batch, then the generator's own, was paid for: how these
    change with the images it does not see, so that it is no gradient of the disagreement while the
    teacher's slopes are the steeper ones.

    Differences from the paper and its published code, with their values where we know them:

    - proxy images are ``procedural`` unless ``proxy`` names a set; the paper has other sets or
      coloured shapes;
    - its five stages are three: the generator has its diversity term (w of 10, later 500) as soon
      as its images are paid for, not after a training of its own, and what was answered is trained
      on again by replay (``student``), not in stages; when w changes is ours;
    - answers are to images as they are, which replays may augment (``student.augment``): one answer
      serves many steps; the generator steps on a batch of its own, but for ``adversarial``.
      Published: the alternating stage asks about the generator's own augmented batch and steps on
      that batch;
    - the generator is DFME's, for images of any size; its normalisations undo the scale of its
      first weights. The discriminator is DCGAN's. Published: transposed convolutions, weights from
      N(0, .02), ``latent_size`` 100;
    - both learn by the published Adam (2e-4; beta .5 is DCGAN's), at a constant rate until the
      first query and on the run's schedule from then on. Their batch is DCGAN's 128, the student's
      too. Published: 64;
    - the student's training is one stage, by ``student`` and ``schedule``, its moving average has
      one decay, and nothing is held out or chosen by a score (``configs/cifar10_dfms.yaml``).
      Published: SGD of .1 by a cosine, then .01 with a warm-up; the average is the best of seven
      decays on held-out generated images;
    - -SL here is the same with soft answers; the term that the student's slope estimates
      (``adversarial``) is off by default, and its weight is ours;
    - the student's loss is an option; the last student is reported, never the best on the
      evaluation set.
    """

    betas = BETAS
    config: DfmsConfig

    def __init__(self, config: DfmsConfig, components: Components) -> None:
        self._pretrained = False
        scheduled = components.lr_factor
        components = replace(components, lr_factor=lambda: scheduled() if self._pretrained else 1.0)
        super().__init__(config, components)
        self._discriminator = Discriminator(
            CrossEntropy(), components, config.discriminator_lr, BETAS
        )
        assert components.pool is not None
        self._proxy = by_programs(components.pool, self.oracle.spec, components.sources.programs)
        self._passes = Passes(self._proxy)
        self._own_parts["discriminator"] = self._discriminator
        self._own_parts["proxy"] = self._proxy
        self._own_parts["passes"] = self._passes

    @staticmethod
    def open_pool(config: DfmsConfig, spec: ImageSpec, budget: int) -> ImageSource:
        """The proxy images. UserError where they are missing."""
        return open_pool(config.proxy, spec, config.root, download=config.download)

    def prepare(self) -> tuple[str, ...]:
        """Train the GAN that the rest begins with; nothing is asked."""
        if self._pretrained:
            return ()
        for _ in range(self.config.gan_steps):
            gen_op = self.gen_op()
            self.descend(gen_op, self._discriminator.generator_loss(self.generator.squash(gen_op)))
            self.discriminator_step()
        self._pretrained = True
        return (
            f"gan: {self.config.gan_steps} steps on images of {self._proxy.name}, which asked "
            "nothing",
        )

    def step(self) -> Metrics:
        """One iteration: d batches of proxy images; or of generated ones, then g steps of both
        networks.
        """
        if self._on_proxy(self.cost):
            return self.pay_in_batches(self.cost)
        by_answers = self.config.adversarial > 0
        metrics = self.pay_in_batches(self.cost - by_answers * self.config.batch_size)
        for number in range(self.config.generator_steps):
            metrics |= self.generator_step(pays=by_answers and number == 0)
            metrics |= self.discriminator_step()
        return metrics

    @property
    def batches_at_once(self) -> int:
        # the last batch is the generator's own
        return 1 if self.config.adversarial > 0 else super().batches_at_once

    def generator_step(self, pays: bool = False) -> Metrics:
        """One generator step; one that ``pays`` first asks its own batch, which the students
        learn.
        """
        gen_op = self.gen_op()
        metrics = Metrics()
        answers = None
        if pays:
            x_BCHW = self.oracle.spec.quantise(self.generator.squash(gen_op.detach()))
            answers = self.oracle(x_BCHW, "student")
            metrics = self.learn(x_BCHW, answers)
        return metrics | self.descend(gen_op, self.generator_loss(gen_op, answers))

    def generator_loss(self, gen_op: Tensor, answers: Tensor | None = None) -> Tensor:
        """Loss of the generator; its last term only where the answers are known."""
        x_BCHW = self.generator.squash(gen_op)
        scores_EBK = predict(self.students.nets, x_BCHW)
        later = self.oracle.ledger.share >= self.config.later_from
        diversity = self.config.diversity_later if later else self.config.diversity
        loss = self._discriminator.generator_loss(x_BCHW) + diversity * class_diversity(scores_EBK)
        if answers is not None and self.oracle.is_service:
            known_B = ~unanswered(answers)
            answers = answers[known_B]
            scores_EBK = scores_EBK[:, known_B]
        if answers is None or len(answers) == 0:
            return loss
        far = [self.students.distance(scores_BK, answers).mean() for scores_BK in scores_EBK]
        return loss - self.config.adversarial * torch.stack(far).mean()

    def discriminator_step(self) -> Metrics:
        """A step of the discriminator, on proxy images and as many of the generator's."""
        real_BCHW = self._passes.draw(self.config.batch_size, self.rng["proxy"])
        return {
            "discriminator_loss": self._discriminator.learn(
                real_BCHW, self.generate(self.config.batch_size)
            )
        }

    def query_images(self, count: int) -> Tensor:
        """Images to pay for: proxy images first, then generated ones."""
        if not self._on_proxy(count):
            return self.queries.images(count)
        return self.oracle.spec.quantise(self._proxy.draw(count, self.rng["pool"]))

    def _on_proxy(self, count: int) -> bool:
        """True if the next ``count`` paid images are proxy images: it is time, and enough are
        left.
        """
        remaining = self._proxy.remaining
        return self.oracle.ledger.share < self.config.proxy_share and (
            remaining is None or remaining >= count
        )

    @property
    def facts(self) -> dict[str, Any]:
        return {"variant": "HL" if self.oracle.label_mode.kind == "label" else "SL"}

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"pretrained": self._pretrained}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._pretrained = state["pretrained"]
