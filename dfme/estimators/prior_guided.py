"""Differences along directions that lean towards a prior p, a unit vector that may resemble the gradient.

P-RGF (Cheng, Dong, Pang, Su, Zhu, Improving Black-box Adversarial Attacks with a Transfer-based Prior, NeurIPS
2019, arXiv 1906.06919): with xi_i uniform on the unit sphere at right angles to p,

    v_i = sqrt(lambda) p + sqrt(1 - lambda) xi_i,   E[v v^T] = lambda p p^T + (1 - lambda)/(D - 1) (I - p p^T)
    g = (b/m) sum_i slope_i v_i

The least E|grad - b g|^2 over b leaves the share 1 - captured(lambda) of |grad|^2, where alpha^2 = <p, grad>^2 /
|grad|^2 is all that one must know of the prior:

    mu = (1 - lambda)/(D - 1),  A = lambda alpha^2 + mu (1 - alpha^2),  S = lambda^2 alpha^2 + mu^2 (1 - alpha^2)
    captured = A^2 / ((1 - 1/m) S + A/m),   b = A / ((1 - 1/m) S + A/m)

``mixing_weight`` is the lambda that captures most. Once lambda is 1, all probes of an image would be the same:
then one is spent on p and the others go at right angles to it (Cheng, Wu, Zhu, On the Convergence of Prior-Guided
Zeroth-Order Optimization Algorithms, NeurIPS 2021, arXiv 2107.10110), which captures

    alpha^2 + (1 - alpha^2) (m - 1)/(D + m - 3)

and is taken whenever that is more, as it is for m > 1 and alpha^2 from about 1/D on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dfme.errors import UserError
from dfme.estimators.base import Estimate, Estimator, ImageFunction, Objective
from dfme.estimators.differences import FORMS, Form, Probing, check_point, in_parts, signs
from dfme.estimators.directions import DIRECTIONS, PerturbedPoint
from dfme.estimators.priors import PRIORS, PriorName, in_two_parts
from dfme.precision import ieee_fp32

SHARE = 8
"""One image in so many probes the prior alone, and as many leave it out, to measure alpha^2."""

MIN_MEASURING = 4
"""Fewer images than this to either side say nothing about alpha^2."""


def mixing_weight(alpha2: Tensor, size: int, directions: int) -> Tensor:
    """The lambda that captures most, for alpha^2, D and m (closed form of Cheng et al. 2019); any shape.

    With one direction it is 0 or 1: all or nothing, by whether the prior beats a random direction (1/D).
    """
    reach = size + 2 * directions - 2
    above = (1 - alpha2) * (alpha2 * reach - 1)
    below = 2 * alpha2 * size * directions - alpha2.square() * size * reach - 1
    between = (above / below).clamp(0, 1)
    inner = torch.where(alpha2 * reach <= 1, torch.zeros_like(alpha2), between)
    return torch.where(alpha2 * reach >= 2 * directions - 1, torch.ones_like(alpha2), inner)


@dataclass(frozen=True, eq=False)
class _Plan:
    """How images are probed: lambda of each direction, and the weight of slope * direction in the estimate, (M,)."""

    lambda_M: Tensor
    weight_M: Tensor
    captured: Tensor


def _mixed(mixing: Tensor, alpha2: Tensor, size: int, directions: int) -> _Plan:
    """P-RGF: every direction leans towards the prior equally."""
    aside = (1 - mixing) / (size - 1)
    first = mixing * alpha2 + aside * (1 - alpha2)
    second = mixing.square() * alpha2 + aside.square() * (1 - alpha2)
    best = first / ((1 - 1 / directions) * second + first / directions)
    return _Plan(mixing.expand(directions), (best / directions).expand(directions), best * first)


def _apart(alpha2: Tensor, size: int, directions: int) -> _Plan:
    """The first direction is the prior, the others are at right angles to it."""
    first_M = torch.zeros(directions, dtype=alpha2.dtype, device=alpha2.device)
    first_M[0].fill_(1)  # to assign a number would make a GPU wait for it
    others, room = directions - 1, size - 1
    # With nothing else than the prior there is no other weight to know, and no division by 0 - 0.
    weight = room / (room + others - 1) if others else 1.0
    captured = alpha2 + (1 - alpha2) * (others / (room + others - 1) if others else 0.0)
    return _Plan(first_M, torch.where(first_M == 1, torch.ones_like(first_M), weight), captured)


def _best(alpha2: Tensor, size: int, directions: int) -> _Plan:
    mixed = _mixed(mixing_weight(alpha2, size, directions), alpha2, size, directions)
    apart = _apart(alpha2, size, directions)
    better = apart.captured > mixed.captured
    return _Plan(
        torch.where(better, apart.lambda_M, mixed.lambda_M),
        torch.where(better, apart.weight_M, mixed.weight_M),
        torch.maximum(apart.captured, mixed.captured),
    )


_Probed = tuple[Tensor, Tensor, Tensor]
"""Of images in order: gradients (B, C, H, W), slopes and differences along each direction (B, M)."""


@dataclass(frozen=True)
class PriorGuided(Estimator):
    """Estimates a gradient with directions that lean towards a prior, by as much as the prior has earned.

    alpha^2 is measured anew for every batch, without an image more and without memory: the first eighth of the
    batch probes its priors, the second eighth at right angles to them, and what their slopes say,

        alpha^2 = mean <p, grad>^2 / (mean <p, grad>^2 + (D - 1) mean <xi, grad>^2),

    decides for the rest. It is one number per batch, the mean weighted by |grad|^2: an image's own would rest on m
    slopes, often one, and lean the very estimate that it was read from. So an image's estimate depends on the
    others of its batch through lambda, and through nothing else. With fewer than 32 images lambda is 1/2.

    The estimate has the scale b of the least squared error, which shrinks it: without a use for the prior an
    image's estimate is about m/(D + m) as long as the unbiased one, and with it about <p, grad>. So the images
    that measure add what they found and not the noise that an unbiased scale would give them.

    On a lattice the prior is its signs, and a probe moves by the signs of v; alpha^2 is that of what was sent.

    Args:
        prior: student or neighbours, see ``priors``
        directions: directions per image (m)
        step, form, bounds, lattice, chunk: as of ``Probing``

    Raises:
        UserError: an argument is out of range, or the step does not fit between the bounds
    """

    prior: PriorName = "student"
    directions: int = 1
    step: float = 1e-3
    form: Form = "forward"
    bounds: tuple[float, float] | None = None
    lattice: float | None = None
    chunk: int | None = None
    probing: Probing = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.prior not in PRIORS:
            raise UserError(f"prior: expected {' or '.join(PRIORS)}, got {self.prior!r}")
        if self.directions < 1:
            raise UserError(f"directions: expected at least 1, got {self.directions}")
        probing = Probing(self.step, self.form, self.bounds, self.lattice, self.chunk)
        object.__setattr__(self, "probing", probing)

    def cost(self, batch: int, ahead: int = 0) -> int:
        """Images asked for: B (m + 1) forward, B (2 m + 1) central, since a prior is made from the answers there."""
        return batch * (1 + self.directions * FORMS[self.form])

    def calls(self, batch: int, ahead: int = 0) -> list[int]:
        measuring = batch // SHARE
        stages = [batch] if measuring < MIN_MEASURING else [measuring, measuring, batch - 2 * measuring]
        probed = [size for rows in stages for size in self.probing.calls(rows, self.directions, centre=False)]
        return in_parts(batch, self.chunk) + probed

    def estimate(self, objective: ImageFunction, point_BCHW: Tensor, rng: torch.Generator) -> Estimate:
        """Estimate d objective / d point; the points themselves are asked about first, then those that measure.

        ``objective`` is called under IEEE fp32 and, where it asks, ``no_grad``. ``value_B`` is the objective at
        the point with either form. Nothing here waits for an accelerator.

        Raises:
            UserError: the objective is not in two parts, the point is none, or D is 1
        """
        check_point(point_BCHW)
        objective = in_two_parts(objective, "prior_guided")
        if point_BCHW[0].numel() < 2:
            raise UserError("point: expected images of at least 2 numbers, got 1; use finite_difference")
        with torch.no_grad(), ieee_fp32():
            centre_BCHW = self.probing.centre(point_BCHW)
            calls = centre_BCHW.split(self.chunk or len(centre_BCHW))
            answers = torch.cat([objective.observe(call_BCHW) for call_BCHW in calls])
            base_B = objective.value_at(centre_BCHW, answers)
            prior_BCHW = PRIORS[self.prior](objective, centre_BCHW, answers, rng)
            if self.lattice is not None:  # where all pixels move equally, a probe can follow the signs alone
                prior_BCHW = signs(prior_BCHW).mul_(prior_BCHW[0].numel() ** -0.5)
            probed = self._in_stages(objective, centre_BCHW, prior_BCHW, base_B, rng)
        grad_BCHW, _, differences_BM = (torch.cat(parts) for parts in zip(*probed, strict=True))
        return Estimate(grad_BCHW, base_B, differences_BM, self.cost(len(point_BCHW)))

    def _in_stages(
        self, objective: Objective, centre_BCHW: Tensor, prior_BCHW: Tensor, base_B: Tensor, rng: torch.Generator
    ) -> list[_Probed]:
        """Images in order: some that probe the prior, some that probe aside of it, and those that profit."""
        measuring, size, m = len(base_B) // SHARE, centre_BCHW[0].numel(), self.directions
        half = torch.full((), 0.5, dtype=torch.float64, device=centre_BCHW.device)

        def probed(rows: slice, plan: _Plan) -> _Probed:
            grad_BCHW = torch.zeros_like(centre_BCHW[rows])
            slopes, differences = [], []
            directions = _leaning(prior_BCHW[rows], plan.lambda_M, rng)
            probes = self.probing.along(objective, centre_BCHW[rows], directions, m, base_B[rows])
            for weight, probe in zip(plan.weight_M, probes, strict=True):
                step_B = (weight * probe.slope_B).to(grad_BCHW.dtype)
                grad_BCHW.addcmul_(probe.v_BCHW, step_B.view(-1, 1, 1, 1))
                slopes.append(probe.slope_B)
                differences.append(probe.difference_B)
            return grad_BCHW, torch.stack(slopes, dim=1), torch.stack(differences, dim=1)

        if measuring < MIN_MEASURING:
            # The scale is that of a prior with alpha^2 = 1/2, since something must be assumed.
            return [probed(slice(None), _mixed(half, half, size, m))]
        along = probed(slice(measuring), _apart(half, size, m))
        aside = probed(slice(measuring, 2 * measuring), _mixed(torch.zeros_like(half), half, size, m))
        slopes_aside = torch.cat([along[1][:, 1:].flatten(), aside[1].flatten()])
        alpha2 = measured_alpha2(along[1][:, 0], slopes_aside, size)
        return [along, aside, probed(slice(2 * measuring, None), _best(alpha2, size, m))]


def _leaning(prior_BCHW: Tensor, lambda_M: Tensor, rng: torch.Generator) -> Iterator[Tensor]:
    """v_j = sqrt(lambda_j) p + sqrt(1 - lambda_j) xi_j, one direction per image each time, drawn when needed."""
    stream = DIRECTIONS["sphere"].stream(PerturbedPoint(prior_BCHW), rng)
    for mixing in lambda_M.to(prior_BCHW.dtype):
        xi_BCHW = next(stream)
        xi_BCHW = xi_BCHW - (xi_BCHW * prior_BCHW).sum((1, 2, 3), keepdim=True) * prior_BCHW
        xi_BCHW = xi_BCHW / torch.linalg.vector_norm(xi_BCHW, dim=(1, 2, 3), keepdim=True)
        yield mixing.sqrt() * prior_BCHW + (1 - mixing).sqrt() * xi_BCHW


def measured_alpha2(along_N: Tensor, aside_N: Tensor, size: int) -> Tensor:
    """cos^2 of prior and gradient, from slopes along priors and at right angles to them; 0 where all are zero."""
    along = along_N.double().square().mean()
    total = along + (size - 1) * aside_N.double().square().mean()
    return torch.where(total > 0, along / total, torch.zeros_like(total))
