"""What an estimator takes and gives: pure mathematics that knows no teacher, no budget and no label mode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

Objective = Callable[[Tensor], Tensor]
"""Images, or what comes before them, (N, C, H, W) -> one number per image (N,) in any floating dtype."""


@dataclass(frozen=True, eq=False)
class Estimate:
    """An estimated gradient and the observations it was made of.

    ``grad_BCHW``: d objective / d point for each image by itself, NOT averaged over the batch.
    ``value_B``: the objective at the point or, with central differences, the mean over the pairs around it.
    ``differences_BM``: f(u + h v) - f(u), with central differences f(u + h v) - f(u - h v), undivided, in the
    objective's own dtype. ``queries``: images the objective was asked for.
    """

    grad_BCHW: Tensor
    value_B: Tensor
    differences_BM: Tensor
    queries: int


class Estimator(Protocol):
    """Estimates the gradient of something that only gives values."""

    def cost(self, batch: int) -> int:
        """Images the objective is asked for to estimate the gradient at ``batch`` points."""
        ...

    def estimate(self, objective: Objective, point_BCHW: Tensor, rng: torch.Generator) -> Estimate:
        """Estimate d objective / d point with exactly ``cost(B)`` images; all chance comes from ``rng``."""
        ...
