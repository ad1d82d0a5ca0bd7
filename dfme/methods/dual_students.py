"""Dual Students Networks for data-free model stealing (Beetham, Kardan, Mian, Shah; ICLR 2023)."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from dfme.methods.base import Metrics, Parts
from dfme.methods.configs import DualStudentsConfig
from dfme.methods.generator_losses import apart, seen_by
from dfme.methods.teaching import Taught, Teaching
from dfme.spec import LABEL_KINDS, LabelKind


class DualStudents(Taught):
    """A generator of images on which two students' scores are far apart: loss_G = - mean_b mean_k |S_1(x) - S_2(x)|.

    An iteration is ``generator_steps`` steps of the generator, which ask nothing, then ``student_steps`` batches for
    the students: cost = B * d images. Of more than two students, the mean over all pairs counts.

    Differences from the paper, with the paper's values where we know them:

    - optimiser, schedule and average are options (``student``, ``schedule``); the paper's: SGD of .3 for each student,
      x0.3 at 10, 30 and 50 % of the budget, a moving average of decay .9 every 10 iterations
      (``configs/cifar10_dual_students.yaml``); one optimiser over both is the same as one for each;
    - the paper describes students that see images; the published code shows them, in the generator's step, its
      output before the squashing: ``before_tanh`` does so;
    - the generator is DFME's, with Adam 1e-4 and g of 1;
    - one student is reported beside the soft vote; the last ones, never the best on the evaluation set.
    """

    label_modes: ClassVar[tuple[LabelKind, ...]] = LABEL_KINDS

    def __init__(self, config: DualStudentsConfig, parts: Parts) -> None:
        self.cost = config.batch_size * config.student_steps
        self._config = config
        self._parts = parts
        self._generating = parts.generator_trainer(config.generator_lr)
        self._teaching = Teaching(parts, parts.sampler(config.batch_size).images, config.batch_size)

    def step(self) -> Metrics:
        metrics: Metrics = {}
        for _ in range(self._config.generator_steps):
            metrics |= self._generating.descend_by(self._loss, self._config.batch_size)
        return metrics | self._teaching.spend(self.cost)

    def _loss(self, u_BCHW: Tensor) -> Tensor:
        parts = self._parts
        shown_BCHW = u_BCHW if self._config.before_tanh else parts.generator.squash(u_BCHW)
        return -apart(seen_by(parts.trainer.nets, shown_BCHW))

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self._generating.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._generating.load_state_dict(state["generator"])
