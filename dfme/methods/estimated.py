"""The half that methods with estimated gradients share: a generator that descends on what the API's answers tell."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from dfme.compute import evaluating
from dfme.config.settings import EstimatorConfig
from dfme.estimators import Composed, Estimate, Estimator
from dfme.estimators.build import make_estimator
from dfme.estimators.preflight import (
    Resolution,
    choose,
    difference_snr,
    explain,
    needs_preflight,
    probe,
    probe_alignment,
    warning,
)
from dfme.methods.base import Metrics, Parts
from dfme.methods.disagreement import Disagreement
from dfme.methods.generator_trainer import Loss, slope
from dfme.randomness import derived_seed

REMEMBERED = 5
"""Student batches whose answers are kept for an estimate to look at, where one does."""


class Estimated:
    """A generator trained to drive student and teacher apart, with the estimator that the configuration names.

    ``reuse``: the answers at its own batch, which forward differences begin with, serve the student too
    (``asked``). ``also``: a loss of ours, of u, that is added to the objective: autograd knows its gradient.
    """

    def __init__(
        self,
        parts: Parts,
        batch_size: int,
        lr: float,
        *,
        optimizer: Literal["adam", "sgd"] = "adam",
        reuse: bool = False,
        also: Loss | None = None,
    ) -> None:
        self._parts = parts
        self._batch_size = batch_size
        self._reuse = reuse
        self._also = also
        self.generating = parts.generator_trainer(lr, optimizer)
        self._own = Disagreement(parts.oracle, parts.trainer.net, parts.trainer.distance)
        self.disagreement = self._own
        self.settings = parts.estimator
        self._estimator: Estimator | None = None
        if not needs_preflight(parts.estimator):
            self._settle(parts.estimator)

    @property
    def estimator(self) -> Estimator:
        """What estimates the generator's gradients, once nothing about it is open."""
        assert self._estimator is not None, "prepare comes first"
        return self._estimator

    @property
    def remembers(self) -> int:
        """Student batches to keep, with their answers, for the next estimate; the last one in any case."""
        return REMEMBERED if self._looks_back else 1

    @property
    def _looks_back(self) -> bool:
        return self.settings.kind == "prior_guided" and self.settings.prior == "neighbours"

    def cost(self, steps: int) -> int:
        """Images that the next so many steps pay for."""
        return sum(self.estimator.cost(self._batch_size, ahead) for ahead in range(steps))

    def student_cost(self, steps: int, batches: int) -> int:
        """Images that so many student batches pay for after as many steps, the first free where it is reused."""
        reused = self._reuse and self.estimator.cost(self._batch_size, steps - 1) > 0
        return (batches - reused) * self._batch_size

    def asked(self) -> tuple[Tensor, Tensor]:
        """The images of the last step's batch, and their answers."""
        return self.disagreement.base(self._batch_size)

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
        self._settle(choose(parts.estimator, finding, parts.oracle.spec, self._reuse))
        warned = warning(finding, self.settings)
        return (*explain(finding, self.settings), *([warned] if warned else []))

    def step(self, paid: Sequence[tuple[Tensor, Tensor]] = ()) -> Metrics:
        """One ascent on the disagreement: estimate d objective / d gen_op, and hand it to autograd.

        ``paid``: images that the student paid for lately, and their answers.
        """
        parts = self._parts
        gen_op, features = self.generating.generate(self._batch_size, watch=self.settings.direction == "range")
        objective = self.disagreement.objective(features, self._memory(paid))
        with evaluating(parts.trainer.net):
            estimate = self.estimator.estimate(objective, gen_op.detach(), parts.streams["directions"])
        upstream_grads = estimate.grad_BCHW / self._batch_size
        if self._also is not None:
            upstream_grads = upstream_grads + slope(self._also, gen_op)[1]
        metrics = self.generating.descend(gen_op, upstream_grads)
        return metrics | self._observed(objective, gen_op.detach(), estimate)

    def _settle(self, settings: EstimatorConfig) -> None:
        """Make the estimator, now that nothing about it is open."""
        parts = self._parts
        seed = derived_seed(parts.seed, "estimator")
        self.settings = settings
        self.disagreement = self._own.by(settings.objective)
        self._estimator = make_estimator(settings, parts.oracle.spec, parts.generator.squash, parts.chunk, seed)

    def _memory(self, paid: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor] | None:
        """Answers that the student paid for lately, if the estimator looks at them."""
        if not self._looks_back or not paid:
            return None
        images, answers = zip(*paid, strict=True)
        return torch.cat(images), torch.cat(answers)

    def _observed(self, objective: Composed, u_BCHW: Tensor, estimate: Estimate) -> Metrics:
        """What an estimate that was paid for shows of itself."""
        if estimate.queries == 0:
            return {}
        return {
            "generator_loss": estimate.value_B.mean,
            "difference_zero_share": lambda: (estimate.differences_BM == 0).float().mean(),
            "difference_snr": partial(self._snr, estimate, self.disagreement.asked),
            "probe_alignment": partial(self._alignment, objective, u_BCHW),
        }

    def _snr(self, estimate: Estimate, asked: list[tuple[Tensor, Tensor]]) -> Tensor:
        """The differences over what the answers' resolution hides in one, as the student sees them now."""
        x_BCHW, answers = asked[0]
        seen, value = Resolution.seen(answers), self.disagreement.value
        with evaluating(self._parts.trainer.net):
            return difference_snr(estimate.differences_BM, value, x_BCHW, answers, seen, self._scratch())

    def _alignment(self, objective: Composed, u_BCHW: Tensor) -> Tensor:
        """How much of a difference's direction the wire carries."""
        spec, squash = self._parts.oracle.spec, self._parts.generator.squash
        return probe_alignment(self.settings, spec, squash, u_BCHW, self._scratch(), objective.features_BFHW)

    def _scratch(self) -> torch.Generator:
        """Chance for what is only looked at: nothing that is learnt from depends on how often somebody looks."""
        return torch.Generator(self._parts.streams["directions"].device).manual_seed(self._parts.seed)

    def state_dict(self) -> dict[str, Any]:
        return {
            "generator": self.generating.state_dict(),
            "estimator_settings": dataclasses.asdict(self.settings),
            "estimator": self.estimator.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generating.load_state_dict(state["generator"])
        self._settle(EstimatorConfig(**state["estimator_settings"]))
        self.estimator.load_state_dict(state["estimator"])
