"""Data-Free Model Extraction (Truong, Maini, Walls, Papernot; CVPR 2021; arXiv 2011.14779)."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from dfme import seam
from dfme.estimators import FiniteDifference
from dfme.methods.base import Metrics, Parts
from dfme.methods.configs import DfmeConfig
from dfme.methods.teaching import Teaching
from dfme.spec import LabelKind
from dfme.students import evaluating, forget_gradients, gradient_norm, set_lr


class Dfme:
    """A generator trained to find where student and teacher differ, by finite differences through the API.

    An iteration is ``generator_steps`` steps of the generator, each on ``batch_size`` images, then
    ``student_steps`` batches for the student: cost = B * (g * estimator.cost(1) + d) images.

    Differences from the paper, with the paper's values:

    - replay steps, average of weights, optimiser and schedule are options (``student``, ``schedule``); the
      paper has no replay, no average, SGD .1 and steps of x0.3 at 10, 30 and 50 % of the budget, as in
      ``configs/cifar10_dfme.yaml``;
    - the teacher takes images within the bounds of its API and normalises them itself; the paper sends
      tanh's output straight to a network trained on normalised images (``*_paper_space.yaml``);
    - the estimate is not divided by the number of classes a second time, as the published code does for its
      L1 loss: Adam hides that factor, other optimisers would not;
    - the last student is reported, and never one chosen by its score on the evaluation set;
    - nothing is sent to the teacher for a log line: the norm of the true gradient is not shown.
    """

    label_modes: ClassVar[tuple[LabelKind, ...]] = ("logits", "probabilities")

    def __init__(self, config: DfmeConfig, parts: Parts) -> None:
        self._config = config
        self._parts = parts
        self._teaching = Teaching(parts, config.batch_size)
        self._parameters = list(parts.generator.parameters())
        self._optimizer = torch.optim.Adam(self._parameters, config.generator_lr, fused=True)
        in_image_space = config.space == "image"
        self._estimator = FiniteDifference(
            directions=config.directions,
            step=config.step,
            form=config.form,
            direction=config.direction,
            bounds=parts.oracle.spec.bounds if in_image_space else None,
            chunk=parts.chunk,
        )
        self._to_image = nn.Identity() if in_image_space else parts.generator.squash
        self._to_point = parts.generator.squash if in_image_space else nn.Identity()
        self._student_cost = config.batch_size * config.student_steps
        self.cost = config.generator_steps * self._estimator.cost(config.batch_size) + self._student_cost

    @property
    def student(self) -> nn.Module:
        return self._parts.trainer.delivered

    def step(self) -> Metrics:
        metrics: Metrics = {}
        for _ in range(self._config.generator_steps):
            metrics |= self._generator_step()
        return metrics | self._teaching.spend(self._student_cost)

    def finish(self, images: int) -> Metrics:
        """What is left goes to the student: a generator step could no longer be followed by anything."""
        return self._teaching.spend(images)

    def _generator_step(self) -> Metrics:
        """One ascent on the disagreement: estimate d objective / d gen_op, and hand it to autograd."""
        parts, batch_size = self._parts, self._config.batch_size
        z_BZ = parts.generator.draw(batch_size, parts.streams["latent"])
        gen_op = self._to_point(parts.generator(z_BZ))
        with evaluating(parts.trainer.net):
            estimate = self._estimator.estimate(self._objective, gen_op.detach(), parts.streams["directions"])
        upstream_grads = estimate.grad_BCHW / batch_size
        lr = self._config.generator_lr * parts.lr_factor()
        set_lr(self._optimizer, lr)
        forget_gradients(self._parameters)
        seam.backward(gen_op, upstream_grads, parts.sentinel)
        self._optimizer.step()
        return {
            "generator_loss": estimate.value_B.mean,
            "generator_lr": lr,
            "upstream_grad_norm": upstream_grads.norm,
            "generator_grad_norm": partial(gradient_norm, parts.generator),
            "difference_zero_share": lambda: (estimate.differences_BM == 0).float().mean(),
        }

    def _objective(self, point_BCHW: Tensor) -> Tensor:
        """- distance(student, teacher) per image: what the generator minimises. The minus lives here alone."""
        parts = self._parts
        x_BCHW = parts.oracle.spec.quantise(self._to_image(point_BCHW))
        return -parts.trainer.distance(parts.trainer.net(x_BCHW).double(), parts.oracle(x_BCHW, "generator").double())

    @property
    def recent(self) -> tuple[Tensor, Tensor] | None:
        return self._teaching.recent

    def state_dict(self) -> dict[str, Any]:
        return self._teaching.state_dict() | {"generator_optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._teaching.load_state_dict(state)
        self._optimizer.load_state_dict(state["generator_optimizer"])
