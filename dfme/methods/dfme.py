"""Data-Free Model Extraction (Truong, Maini, Walls, Papernot; CVPR 2021; arXiv 2011.14779)."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from torch import Tensor

from dfme.estimators import Estimator
from dfme.methods.base import Metrics, Parts
from dfme.methods.configs import DfmeConfig
from dfme.methods.estimated import Estimated
from dfme.methods.teaching import Teaching
from dfme.spec import LabelKind


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
        self._estimated = Estimated(parts, config.batch_size, config.generator_lr, reuse=config.reuse)
        images = parts.sampler(config.batch_size).images
        self._teaching = Teaching(parts, images, config.batch_size, self._estimated.remembers)

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
        return self._estimated.prepare()

    def step(self) -> Metrics:
        metrics: Metrics = {}
        student_cost = self._student_cost()
        for _ in range(self._config.generator_steps):
            metrics |= self._estimated.step(self._teaching.paid)
        if student_cost < self._config.student_steps * self._config.batch_size:
            metrics |= self._teaching.take(*self._estimated.asked())
        return metrics | self._teaching.spend(student_cost)

    def finish(self, images: int) -> Metrics:
        """What is left goes to the student: a generator step could no longer be followed by anything."""
        return self._teaching.spend(images)

    def _student_cost(self) -> int:
        return self._estimated.student_cost(self._config.generator_steps, self._config.student_steps)

    @property
    def recent(self) -> tuple[Tensor, Tensor] | None:
        return self._teaching.recent

    def state_dict(self) -> dict[str, Any]:
        return self._teaching.state_dict() | self._estimated.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._teaching.load_state_dict(state)
        self._estimated.load_state_dict(state)
