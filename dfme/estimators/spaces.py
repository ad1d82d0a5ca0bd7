"""Where to perturb: an objective is about images x = squash(u), gen_op needs the gradient by u.

Here, and nowhere else on the way to the teacher, an image is rounded to what the wire carries: both
parts of an ``Objective`` see it so.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dfme.config.sections import Space
from dfme.estimators.base import Estimate, Estimator, Objective
from dfme.spec import ImageSpec

Squash = Callable[[Tensor], Tensor]


def carried(x_NCHW: Tensor, spec: ImageSpec) -> Tensor:
    """The images as the wire carries them. Rounding lets gradients pass as if it were not there."""
    rounded_NCHW = spec.quantise(x_NCHW.detach())
    return x_NCHW + (rounded_NCHW - x_NCHW).detach() if x_NCHW.requires_grad else rounded_NCHW


@dataclass(frozen=True, eq=False)
class _InSpace(Estimator):
    """An estimator of the gradient by u, made of ``inner``; ``squash`` maps u to an image of
    ``spec``.
    """

    inner: Estimator
    squash: Squash
    spec: ImageSpec

    def calls(self, batch: int, ahead: int = 0) -> list[int]:
        return self.inner.calls(batch, ahead)


class BeforeSquash(_InSpace):
    """The inner estimator perturbs u: every probe is a legal image after squashing, whatever the
    step.
    """

    def estimate(self, objective: Objective, point_BCHW: Tensor, rng: torch.Generator) -> Estimate:
        objective = replace(objective, carry=lambda u: carried(self.squash(u), self.spec))
        return self.inner.estimate(objective, point_BCHW, rng)


class AfterSquash(_InSpace):
    """The inner estimator perturbs the image; autograd continues through the squashing exactly."""

    def estimate(self, objective: Objective, point_BCHW: Tensor, rng: torch.Generator) -> Estimate:
        with torch.enable_grad():
            u_BCHW = point_BCHW.detach().requires_grad_()
            x_BCHW = self.squash(u_BCHW)
        objective = replace(objective, carry=lambda x: carried(x, self.spec))
        over_images = self.inner.estimate(objective, x_BCHW.detach(), rng)
        (grad_BCHW,) = torch.autograd.grad(x_BCHW, u_BCHW, over_images.grad_BCHW)
        return replace(over_images, grad_BCHW=grad_BCHW)


SPACES: dict[Space, type[BeforeSquash | AfterSquash]] = {
    "pre_squash": BeforeSquash,
    "image": AfterSquash,
    "lattice": AfterSquash,
}
