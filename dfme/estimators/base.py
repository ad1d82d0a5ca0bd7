"""What an estimator takes and gives: pure mathematics that knows no teacher, no budget and no label mode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

Objective = Callable[[Tensor], Tensor]
"""Images, or what comes before them, (N, C, H, W) -> one number per image (N,) in any floating dtype."""


@dataclass(frozen=True, eq=False)
class Composed:
    """An objective in two parts, f(x) = value(x, observe(x)): the API's, which costs, and our own, which is free.

    ``observe``: points (N, C, H, W) -> answers, one row per point; N images are paid for; no gradient.
    ``value``: points and answers -> (N,); it asks for nothing, and autograd goes through both its arguments.
    ``features_BFHW``: what the generator's last convolution read to make the points; none if nobody needs it.
    ``remembered``: answers paid for before, as (points, answers); none if there are none.
    ``scores``: points -> the student's scores (N, K), free and differentiable; none where there is no student.
    """

    observe: Objective
    value: Callable[[Tensor, Tensor], Tensor]
    features_BFHW: Tensor | None = None
    remembered: tuple[Tensor, Tensor] | None = None
    scores: Objective | None = None

    def __call__(self, point_NCHW: Tensor) -> Tensor:
        return self.value(point_NCHW, self.observe(point_NCHW))


@dataclass(frozen=True, eq=False)
class Estimate:
    """An estimated gradient and the observations it was made of.

    ``grad_BCHW``: d objective / d point for each image by itself, NOT averaged over the batch.
    ``value_B``: the objective at the point or, with central differences, the mean over the pairs around it.
    ``differences_BM``: f(u + h v) - f(u), with central differences f(u + h v) - f(u - h v), undivided, in the
    objective's own dtype; no columns where nothing was asked. ``queries``: images the objective was asked for.
    """

    grad_BCHW: Tensor
    value_B: Tensor
    differences_BM: Tensor
    queries: int


class Estimator(Protocol):
    """Estimates the gradient of something that only gives values.

    Forward differences ask at the points themselves first, in order, so that whoever watches ``observe`` finds
    the answers to the points among the first B rows asked.
    """

    def cost(self, batch: int, ahead: int = 0) -> int:
        """Images asked for at ``batch`` points by the next estimate, or by the one ``ahead`` estimates later."""
        ...

    def estimate(self, objective: Objective, point_BCHW: Tensor, rng: torch.Generator) -> Estimate:
        """Estimate d objective / d point with exactly ``cost(B)`` images; all chance comes from ``rng``."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What the next estimate depends on besides its arguments; empty for most."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...
