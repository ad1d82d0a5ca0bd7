"""Data-Free Model Extraction (Truong, Maini, Walls, Papernot; CVPR 2021; arXiv 2011.14779).

B images in a batch, C channels, H height, W width, N images in one call, Z latent size, m directions.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from dfme.compute import evaluating
from dfme.estimators.approximate import ApproximateGradients
from dfme.estimators.base import Objective
from dfme.estimators.preflight import Channel
from dfme.estimators.upstream import check_upstream
from dfme.methods.base import Ask, Components, Method, Metrics
from dfme.methods.configs import DfmeConfig, MazeConfig
from dfme.methods.worth import TrainingWorth
from dfme.spec import LabelKind
from dfme.students.losses import Distance
from dfme.students.optimizers import ScheduledOptimizer

UNTOLD = (
    "generator: trained in every iteration; whether that pays is told where --queries.procedural is above 0 and below "
    "1, with neither --queries.pool nor --queries.evolve"
)


class Dfme(Method):
    """A generator trained to find where student and teacher differ, by finite differences through the API.

    An iteration is ``generator_steps`` (g) steps of the generator, each on ``batch_size`` (B) images, then
    ``student_steps`` (d) batches for the students: cost = B * (g * estimator.cost(1) + d) images, B less with
    ``reuse``, and nothing for a gradient that is predicted.

    Differences from the paper, with the paper's values:

    - the estimator and what it differentiates are options (``estimator``); the paper's is one forward difference
      of 1e-3 on the unit sphere before the squashing, of the student's L1 loss, which is the default;
    - ``reuse``, replay steps, average of weights, optimiser and schedule are options (``student``,
      ``schedule``); the paper has no reuse, no replay, no average, SGD .1 and steps of x0.3 at 10, 30 and 50 %
      of the budget, as in ``configs/cifar10_dfme.yaml``;
    - ``learn_from`` all teaches the students what the generator's steps paid for too, the images and their
      neighbours; ``training`` while_it_pays steps the generator in trials, and pauses where they do not gain what
      they cost (``dfme/methods/worth.py``). Both are our own; the paper's are students and always;
    - the teacher takes images within the bounds of its API and normalises them itself; the paper sends
      tanh's output straight to a network trained on normalised images (``*_paper_space.yaml``);
    - the estimate is not divided by the number of classes a second time, as the published code does for its
      L1 loss: Adam hides that factor, other optimisers would not;
    - the last student is reported, and never one chosen by its score on the evaluation set;
    - nothing is sent to the teacher for a log line: the norm of the true gradient is not shown.
    """

    label_modes: ClassVar[tuple[LabelKind, ...]] = ("logits", "probabilities", "top_k")
    config: DfmeConfig | MazeConfig

    def __init__(self, config: DfmeConfig | MazeConfig, components: Components) -> None:
        super().__init__(config, components)
        adam = torch.optim.Adam(self.generator.parameters(), config.generator_lr, fused=True)
        self.generator_optimizer = ScheduledOptimizer(adam, components.lr_factor)
        spec, label_mode = self.oracle.spec, self.oracle.label_mode
        self.approximate_gradients = ApproximateGradients(
            components.estimator, spec, label_mode, self.generator, self.students, components.seed
        )
        self.recent_batches = deque(maxlen=self.approximate_gradients.remembers)
        by_students, drawn = self.queries.by_students, components.sources.procedural
        self.worth: TrainingWorth | None = None
        if config.training == "while_it_pays" and 0 < drawn < 1 and not by_students:
            self.worth = TrainingWorth(self.rng["latent"].device)

    def step(self) -> Metrics:
        """One iteration: g steps of the generator towards disagreement, then d batches for the students."""
        metrics: Metrics = {}
        reuse = self.reuses_last_batch  # before the generator's steps: whether the last one pays may change with them
        for _ in range(self.steps_due()):
            metrics |= self.generator_step(self.config.batch_size)
            metrics |= self.learn_what_it_asked()
        if reuse and not self.learns_from_all:  # MAZE's saving, an option: forward differences are asked at gen_op
            metrics |= self.learn(*self.last_objective.first_asked(self.config.batch_size))
        # x = tanh(G(z)), as the wire carries it, with answers T(x) that are paid for once.
        for x_BCHW, answers in self.paid_batches((self.config.student_steps - reuse) * self.config.batch_size):
            metrics |= self.learn(x_BCHW, answers)  # loss(S(x), T(x)).backward(), a step, then replay where it is on
        self.end_iteration()
        return metrics

    def generator_step(self, batch_size: int) -> Metrics:
        """One step of the generator, on an estimated gradient at its output."""
        # z -> G -> gen_op, the output before tanh: the last tensor that autograd knows of.
        z_BZ = self.generator.draw(batch_size, self.rng["latent"])
        gen_op = self.generator(z_BZ)

        # G minimises f(x) = -loss(S(x), T(x)), one number per image. T is a paid API: no gradient comes back.
        def query_teacher(x_NCHW: Tensor) -> Tensor:
            return self.oracle(x_NCHW, "generator")

        disagreement = partial(self.disagreement, self.approximate_gradients.distance)

        # Finite differences through the API: d f / d gen_op for each image by itself, B (m + 1) queries.
        with evaluating(self.student):
            objective = Objective(query_teacher, disagreement, scores=self.student, remembered=self.recent_batches)
            estimate = self.approximate_gradients(objective, gen_op.detach(), self.rng["directions"])
        upstream_grads = estimate.grad_BCHW / batch_size  # the only place that averages over the batch
        check_upstream(gen_op, upstream_grads, self.deferred)  # shape, dtype, device, finite

        # The API cut the chain rule at gen_op; from here autograd goes on into G's weights.
        self.generator_optimizer.zero_grad()
        gen_op.backward(gradient=upstream_grads)
        self.generator_optimizer.step()

        self.last_objective = objective
        figures = self.approximate_gradients.metrics(objective, gen_op.detach(), estimate)
        return self.generator_metrics(upstream_grads) | figures

    def learn_what_it_asked(self) -> Metrics:
        """Let the students learn from what the generator's last step paid for, in the order asked, if they do."""
        metrics: Metrics = {}
        if self.learns_from_all:
            for x_NCHW, answers in self.last_objective.asked:
                for batch in zip(*(each.split(self.config.batch_size) for each in (x_NCHW, answers)), strict=True):
                    metrics |= self.learn(*batch)
        return metrics

    @property
    def learns_from_all(self) -> bool:
        """Whether the students learn from what is paid for with the generator, too."""
        return self.config.learn_from == "all"

    def paid_batches(self, images: int) -> Iterator[tuple[Tensor, Tensor]]:
        """As every method's; what the student makes of them before it learns is what the training is judged by."""
        for x_BCHW, answers in super().paid_batches(images):
            if self.worth is not None and self.worth.training:
                with torch.no_grad(), evaluating(self.student):
                    loss_B = -self.disagreement(self.approximate_gradients.distance, x_BCHW, answers)
                self.worth.watch(loss_B, self.queries.drawn(len(x_BCHW)))
            yield x_BCHW, answers

    def steps_due(self, ahead: int = 0) -> int:
        """The generator's steps in the iteration ``ahead`` iterations from now, at most; of the next one exactly."""
        return self.config.generator_steps if self.worth is None or self.worth.trains(ahead) else 0

    def end_iteration(self) -> None:
        """What the generator's training gained and cost in it is counted, where it goes on only while it pays."""
        if self.worth is not None:
            size, steps, left = self.config.batch_size, self.config.generator_steps, self.oracle.remaining
            asked = sum(sum(self.approximate_gradients.calls(size, number)) for number in range(steps))
            useful = size * steps if self.learns_from_all else size * self.config.reuse
            self.worth.end_iteration(max(0, asked - useful), left * (1 - self.queries.drawn(size) / size))

    def disagreement(self, distance: Distance, x_NCHW: Tensor, answers: Tensor) -> Tensor:
        """f(x) = -loss(S(x), T(x)) where the answers T(x) are known, float64. The minus is here and nowhere else."""
        return -distance(self.student(x_NCHW).double(), answers.double())

    @property
    def cost(self) -> int:
        return sum(ask.images for ask in self.asks())

    def asks(self, ahead: int = 0) -> list[Ask]:
        batch_size, steps = self.config.batch_size, self.steps_due(ahead)
        calls = [self.approximate_gradients.calls(batch_size, ahead * steps + number) for number in range(steps)]
        reuse = self.config.reuse and bool(calls and calls[-1])
        students = self.student_asks((self.config.student_steps - reuse) * batch_size)
        return [Ask("generator", images) for call in calls for images in call] + students

    @property
    def reuses_last_batch(self) -> bool:
        """Whether the answers at the generator's next last batch serve the students too."""
        last = self.steps_due() - 1
        return self.config.reuse and last >= 0 and bool(self.approximate_gradients.calls(self.config.batch_size, last))

    @property
    def facts(self) -> dict[str, Any]:
        used = self.approximate_gradients
        training = {} if self.worth is None else {"generator_training": self.worth.facts}
        return {"estimator": dataclasses.asdict(used.settings) | used.arithmetic.facts, **training}

    def news(self) -> tuple[str, ...]:
        return (*self.approximate_gradients.arithmetic.news(), *(() if self.worth is None else self.worth.news()))

    def prepare(self) -> tuple[str, ...]:
        """Settle the estimator's settings, where they are left to the pre-flight check."""
        ask, left = partial(self.oracle, purpose="check"), self.oracle.remaining
        channel = Channel(ask, self.oracle.spec, self.oracle.label_mode, left)
        lines = self.approximate_gradients.prepare(channel, self.disagreement, self.config.reuse, self.rng["check"])
        return lines if self.worth is not None or self.config.training == "always" else (*lines, UNTOLD)

    def state_dict(self) -> dict[str, Any]:
        worth = {} if self.worth is None else {"worth": self.worth.state_dict()}
        return super().state_dict() | {"approximate_gradients": self.approximate_gradients.state_dict()} | worth

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.approximate_gradients.load_state_dict(state["approximate_gradients"])
        if self.worth is not None:
            self.worth.load_state_dict(state["worth"])
