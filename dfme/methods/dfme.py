"""Data-Free Model Extraction (Truong, Maini, Walls, Papernot; CVPR 2021; arXiv 2011.14779)."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from dfme import seam
from dfme.config import EstimatorConfig
from dfme.estimators import Composed, Estimate, Estimator
from dfme.estimators.make import make_estimator
from dfme.methods.base import Metrics, Parts
from dfme.methods.configs import DfmeConfig
from dfme.methods.disagreement import Disagreement
from dfme.methods.teaching import Teaching
from dfme.probe import Resolution, choose, difference_snr, explain, is_open, probe, probe_alignment, warning
from dfme.randomness import derived_seed
from dfme.spec import LabelKind
from dfme.students import evaluating, forget_gradients, gradient_norm, set_lr

REMEMBERED = 5
"""Student batches whose answers are kept for an estimate to look at, where one does."""


class Dfme:
    """A generator trained to find where student and teacher differ, by finite differences through the API.

    An iteration is ``generator_steps`` steps of the generator, each on ``batch_size`` images, then
    ``student_steps`` batches for the student: cost = B * (g * estimator.cost(1) + d) images, B less with
    ``reuse``, and nothing for a gradient that is predicted.

    Differences from the paper, with the paper's values:

    - the estimator and what it differentiates are options (``estimator``); the paper's is one forward difference
      of 1e-3 on the unit sphere before the squashing, of the student's L1 loss, which is the default;
    - ``reuse``, replay steps, average of weights, optimiser and schedule are options (``student``,
      ``schedule``); the paper has no reuse, no replay, no average, SGD .1 and steps of x0.3 at 10, 30 and 50 %
      of the budget, as in ``configs/cifar10_dfme.yaml``;
    - the teacher takes images within the bounds of its API and normalises them itself; the paper sends
      tanh's output straight to a network trained on normalised images (``*_paper_space.yaml``);
    - the estimate is not divided by the number of classes a second time, as the published code does for its
      L1 loss: Adam hides that factor, other optimisers would not;
    - the last student is reported, and never one chosen by its score on the evaluation set;
    - nothing is sent to the teacher for a log line: the norm of the true gradient is not shown.
    """

    label_modes: ClassVar[tuple[LabelKind, ...]] = ("logits", "probabilities", "top_k")

    def __init__(self, config: DfmeConfig, parts: Parts) -> None:
        self._config = config
        self._parts = parts
        self._looks_back = parts.estimator.kind == "prior_guided" and parts.estimator.prior == "neighbours"
        self._teaching = Teaching(parts, config.batch_size, remember=REMEMBERED if self._looks_back else 1)
        self._parameters = list(parts.generator.parameters())
        self._optimizer = torch.optim.Adam(self._parameters, config.generator_lr, fused=True)
        self._own = Disagreement(parts.oracle, parts.trainer.net, parts.trainer.distance)
        self._disagreement = self._own
        self._settings = parts.estimator
        self._estimator: Estimator | None = None
        if not is_open(parts.estimator):
            self._settle(parts.estimator)

    @property
    def cost(self) -> int:
        paid = sum(self.estimator.cost(self._config.batch_size, ahead) for ahead in range(self._config.generator_steps))
        return paid + self._student_cost()

    @property
    def student(self) -> torch.nn.Module:
        return self._parts.trainer.delivered

    @property
    def facts(self) -> dict[str, Any]:
        return {"estimator": dataclasses.asdict(self._settings)}

    def prepare(self) -> tuple[str, ...]:
        """Where the estimator is left open, measure at a few images what survives, and choose."""
        if self._estimator is not None:
            return ()
        parts = self._parts
        finding = probe(
            parts.oracle,
            parts.generator,
            lambda objective: self._own.by(objective).value,
            parts.estimator,
            parts.streams["check"],
            net=parts.trainer.net,
        )
        self._settle(choose(parts.estimator, finding, parts.oracle.spec, self._config.reuse))
        warned = warning(finding, self._settings)
        return (*explain(finding, self._settings), *([warned] if warned else []))

    def step(self) -> Metrics:
        metrics: Metrics = {}
        student_cost = self._student_cost()
        for _ in range(self._config.generator_steps):
            metrics |= self._generator_step()
        if student_cost < self._config.student_steps * self._config.batch_size:
            metrics |= self._teaching.take(*self._disagreement.base(self._config.batch_size))
        return metrics | self._teaching.spend(student_cost)

    def finish(self, images: int) -> Metrics:
        """What is left goes to the student: a generator step could no longer be followed by anything."""
        return self._teaching.spend(images)

    def _settle(self, settings: EstimatorConfig) -> None:
        """Make the estimator, now that nothing about it is open."""
        parts = self._parts
        seed = derived_seed(parts.seed, "estimator")
        self._settings = settings
        self._disagreement = self._own.by(settings.objective)
        self._estimator = make_estimator(settings, parts.oracle.spec, parts.generator.squash, parts.chunk, seed)

    @property
    def estimator(self) -> Estimator:
        """What estimates its generator's gradients, once nothing about it is open."""
        assert self._estimator is not None, "prepare comes first"
        return self._estimator

    def _student_cost(self) -> int:
        """Images the student pays for in an iteration; its first batch is free where the generator's is reused."""
        last_estimate = self.estimator.cost(self._config.batch_size, self._config.generator_steps - 1)
        free = 1 if self._config.reuse and last_estimate > 0 else 0
        return (self._config.student_steps - free) * self._config.batch_size

    def _generator_step(self) -> Metrics:
        """One ascent on the disagreement: estimate d objective / d gen_op, and hand it to autograd."""
        parts, batch_size = self._parts, self._config.batch_size
        z_BZ = parts.generator.draw(batch_size, parts.streams["latent"])
        watching = parts.generator.watched() if self._settings.direction == "range" else nullcontext([None])
        with watching as features:
            gen_op = parts.generator(z_BZ)
        objective = self._disagreement.objective(features[0], self._memory())
        with evaluating(parts.trainer.net):
            estimate = self.estimator.estimate(objective, gen_op.detach(), parts.streams["directions"])
        upstream_grads = estimate.grad_BCHW / batch_size
        lr = self._config.generator_lr * parts.lr_factor()
        set_lr(self._optimizer, lr)
        forget_gradients(self._parameters)
        seam.backward(gen_op, upstream_grads, parts.sentinel)
        self._optimizer.step()
        metrics: Metrics = {
            "generator_lr": lr,
            "upstream_grad_norm": upstream_grads.norm,
            "generator_grad_norm": partial(gradient_norm, parts.generator),
        }
        return metrics | self._observed(objective, gen_op.detach(), estimate)

    def _observed(self, objective: Composed, u_BCHW: Tensor, estimate: Estimate) -> Metrics:
        """What an estimate that was paid for shows of itself."""
        if estimate.queries == 0:
            return {}
        return {
            "generator_loss": estimate.value_B.mean,
            "difference_zero_share": lambda: (estimate.differences_BM == 0).float().mean(),
            "difference_snr": partial(self._snr, estimate, self._disagreement.asked),
            "probe_alignment": partial(self._alignment, objective, u_BCHW),
        }

    def _snr(self, estimate: Estimate, asked: list[tuple[Tensor, Tensor]]) -> Tensor:
        """The differences over what the answers' resolution hides in one, as the student sees them now."""
        x_BCHW, answers = asked[0]
        seen, value = Resolution.seen(answers), self._disagreement.value
        with evaluating(self._parts.trainer.net):
            return difference_snr(estimate.differences_BM, value, x_BCHW, answers, seen, self._scratch())

    def _alignment(self, objective: Composed, u_BCHW: Tensor) -> Tensor:
        """How much of a difference's direction the wire carries."""
        spec, squash = self._parts.oracle.spec, self._parts.generator.squash
        return probe_alignment(self._settings, spec, squash, u_BCHW, self._scratch(), objective.features_BFHW)

    def _scratch(self) -> torch.Generator:
        """Chance for what is only looked at: nothing that is learnt from depends on how often somebody looks."""
        return torch.Generator(self._parts.streams["directions"].device).manual_seed(self._parts.seed)

    def _memory(self) -> tuple[Tensor, Tensor] | None:
        """Answers that the student paid for lately, if the estimator looks at them."""
        if not self._looks_back or not self._teaching.paid:
            return None
        images, answers = zip(*self._teaching.paid, strict=True)
        return torch.cat(images), torch.cat(answers)

    @property
    def recent(self) -> tuple[Tensor, Tensor] | None:
        return self._teaching.recent

    def state_dict(self) -> dict[str, Any]:
        return self._teaching.state_dict() | {
            "generator_optimizer": self._optimizer.state_dict(),
            "estimator_settings": dataclasses.asdict(self._settings),
            "estimator": self.estimator.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._teaching.load_state_dict(state)
        self._optimizer.load_state_dict(state["generator_optimizer"])
        self._settle(EstimatorConfig(**state["estimator_settings"]))
        self.estimator.load_state_dict(state["estimator"])
