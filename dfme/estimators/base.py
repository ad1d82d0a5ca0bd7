"""What an estimator takes and gives, and where it perturbs: pure mathematics that knows no teacher,
no budget and no label mode.

An objective is about images x = squash(u), gen_op needs the gradient by u. Here, and nowhere else
on the way to the teacher, an image is rounded to what the wire carries: both parts of an
``Objective`` see it so.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from dfme.answers.reading import unanswered
from dfme.config.estimator_settings import Space
from dfme.errors import UserError
from dfme.spec import ImageSpec

ImageFunction = Callable[[Tensor], Tensor]
"""Images, or what comes before them, (N, C, H, W) -> one number per image (N,) in any floating
dtype.
"""


@dataclass(frozen=True, eq=False)
class Objective:
    """f(x) = value(x, observe(x)), one number per image: the API's paid part and our free part.

    ``query``: images (N, C, H, W) -> answers, one row per image; N images are paid for; no
    gradient. ``value``: images and answers -> (N,); it asks for nothing, and autograd goes through
    both its arguments. ``carry``: points -> the images that ``query`` and ``value`` are given.
    Estimators set it to the generator's squashing and the wire's rounding, so that an image is
    rounded once for both. ``features_BFHW``: what the generator's last convolution read to make the
    points; none if nobody needs it. ``scores``: images -> the student's scores (N, K), free and
    differentiable; none where there is no student. ``asked`` collects every (images, answers) that
    was paid for, in the order asked.
    ``may_lack``: some images may get no answer (``unanswered``). Their value is NaN, and of no
    other: a difference that has one at either end counts as none.
    """

    query: ImageFunction
    value: Callable[[Tensor, Tensor], Tensor]
    features_BFHW: Tensor | None = None
    scores: ImageFunction | None = None
    carry: ImageFunction = lambda point_NCHW: point_NCHW
    asked: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    may_lack: bool = False

    def __call__(self, point_NCHW: Tensor) -> Tensor:
        """The values (N,) at points; as many images are paid for."""
        x_NCHW = self.carry(point_NCHW)
        answers = self.query(x_NCHW)
        self.asked.append((x_NCHW, answers))
        return self._value(x_NCHW, answers)

    @property
    def lacks(self) -> bool:
        """True if any image asked so far got no answer."""
        return self.may_lack and any(bool(unanswered(answers).any()) for _, answers in self.asked)

    def _value(self, x_NCHW: Tensor, answers: Tensor) -> Tensor:
        """The values (N,), NaN where the answer is missing. UserError where another is no number
        then.
        """
        value_N = self.value(x_NCHW, answers)
        if not self.may_lack or not bool((missing_N := unanswered(answers)).any()):
            return value_N
        if not bool(value_N[~missing_N].isfinite().all()):
            raise UserError(
                "objective: expected finite numbers where there is an answer, got NaN or infinity; "
                "look at "
                "the step and the learning rates"
            )
        return value_N.masked_fill(missing_N, torch.nan)

    def first_asked(self, count: int) -> tuple[Tensor, Tensor]:
        """The first ``count`` images asked and their answers; for forward differences, the
        points.
        """
        images, answers = zip(*self.asked, strict=True)
        return torch.cat(images)[:count], torch.cat(answers)[:count]


@dataclass(frozen=True, eq=False)
class Estimate:
    """An estimated gradient and the observations it was made of.

    ``grad_BCHW``: d objective / d point for each image by itself, NOT averaged over the batch.
    ``value_B``: the objective at the point or, with central differences, the mean over the pairs
    around it. ``differences_BM``: f(u + h v) - f(u), with central differences f(u + h v) - f(u - h
    v), undivided, in the objective's own dtype; no columns where nothing was asked. ``queries``:
    images the objective was asked for.
    """

    grad_BCHW: Tensor
    value_B: Tensor
    differences_BM: Tensor
    queries: int


class Estimator(Protocol):
    """Estimates the gradient of something that only gives values.

    Forward differences ask at the points first, in order: the first B rows asked are theirs.
    """

    def cost(self, batch: int, ahead: int = 0) -> int:
        """Images asked at ``batch`` points by the next estimate, or the one ``ahead`` estimates
        later.
        """
        return sum(self.calls(batch, ahead))

    def calls(self, batch: int, ahead: int = 0) -> list[int]:
        """Images in each call of the objective by that estimate."""

    def estimate(self, objective: Objective, point_BCHW: Tensor, rng: torch.Generator) -> Estimate:
        """Estimate d objective / d point with exactly ``cost(B)`` images; all chance comes from
        ``rng``.
        """

    def state_dict(self) -> dict[str, Any]:
        """State that the next estimate depends on besides its arguments: nothing, for most."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what ``state_dict`` gave."""
        return


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
