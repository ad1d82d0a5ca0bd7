"""Convex losses of a linear head, minimised with a ridge: N images, D features, K classes.

L-BFGS on unknowns that are uncorrelated and of equal curvature, so that some tens of steps do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dfme.compute.modules import LBFGS
from dfme.students.head_losses import Entropy

HISTORY = 20


@dataclass(frozen=True)
class Scaling:
    """Features are centred and multiplied: (f - mean) * scale."""

    mean_D: Tensor
    scale_D: Tensor

    @classmethod
    def plain(cls, features_ND: Tensor) -> Scaling:
        """As they are, but for the mean and one factor, which gives them a mean square norm of one.

        A factor for each feature, so that all vary alike, copies owners worse (measured).
        """
        mean_D = features_ND.mean(dim=0)
        size = (features_ND - mean_D).square().sum(dim=1).mean().sqrt()
        return cls(mean_D, torch.full_like(mean_D, 1.0 / max(float(size), 1e-30)))

    def __call__(self, features_ND: Tensor) -> Tensor:
        return (features_ND - self.mean_D) * self.scale_D

    def undone(self, weight_DK: Tensor) -> Tensor:
        """The weight of the features themselves."""
        return weight_DK * self.scale_D[:, None]

    def relevance(self, weight_DK: Tensor) -> Scaling:
        """More room for the features that a head, on the features themselves, weighs more.

        Relevance determination (MacKay, 1994), one step, without the posterior's variance.
        """
        variance_D = (weight_DK - weight_DK.mean(dim=1, keepdim=True)).square().mean(dim=1)
        mean = variance_D.mean()
        if not mean > 0:
            return self
        share_D = (variance_D / mean + 0.1).sqrt()
        return Scaling(self.mean_D, self.scale_D.mean() * share_D / share_D.mean())


class Descent:
    """Minimises a loss of the scores of these features with one ridge after another."""

    def __init__(self, features_ND: Tensor, loss: Entropy, dtype: torch.dtype) -> None:
        """``features_ND``: scaled, float64."""
        self._loss = loss
        self._dtype = dtype
        weighted_ND = features_ND * loss.curvature_N[:, None].sqrt()
        curvature_DD = weighted_ND.T @ weighted_ND / len(features_ND)
        values_D, self._axes_DD = torch.linalg.eigh(curvature_DD)
        self._values_D = values_D.clamp_min(0.0)
        self._along_ND = (features_ND @ self._axes_DD).to(dtype)

    def __call__(
        self, ridge: float, weight_DK: Tensor, bias_K: Tensor, steps: int
    ) -> tuple[Tensor, Tensor]:
        """Weight and bias after at most ``steps`` from those given."""
        factor_D1 = (self._values_D + ridge).rsqrt()[:, None]
        penalty_D1 = (0.5 * ridge * factor_D1.square()).to(self._dtype)
        inputs_ND = self._along_ND * factor_D1.T.to(self._dtype)
        start_DK = (self._axes_DD.T @ weight_DK) / factor_D1
        unknown_DK = start_DK.to(self._dtype).requires_grad_()
        free_K = bias_K.to(self._dtype).clone().requires_grad_()
        optimizer = LBFGS(
            [unknown_DK, free_K],
            max_iter=steps,
            max_eval=2 * steps,
            history_size=HISTORY,
            line_search_fn="strong_wolfe",
            tolerance_grad=1e-10,
            tolerance_change=1e-14,
        )

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = self._loss(inputs_ND @ unknown_DK + free_K)
            loss = loss + (penalty_D1 * unknown_DK.square()).sum()
            # a class that no answer names would have a bias without limit
            loss = loss + 0.5 * min(ridge, 1e-6) * free_K.square().sum()
            loss.backward()
            return loss

        with torch.enable_grad():
            optimizer.step(closure)
        weight_DK = self._axes_DD @ (unknown_DK.detach().double() * factor_D1)
        return weight_DK, free_K.detach().double()


class LeastSquares:
    """Least squares of targets (N, K) with any ridge, after one decomposition; float64."""

    def __init__(self, features_ND: Tensor, target_NK: Tensor) -> None:
        """``features_ND``: scaled."""
        self._mean_D = features_ND.mean(dim=0)
        self._mean_K = target_NK.mean(dim=0)
        features_ND = features_ND - self._mean_D
        images = len(features_ND)
        self._wide = images < features_ND.shape[1]
        left = features_ND.T if self._wide else features_ND
        values, axes = torch.linalg.eigh(left.T @ left / images)
        live = values > values[-1].clamp_min(1e-300) * 1e-14
        self.variances_R = values[live].flip(0)
        axes = axes[:, live].flip(1)
        if self._wide:
            axes = features_ND.T @ axes / (self.variances_R * images).sqrt()
        self._axes_DR = axes
        self._products_RK = axes.T @ (features_ND.T @ (target_NK - self._mean_K)) / images

    def __call__(self, ridge: float, *_start: Tensor | int) -> tuple[Tensor, Tensor]:
        """Weight and bias, at once, from wherever a descent would start."""
        shrunk_R1 = (self.variances_R + ridge)[:, None]
        weight_DK = self._axes_DR @ (self._products_RK / shrunk_R1)
        return weight_DK, self._mean_K - self._mean_D @ weight_DK


class WeightedSquares:
    """Weighted least squares of targets (N, K), each image's up to a constant of its own.

    Conjugate gradients on uncorrelated features: where few weights are small, nearly all directions
    are of equal curvature. The constant is eliminated: the weighted mean of an image is taken off.
    """

    def __init__(self, features_ND: Tensor, target_NK: Tensor, weight_NK: Tensor) -> None:
        """``features_ND``: scaled. ``weight_NK``: 0 to 1; 0 for what is not known."""
        images = len(features_ND)
        values_D, self._axes_DD = torch.linalg.eigh(features_ND.T @ features_ND / images)
        self._values_D = values_D.clamp_min(0.0)
        self._along_ND = features_ND @ self._axes_DD / images**0.5
        self._ones_N1 = torch.full_like(features_ND[:, :1], images**-0.5)
        self._weight_NK = weight_NK
        self._total_N1 = weight_NK.sum(dim=1, keepdim=True).clamp_min(1e-30)
        self._target_NK = self._centred(target_NK) / images**0.5

    def __call__(
        self, ridge: float, weight_DK: Tensor, bias_K: Tensor, steps: int
    ) -> tuple[Tensor, Tensor]:
        """Weight and bias after at most ``steps`` from those given."""
        factor_D1 = (self._values_D + ridge).rsqrt()[:, None]
        inputs = torch.cat([self._along_ND * factor_D1.T, self._ones_N1], dim=1)
        penalty = torch.cat([ridge * factor_D1.square(), inputs.new_full((1, 1), ridge)])
        start = torch.cat([self._axes_DD.T @ weight_DK / factor_D1, bias_K[None]])

        def product(unknown: Tensor) -> Tensor:
            return inputs.T @ self._centred(inputs @ unknown) + penalty * unknown

        unknown = conjugate_gradients(product, inputs.T @ self._target_NK, start, steps)
        return self._axes_DD @ (unknown[:-1] * factor_D1), unknown[-1]

    def _centred(self, scores_NK: Tensor) -> Tensor:
        """Weighted differences from the weighted mean of an image."""
        weighted_NK = scores_NK * self._weight_NK
        mean_N1 = weighted_NK.sum(dim=1, keepdim=True) / self._total_N1
        return weighted_NK - mean_N1 * self._weight_NK


def conjugate_gradients(
    product: Callable[[Tensor], Tensor], right: Tensor, start: Tensor, steps: int
) -> Tensor:
    """The x of ``product(x) == right`` (Hestenes and Stiefel, 1952), to 1e-12 of ``right``."""
    x = start
    rest = right - product(x)
    direction = rest
    square = rest.square().sum()
    goal = 1e-24 * right.square().sum()
    for _ in range(steps):
        if not square > goal:
            break
        image = product(direction)
        length = square / (direction * image).sum()
        x = x + length * direction
        rest = rest - length * image
        before = square
        square = rest.square().sum()
        direction = rest + square / before * direction
    return x
