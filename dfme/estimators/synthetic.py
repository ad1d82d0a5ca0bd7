"""Synthetic gradients: between the estimates that are paid for, a network that has learnt from them predicts.

Decoupled Neural Interfaces (Jaderberg et al., ICML 2017, arXiv 1608.05343) train a small network to say what
gradient will come back, from what went forward, so that nobody has to wait for it. Here nobody has to pay for it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dfme.compute import ieee_fp32
from dfme.errors import UserError
from dfme.estimators.base import Estimate, Estimator, ImageFunction, Objective
from dfme.estimators.spaces import Squash
from dfme.estimators.synthetic_training import Inputs, Lessons
from dfme.spec import ImageSpec

PAID_FIRST = 8
"""Estimates at the start that are all paid for: there must be something to predict from."""


class Synthetic:
    """Pays ``inner`` for every n-th estimate, learns from it, and predicts the others, which ask for nothing.

    A predicted estimate has ``queries`` 0, no columns of differences, and a ``value_B`` of zeros that means
    nothing: what the objective is cannot be known without asking. What the network sees and how it learns is
    in ``estimators.lessons``. Its initial weights come from ``seed``, all other chance from ``rng``. Everything
    it holds follows the point to its device.

    Args:
        inner: what is paid; over images, it gives the gradient at the generator's output u
        every: one estimate in so many is paid for, besides the first ``PAID_FIRST``; 1 is ``inner`` itself
        lr: learning rate of the network's Adam
        squash: from u to the image
        spec: the images
        seed: of the network's initial weights

    Raises:
        UserError: ``every`` or ``lr`` is out of range
    """

    def __init__(self, inner: Estimator, every: int, lr: float, squash: Squash, spec: ImageSpec, seed: int) -> None:
        if every < 1:
            raise UserError(f"every: expected at least 1, got {every}")
        if not 0 < lr < float("inf"):
            raise UserError(f"synthetic_lr: expected a positive number, got {lr}")
        self.inner = inner
        self._every = every
        self._squash = squash
        self._spec = spec
        self._lessons = Lessons(spec.shape[0], lr, seed)
        self._made = 0

    def cost(self, batch: int, ahead: int = 0) -> int:
        """What ``inner`` costs where the estimate is paid for, nothing where it is predicted."""
        if not self._pays(self._made + ahead):
            return 0
        paid_before = sum(self._pays(self._made + between) for between in range(ahead))
        return self.inner.cost(batch, paid_before)

    def estimate(self, objective: ImageFunction, point_BCHW: Tensor, rng: torch.Generator) -> Estimate:
        """A paid estimate, which is learnt from, or a predicted one; ``cost`` says beforehand which."""
        paid = self._pays(self._made)
        self._made += 1
        if not paid:
            return _free(self.predict(objective, point_BCHW))
        estimate = self.inner.estimate(objective, point_BCHW, rng)
        if self._every > 1:  # else nothing is ever predicted
            with ieee_fp32():
                self._lessons.learn(self._inputs(objective, point_BCHW), estimate.grad_BCHW, rng)
        return estimate

    def predict(self, objective: ImageFunction, point_BCHW: Tensor) -> Tensor:
        """What the network says the gradient is, (B, C, H, W); of the objective it looks at ``scores`` alone."""
        with ieee_fp32():
            prediction_BCHW = self._lessons.recite(self._inputs(objective, point_BCHW))
        return prediction_BCHW.to(point_BCHW.dtype)

    def state_dict(self) -> dict[str, Any]:
        return {"inner": self.inner.state_dict(), "made": self._made, "lessons": self._lessons.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state["inner"])
        self._made = state["made"]
        self._lessons.load_state_dict(state["lessons"])

    def _pays(self, number: int) -> bool:
        return number < PAID_FIRST or number % self._every == 0

    @torch.no_grad()
    def _inputs(self, objective: ImageFunction, point_BCHW: Tensor) -> Inputs:
        low, high = self._spec.bounds
        x_BCHW = self._squash(point_BCHW)
        chances_BK = point_BCHW.new_empty(len(point_BCHW), 0)
        if isinstance(objective, Objective) and objective.scores is not None:
            chances_BK = objective.scores(x_BCHW).softmax(dim=1)
        scaled_BCHW = (2 * x_BCHW - (low + high)) / (high - low)
        return Inputs(point_BCHW.float(), scaled_BCHW.float(), chances_BK.float())


def _free(prediction_BCHW: Tensor) -> Estimate:
    """An estimate for which nothing was asked."""
    nothing_B = prediction_BCHW.new_zeros(len(prediction_BCHW))
    return Estimate(prediction_BCHW, nothing_B, nothing_B.new_empty(len(nothing_B), 0), 0)
