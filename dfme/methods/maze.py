"""MAZE: data-free model stealing by zeroth-order gradient estimation (Kariyappa, Prakash, Qureshi; CVPR 2021;
arXiv 2005.03161), and its variant with a few real images."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor

from dfme.errors import UserError
from dfme.estimators import Estimator
from dfme.estimators.preflight import needs_preflight, probe_images, require_budget
from dfme.methods.base import Metrics, Parts
from dfme.methods.configs import MazeConfig
from dfme.methods.estimated import Estimated
from dfme.methods.gan import Adversary, Wasserstein
from dfme.methods.teaching import Teaching
from dfme.queries.pool import ImageSource, by_programs, open_images
from dfme.spec import ImageSpec, LabelKind

BETAS = (0.0, 0.9)
"""Of the critic's Adam, as published with the gradient penalty."""


class Maze:
    """A generator trained, by finite differences through the API, to drive the student's answers from the teacher's.

    An iteration is ``generator_steps`` steps of the generator on B images, then ``student_steps`` batches for the
    student, the first of which is the generator's own where ``reuse`` finds it paid for:
    cost = B * (g * (m + 1) + d - 1) images. The generator minimises, by the estimator's objective,

        - KL(T || S), and with ``partial_data`` + gan_weight * (- mean D(G(z))),

    D a Wasserstein critic of a few real images, which are answered once (``seed``) and learnt from as well.

    Differences from the paper, with the paper's values:

    - the objective and m are the estimator's options, by default the paper's KL and 10, one-sided differences of
      1e-3 before the squashing; ``reuse`` false pays for the student's first batch again: B images more;
    - the student's loss, optimiser, schedule and replay are options (``student``, ``schedule``); the paper's: KL,
      SGD of .1 by a cosine, 10 replay steps an iteration (``configs/cifar10_maze.yaml``). ``store`` last holds the
      last student batch of each iteration for them, as published, ``all`` every one;
    - the generator is DFME's with a latent of ``latent_size``, by SGD of 1e-4 as published;
    - the paper gives 10 for the weight of the critic's term; steps and Adam of the critic are those of the gradient
      penalty's own paper (five steps, 1e-4, betas 0 and .9), on the run's schedule;
    - the last student is reported, never the best on the evaluation set.
    """

    label_modes: ClassVar[tuple[LabelKind, ...]] = ("logits", "probabilities", "top_k")

    def __init__(self, config: MazeConfig, parts: Parts) -> None:
        self._config = config
        self._parts = parts
        self._critic: Adversary | None = None
        if config.partial_data is not None:
            game = Wasserstein(config.gradient_penalty, parts.streams["critic"])
            self._critic = Adversary(game, parts, lambda: config.critic_lr * parts.lr_factor(), BETAS)
        self._seeds_NCHW: Tensor | None = None
        self._estimated = Estimated(
            parts,
            config.batch_size,
            config.generator_lr,
            optimizer="sgd",
            reuse=config.reuse,
            also=None if self._critic is None else self._unlike_the_seeds,
        )
        images = parts.sampler(config.batch_size).images
        self._teaching = Teaching(parts, images, config.batch_size, self._estimated.remembers)

    @staticmethod
    def open(config: MazeConfig, spec: ImageSpec, budget: int) -> ImageSource | None:
        """The real images. UserError where they are missing or too few, or the budget does not reach beyond them."""
        if config.partial_data is None:
            return None
        if config.seed_images >= budget:
            raise UserError(
                f"--budget: expected more than the {config.seed_images:,} images of --method.seed-images, whose "
                f"answers are paid for first, got {budget:,}; give more, or fewer seed images"
            )
        pool = open_images(config.partial_data, config, spec)
        if pool.size is not None and pool.size < config.seed_images:
            raise UserError(
                f"--method.seed-images {config.seed_images:,}: --method.partial-data {pool.name} has {pool.size:,} "
                "images; ask for fewer, or name a larger data set or folder"
            )
        return pool

    @property
    def cost(self) -> int:
        return self._estimated.cost(self._config.generator_steps) + self._student_cost()

    @property
    def facts(self) -> dict[str, Any]:
        return {"estimator": dataclasses.asdict(self._estimated.settings)}

    @property
    def estimator(self) -> Estimator:
        """What estimates its generator's gradients, once nothing about it is open."""
        return self._estimated.estimator

    def prepare(self) -> tuple[str, ...]:
        due = self._config.seed_images if self._critic is not None and self._seeds_NCHW is None else 0
        parts = self._parts
        if due and needs_preflight(self._estimated.settings):
            require_budget(parts.oracle.ledger.remaining - due, probe_images(parts.estimator, parts.oracle.spec))
        lines = self._estimated.prepare()
        if due:
            self._label_seeds(due)
            lines = (*lines, f"seeds: {due} images of {parts.opened.name} were answered, and are learnt from")
        return lines

    def step(self) -> Metrics:
        metrics: Metrics = {}
        student_cost = self._student_cost()
        for _ in range(self._config.generator_steps):
            metrics |= self._criticise()
            metrics |= self._estimated.step(self._teaching.paid)
        if student_cost < self._config.student_steps * self._config.batch_size:
            metrics |= self._teaching.take(*self._estimated.asked(), keep=self._keeps_all or not student_cost)
        return metrics | self._teaching.spend(student_cost, self._keeps_all)

    def finish(self, images: int) -> Metrics:
        """What is left goes to the student: a generator step could no longer be followed by anything."""
        return self._teaching.spend(images, self._keeps_all)

    @property
    def _keeps_all(self) -> bool:
        return self._config.store == "all"

    def _student_cost(self) -> int:
        return self._estimated.student_cost(self._config.generator_steps, self._config.student_steps)

    def _label_seeds(self, count: int) -> None:
        """Pay for the real images' answers, and let the student learn from them."""
        parts = self._parts
        pool = by_programs(parts.opened, parts.oracle.spec, parts.queries.programs)
        self._seeds_NCHW = parts.oracle.spec.quantise(pool.draw(count, parts.streams["pool"]))
        for x_BCHW in self._seeds_NCHW.split(self._config.batch_size):
            self._teaching.take(x_BCHW, parts.oracle(x_BCHW, "seed"))

    def _criticise(self) -> Metrics:
        """The critic's steps, on seed images drawn with replacement and as many of the generator's."""
        if self._critic is None or self._seeds_NCHW is None:
            return {}
        rng, batch_size = self._parts.streams["critic"], self._config.batch_size
        metrics: Metrics = {}
        for _ in range(self._config.critic_steps):
            drawn_B = torch.randint(len(self._seeds_NCHW), (batch_size,), generator=rng, device=rng.device)
            fake_BCHW = self._estimated.generating.images(batch_size)
            metrics["discriminator_loss"] = self._critic.learn(self._seeds_NCHW[drawn_B], fake_BCHW)
        return metrics

    def _unlike_the_seeds(self, u_BCHW: Tensor) -> Tensor:
        """What the critic adds to the objective."""
        assert self._critic is not None
        return self._config.gan_weight * self._critic.deceived(self._parts.generator.squash(u_BCHW))

    @property
    def recent(self) -> tuple[Tensor, Tensor] | None:
        return self._teaching.recent

    def state_dict(self) -> dict[str, Any]:
        critic = None if self._critic is None else self._critic.state_dict()
        own = {"critic": critic, "seeds": self._seeds_NCHW}
        return self._teaching.state_dict() | self._estimated.state_dict() | own

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._teaching.load_state_dict(state)
        self._estimated.load_state_dict(state)
        if self._critic is not None:
            self._critic.load_state_dict(state["critic"])
            seeds_NCHW = state["seeds"]
            self._seeds_NCHW = None if seeds_NCHW is None else seeds_NCHW.to(self._parts.streams["critic"].device)
