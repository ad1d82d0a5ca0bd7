"""MAZE (Kariyappa, Prakash, Qureshi; CVPR 2021; arXiv 2005.03161), and PD-MAZE with real images."""

from typing import Any

import torch
from torch import Tensor

from dfme.compute.modules import SGD, validate_like
from dfme.errors import OptionError, Ref, UserError, say
from dfme.estimators.build import needs_preflight
from dfme.estimators.differences import check_upstream
from dfme.estimators.preflight.measure import preflight_images, require_budget
from dfme.methods.base import Ask, Components, EstimatingMethod, Metrics, in_batches
from dfme.methods.configs import MazeConfig
from dfme.methods.generator_losses import Discriminator, Wasserstein
from dfme.queries.pool import ImageSource, by_programs, open_pool
from dfme.spec import ImageSpec
from dfme.students.optimizers import ScheduledOptimizer

BETAS = (0.0, 0.9)
"""Of the critic's Adam, as published with the gradient penalty."""


class Maze(EstimatingMethod):
    """A generator trained by finite differences to drive student and teacher answers apart.

    An iteration is ``generator_steps`` steps of the generator on B images, then ``student_steps``
    batches for the student, the first of which is the generator's own where ``reuse`` finds it paid
    for: cost = B * (g * (m + 1) + d - 1) images. The generator minimises, by the estimator's
    objective,

        - KL(T || S), and with ``partial_data`` + gan_weight * (- mean D(G(z))),

    D a Wasserstein critic of a few real images, which are answered once (``seed``) and learnt from
    as well.

    Differences from the paper and its published code, with their values:

    - the objective and m are the estimator's options, by default the paper's KL and 10, one-sided
      differences of 1e-3 before the squashing; ``reuse`` false pays for the student's first batch
      again: B images more;
    - the student's loss, optimiser, schedule and replay are options (``student``, ``schedule``);
      the paper's: KL, SGD of .1 by a cosine, 10 replay steps an iteration
      (``configs/cifar10_maze.yaml``). ``store`` last holds the last student batch of each iteration
      for them, as the published code does, ``all`` every one; which of the two the paper means, we
      could not check. ``learn_from`` all is our own, as DFME's;
    - the generator learns by the published SGD (1e-4, momentum .9, weight decay 5e-4), on the run's
      schedule; it is DFME's, whose last normalisation learns no scale, so that a probe's step stays
      the same share of the output's spread. Published: a learnt scale and shift there;
      ``latent_size`` 100, of which the default is all methods';
    - the student is in eval mode while the gradient is estimated, since batch statistics tie the
      images of a batch together, and so may do better. Published: train mode;
    - the published weight of the critic's term is 10, and its seed images are 100, as here.
      Published: a critic with instance normalisation, by SGD of 1e-4 with momentum .9, one step for
      each of the clone's. Here it has none, which would hide an image's brightness and contrast;
      its five steps before each of the generator's, and its Adam (1e-4, betas 0 and .9), are those
      of the gradient penalty's own paper, on the run's schedule;
    - the last student is reported, never the best on the evaluation set.
    """

    config: MazeConfig

    def __init__(self, config: MazeConfig, components: Components) -> None:
        super().__init__(config, components)
        momentum = config.generator_momentum
        decay = config.generator_weight_decay
        weights = self.generator.parameters()
        lr = config.generator_lr
        sgd = SGD(weights, lr, momentum, weight_decay=decay, fused=True)
        self.generator_optimizer = ScheduledOptimizer(sgd, components.lr_factor)
        self._settings = components.estimator
        self._programs = components.sources.programs
        self._pool = components.pool
        self._seeds_NCHW: Tensor | None = None
        self._critic: Discriminator | None = None
        if config.partial_data is not None:
            game = Wasserstein(config.gradient_penalty, self.rng["critic"])
            self._critic = Discriminator(game, components, config.critic_lr, BETAS)

    @staticmethod
    def open_pool(config: MazeConfig, spec: ImageSpec, budget: int) -> ImageSource | None:
        """Load the real images. UserError if missing, too few, or beyond the budget."""
        if config.partial_data is None:
            return None
        if config.seed_images >= budget:
            raise OptionError(
                "budget",
                say(
                    "expected more than the {:,} images of {method.seed_images}, whose answers "
                    "are paid for first, got {:,}; give more, or fewer seed images",
                    config.seed_images,
                    budget,
                ),
            )
        pool = open_pool(config.partial_data, spec, config.root, download=config.download)
        if pool.size is not None and pool.size < config.seed_images:
            raise UserError(
                say(
                    "{}: {} has {:,} images; ask for fewer, or name a larger data set or folder",
                    Ref("method.seed_images", f"{config.seed_images:,}"),
                    Ref("method.partial_data", pool.name),
                    pool.size,
                )
            )
        return pool

    def step(self) -> Metrics:
        """One iteration: g steps of critic and generator, then d student batches, the first
        reused.
        """
        metrics: Metrics = {}
        for _ in range(self.config.generator_steps):
            metrics |= self.critic_steps()
            metrics |= self.generator_step(self.config.batch_size)
        return metrics | self.train_students(keep_all=self.config.store == "all")

    def generator_step(self, batch_size: int) -> Metrics:
        """One step of the generator on -KL(T || S), estimated, and the critic's term, by
        autograd.
        """
        z_BZ = self.generator.draw(batch_size, self.rng["latent"])
        gen_op = self.generator(z_BZ)

        estimate = self.estimate(gen_op)
        upstream_grads = estimate.grad_BCHW / batch_size
        if self._critic is not None:
            u_BCHW = gen_op.detach().requires_grad_()
            loss = self.config.gan_weight * self._critic.generator_loss(
                self.generator.squash(u_BCHW)
            )
            upstream_grads = upstream_grads + torch.autograd.grad(loss, u_BCHW)[0]
        check_upstream(gen_op, upstream_grads, self.deferred)

        self.generator_optimizer.zero_grad()
        gen_op.backward(gradient=upstream_grads)
        self.generator_optimizer.step()

        return self.generator_metrics(upstream_grads) | self.after_estimate(gen_op, estimate)

    def finish(self, images: int) -> Metrics:
        return self.pay_in_batches(images, keep_all=self.config.store == "all")

    def prepare(self) -> tuple[str, ...]:
        """Resolve the estimator's settings; then pay for the real images, which are learnt from."""
        due = (
            self.config.seed_images if self._critic is not None and self._seeds_NCHW is None else 0
        )
        if due and needs_preflight(self._settings):
            check = preflight_images(self._settings, self.oracle.spec)
            require_budget(self.oracle.remaining - due, check)
        lines = super().prepare()
        if not due:
            return lines
        assert self._pool is not None
        pool = by_programs(self._pool, self.oracle.spec, self._programs)
        self._seeds_NCHW = self.oracle.spec.quantise(pool.draw(due, self.rng["pool"]))
        for x_BCHW in self._seeds_NCHW.split(self.config.batch_size):
            self.learn(x_BCHW, self.oracle(x_BCHW, "seed"))
        return (
            *lines,
            f"seeds: {due} images of {self._pool.name} were answered, and are learnt from",
        )

    def asks_before(self) -> list[Ask]:
        seeds = self.config.seed_images if self._critic is not None else 0
        return in_batches("seed", seeds, self.config.batch_size)

    def critic_steps(self) -> Metrics:
        """The critic's steps, on seed images drawn with replacement and as many of the
        generator's.
        """
        if self._critic is None or self._seeds_NCHW is None:
            return {}
        rng = self.rng["critic"]
        batch_size = self.config.batch_size
        metrics: Metrics = {}
        for _ in range(self.config.critic_steps):
            drawn_B = torch.randint(
                len(self._seeds_NCHW), (batch_size,), generator=rng, device=rng.device
            )
            fake_BCHW = self.generate(batch_size)
            metrics["discriminator_loss"] = self._critic.learn(self._seeds_NCHW[drawn_B], fake_BCHW)
        return metrics

    def state_dict(self) -> dict[str, Any]:
        critic = None if self._critic is None else self._critic.state_dict()
        return super().state_dict() | {"critic": critic, "seeds": self._seeds_NCHW}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if self._critic is not None:
            self._critic.load_state_dict(state["critic"])
            seeds_NCHW = torch.empty(
                self.config.seed_images, *self.oracle.spec.shape, device="meta"
            )
            validate_like(seeds_NCHW, state["seeds"], "seeds")
            self._seeds_NCHW = state["seeds"].to(self.rng["critic"].device)
