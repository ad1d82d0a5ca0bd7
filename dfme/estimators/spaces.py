"""Where to perturb: an objective is about images x = squash(u), the seam wants the gradient by u.

Both wrappers take an objective over images and a point u (B, C, H, W), and give d objective / d u. A Composed
objective stays one, so that whoever is inside can still tell the API's part from our own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from dfme.estimators.base import Composed, Estimate, Estimator, Objective

Space = Literal["pre_squash", "image", "lattice"]
Squash = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class BeforeSquash:
    """The inner estimator perturbs u: every probe is a legal image after squashing, whatever the step.

    Answers remembered from before belong to images that nobody knows the u of, so they are not passed on.
    """

    inner: Estimator
    squash: Squash

    def cost(self, batch: int, ahead: int = 0) -> int:
        return self.inner.cost(batch, ahead)

    def estimate(self, objective: Objective, point_BCHW: Tensor, rng: torch.Generator) -> Estimate:
        return self.inner.estimate(self._before(objective), point_BCHW, rng)

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state)

    def _before(self, objective: Objective) -> Objective:
        squash = self.squash
        if not isinstance(objective, Composed):
            return lambda u_NCHW: objective(squash(u_NCHW))
        observe, value, scores = objective.observe, objective.value, objective.scores
        return replace(
            objective,
            observe=lambda u_NCHW: observe(squash(u_NCHW)),
            value=lambda u_NCHW, answers: value(squash(u_NCHW), answers),
            remembered=None,
            scores=None if scores is None else lambda u_NCHW: scores(squash(u_NCHW)),
        )


@dataclass(frozen=True, eq=False)
class AfterSquash:
    """The inner estimator perturbs the image; the chain rule through the squashing follows by autograd, exactly."""

    inner: Estimator
    squash: Squash

    def cost(self, batch: int, ahead: int = 0) -> int:
        return self.inner.cost(batch, ahead)

    def estimate(self, objective: Objective, point_BCHW: Tensor, rng: torch.Generator) -> Estimate:
        with torch.enable_grad():
            u_BCHW = point_BCHW.detach().requires_grad_()
            x_BCHW = self.squash(u_BCHW)
        over_images = self.inner.estimate(objective, x_BCHW.detach(), rng)
        (grad_BCHW,) = torch.autograd.grad(x_BCHW, u_BCHW, over_images.grad_BCHW)
        return replace(over_images, grad_BCHW=grad_BCHW)

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state)


SPACES: dict[Space, Callable[[Estimator, Squash], Estimator]] = {
    "pre_squash": BeforeSquash,
    "image": AfterSquash,
    "lattice": AfterSquash,
}
