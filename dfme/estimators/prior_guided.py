"""Differences along directions that lean towards a prior p, a unit vector that may resemble the
gradient.

P-RGF (Cheng, Dong, Pang, Su, Zhu, Improving Black-box Adversarial Attacks with a Transfer-based
Prior, NeurIPS 2019, arXiv 1906.06919): with xi_i uniform on the unit sphere at right angles to p,

    v_i = sqrt(lambda) p + sqrt(1 - lambda) xi_i,   E[v v^T] = lambda p p^T + (1 - lambda)/(D - 1)
    (I - p p^T) g = (b/m) sum_i slope_i v_i

The least E|grad - b g|^2 over b leaves the share 1 - captured(lambda) of |grad|^2, where alpha^2 =
<p, grad>^2 / |grad|^2 is all that one must know of the prior:

    mu = (1 - lambda)/(D - 1),  A = lambda alpha^2 + mu (1 - alpha^2),  S = lambda^2 alpha^2 + mu^2
    (1 - alpha^2) captured = A^2 / ((1 - 1/m) S + A/m),   b = A / ((1 - 1/m) S + A/m)

``mixing_weight`` is the lambda that captures most. Once lambda is 1, all probes of an image would
be the same: then one is spent on p and the others go at right angles to it (Cheng, Wu, Zhu, On the
Convergence of Prior-Guided Zeroth-Order Optimization Algorithms, NeurIPS 2021, arXiv 2107.10110),
which captures

    alpha^2 + (1 - alpha^2) (m - 1)/(D + m - 3)

and is taken whenever that is more, as it is for m > 1 and alpha^2 from about 1/D on.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dfme.config.estimator_settings import PriorName
from dfme.errors import UserError
from dfme.estimators.base import Estimate, Objective
from dfme.estimators.differences import Probing, check_point, in_parts, signs
from dfme.estimators.directions import DIRECTIONS, PerturbedPoint
from dfme.precision import ieee_fp32

SHARE = 8
"""One image in so many probes the prior alone, and as many leave it out, to measure alpha^2."""

MIN_MEASURING = 4
"""Fewer images than this to either side say nothing about alpha^2."""


def mixing_weight(alpha2: Tensor, size: int, directions: int) -> Tensor:
    """The lambda that captures most, for alpha^2, D and m (closed form of Cheng et al. 2019); any
    shape.

    With one direction it is 0 or 1: all or nothing, by whether the prior beats a random direction
    (1/D).
    """
    reach = size + 2 * directions - 2
    above = (1 - alpha2) * (alpha2 * reach - 1)
    below = 2 * alpha2 * size * directions - alpha2.square() * size * reach - 1
    between = (above / below).clamp(0, 1)
    inner = torch.where(alpha2 * reach <= 1, torch.zeros_like(alpha2), between)
    return torch.where(alpha2 * reach >= 2 * directions - 1, torch.ones_like(alpha2), inner)


@dataclass(frozen=True, eq=False)
class _Plan:
    """Probing of images: lambda per direction, and the weight of slope * direction, (M,)."""

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
    others = directions - 1
    room = size - 1
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
"""Of images in order: gradients (B, C, H, W), slopes and differences along each direction (B, M).
"""


@dataclass(frozen=True)
class PriorGuided(Probing):
    """Estimates a gradient with directions that lean towards a prior, by as much as the prior has
    earned.

    alpha^2 is measured anew for every batch, without an image more and without memory: the first
    eighth of the batch probes its priors, the second eighth at right angles to them, and what their
    slopes say,

        alpha^2 = mean <p, grad>^2 / (mean <p, grad>^2 + (D - 1) mean <xi, grad>^2),

    decides for the rest: one number per batch, weighted by |grad|^2, since an image's own would
    lean the very estimate that it was read from. An image's estimate depends on the others of its
    batch through lambda alone. With fewer than 32 images lambda is 1/2. The estimate has the scale
    b of the least squared error, which shrinks it: an unbiased one would give the images that
    measure little but noise.

    On a lattice the prior is its signs, and a probe moves by the signs of v; alpha^2 is that of
    what was sent. ``prior``: student or neighbours; the other arguments are those of ``Probing``.
    """

    prior: PriorName = "student"

    def calls(self, batch: int, ahead: int = 0) -> list[int]:
        """B (m + 1) images forward, B (2 m + 1) central, since a prior needs answers at the
        points.
        """
        measuring = batch // SHARE
        stages = (
            [batch] if measuring < MIN_MEASURING else [measuring, measuring, batch - 2 * measuring]
        )
        probed = [size for rows in stages for size in self.probe_calls(rows, centre=False)]
        return in_parts(batch, self.chunk) + probed

    def estimate(self, objective: Objective, point_BCHW: Tensor, rng: torch.Generator) -> Estimate:
        """Estimate d objective / d point; the points are asked first, then those that measure.

        ``objective`` is called under IEEE fp32 and, where it asks, ``no_grad``. ``value_B`` is the
        objective at the point with either form. Nothing here waits for an accelerator.

        Raises:
            UserError: the point is none, or D is 1
        """
        check_point(point_BCHW)
        if point_BCHW[0].numel() < 2:
            raise UserError(
                "point: expected images of at least 2 numbers, got 1; use finite_difference"
            )
        with torch.no_grad(), ieee_fp32():
            centre_BCHW = self.centre(point_BCHW)
            calls = centre_BCHW.split(self.chunk or len(centre_BCHW))
            answers = torch.cat([objective.observe(call_BCHW) for call_BCHW in calls])
            base_B = objective.value_at(centre_BCHW, answers)
            prior_BCHW = PRIORS[self.prior](objective, centre_BCHW, answers, rng)
            if (
                self.lattice is not None
            ):  # where all pixels move equally, a probe can follow the signs alone
                prior_BCHW = signs(prior_BCHW).mul_(prior_BCHW[0].numel() ** -0.5)
            probed = self._in_stages(objective, centre_BCHW, prior_BCHW, base_B, rng)
        grad_BCHW, _, differences_BM = (torch.cat(parts) for parts in zip(*probed, strict=True))
        return Estimate(grad_BCHW, base_B, differences_BM, self.cost(len(point_BCHW)))

    def _in_stages(
        self,
        objective: Objective,
        centre_BCHW: Tensor,
        prior_BCHW: Tensor,
        base_B: Tensor,
        rng: torch.Generator,
    ) -> list[_Probed]:
        """Images in order: some that probe the prior, some that probe aside of it, and those that
        profit.
        """
        measuring = len(base_B) // SHARE
        size = centre_BCHW[0].numel()
        m = self.directions
        half = torch.full((), 0.5, dtype=torch.float64, device=centre_BCHW.device)

        def probed(rows: slice, plan: _Plan) -> _Probed:
            grad_BCHW = torch.zeros_like(centre_BCHW[rows])
            slopes = []
            differences = []
            directions = _leaning(prior_BCHW[rows], plan.lambda_M, rng)
            probes = self.along(objective, centre_BCHW[rows], directions, base_B[rows])
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
        aside = probed(
            slice(measuring, 2 * measuring), _mixed(torch.zeros_like(half), half, size, m)
        )
        slopes_aside = torch.cat([along[1][:, 1:].flatten(), aside[1].flatten()])
        alpha2 = measured_alpha2(along[1][:, 0], slopes_aside, size)
        return [along, aside, probed(slice(2 * measuring, None), _best(alpha2, size, m))]


def _leaning(prior_BCHW: Tensor, lambda_M: Tensor, rng: torch.Generator) -> Iterator[Tensor]:
    """v_j = sqrt(lambda_j) p + sqrt(1 - lambda_j) xi_j, drawn when needed, one per image."""
    stream = DIRECTIONS["sphere"].stream(PerturbedPoint(prior_BCHW), rng)
    for mixing in lambda_M.to(prior_BCHW.dtype):
        xi_BCHW = next(stream)
        xi_BCHW = xi_BCHW - (xi_BCHW * prior_BCHW).sum((1, 2, 3), keepdim=True) * prior_BCHW
        xi_BCHW = xi_BCHW / torch.linalg.vector_norm(xi_BCHW, dim=(1, 2, 3), keepdim=True)
        yield mixing.sqrt() * prior_BCHW + (1 - mixing).sqrt() * xi_BCHW


def measured_alpha2(along_N: Tensor, aside_N: Tensor, size: int) -> Tensor:
    """cos^2 of prior and gradient, from slopes along and across priors; 0 if all are zero."""
    along = along_N.double().square().mean()
    total = along + (size - 1) * aside_N.double().square().mean()
    return torch.where(total > 0, along / total, torch.zeros_like(total))


Prior = Callable[[Objective, Tensor, Tensor, torch.Generator], Tensor]
"""(objective, point, answers at the point, rng) -> directions (B, C, H, W), each of unit length."""

NEIGHBOURS = 64
"""Remembered images that a point's slopes are taken towards: of 8, 32, 64 and 128 about the best,
measured by the cosine of the generator's parameter gradient on digits and shapes; so is the ridge,
of .01 and .1."""

RIDGE = 0.1
"""Ridge of their least squares as a share of the mean squared distance."""

PIECE = 64
"""Points whose neighbours are looked up together: PIECE * NEIGHBOURS images are in memory at a
time.
"""


def student_term(objective: Objective, point_BCHW: Tensor, answers: Tensor) -> Tensor:
    """d value(x, a) / d x with the answers held (B, C, H, W): the student's part of the gradient,
    free.
    """
    with torch.enable_grad():
        x_BCHW = point_BCHW.detach().requires_grad_()
        value = objective.value_at(x_BCHW, answers.detach()).sum()
    grad_BCHW: Tensor = torch.autograd.grad(value, x_BCHW)[0]
    return grad_BCHW


def student_prior(
    objective: Objective, point_BCHW: Tensor, answers: Tensor, rng: torch.Generator
) -> Tensor:
    """The direction of ``student_term``: the transfer-based prior of Cheng et al. (NeurIPS
    2019).
    """
    return _unit_or_random(student_term(objective, point_BCHW, answers), rng)


def neighbour_prior(
    objective: Objective, point_BCHW: Tensor, answers: Tensor, rng: torch.Generator
) -> Tensor:
    """The direction that explains the objective's values at the nearest images paid for before.

    With y_i = f(x_i) - f(x) towards the NEIGHBOURS nearest remembered images, by the present
    student and the remembered answers, w = sum_i c_i (x_i - x) is the ridge regression of y on the
    differences of the images: (K + r I) c = y with K their Gram matrix. Heuristic: as good as the
    objective is straight between them.
    """
    batches = [batch for batch in objective.remembered if len(batch[0])]
    if not batches:
        return _unit_or_random(torch.zeros_like(point_BCHW), rng)
    images_NCHW, kept_answers = (torch.cat(parts) for parts in zip(*batches, strict=True))
    points_BD = point_BCHW.flatten(1)
    images_ND = images_NCHW.flatten(1).to(point_BCHW.dtype)
    with torch.no_grad():
        pieces = zip(
            images_NCHW.split(len(point_BCHW)), kept_answers.split(len(point_BCHW)), strict=True
        )
        remembered_N = torch.cat([objective.value(*piece) for piece in pieces])
        value_B = objective.value_at(point_BCHW, answers)
        near = zip(points_BD.split(PIECE), value_B.split(PIECE), strict=True)
        slopes_BD = torch.cat(
            [_towards_the_nearest(*piece, images_ND, remembered_N) for piece in near]
        )
    return _unit_or_random(slopes_BD.view(point_BCHW.shape), rng)


def _towards_the_nearest(
    points_BD: Tensor, value_B: Tensor, images_ND: Tensor, remembered_N: Tensor
) -> Tensor:
    """Gradient at the points (B, D) from values of the nearest images: w of ``neighbour_prior``."""
    index_BR = (
        torch.cdist(points_BD, images_ND)
        .topk(min(NEIGHBOURS, len(images_ND)), largest=False)
        .indices
    )
    way_BRD = images_ND[index_BR] - points_BD.unsqueeze(1)
    rise_BR = remembered_N[index_BR] - value_B.unsqueeze(1)
    gram_BRR = (way_BRD @ way_BRD.mT).double()
    # The constant keeps the system solvable where all neighbours are the point itself.
    ridge_B = RIDGE * gram_BRR.diagonal(dim1=-2, dim2=-1).mean(-1) + 1e-12
    eye_RR = torch.eye(gram_BRR.shape[-1], dtype=torch.float64, device=way_BRD.device)
    system_BRR = gram_BRR + ridge_B.view(-1, 1, 1) * eye_RR
    # solve_ex, since solve would wait for an accelerator to see whether it succeeded.
    weights_BR1: Tensor = torch.linalg.solve_ex(system_BRR, rise_BR.double().unsqueeze(2)).result
    return (way_BRD.mT @ weights_BR1.to(way_BRD.dtype)).squeeze(2)


def _unit_or_random(direction_BCHW: Tensor, rng: torch.Generator) -> Tensor:
    """Each direction at unit length; a random one in place of what has none. Draws as much either
    way.
    """
    random_BCHW = next(DIRECTIONS["sphere"].stream(PerturbedPoint(direction_BCHW), rng))
    # Scaled by the largest coordinate first: the square of a small gradient is no number in fp32.
    largest_B111 = direction_BCHW.abs().amax((1, 2, 3), keepdim=True)
    scaled_BCHW = direction_BCHW / largest_B111
    unit_BCHW = scaled_BCHW / torch.linalg.vector_norm(scaled_BCHW, dim=(1, 2, 3), keepdim=True)
    return torch.where((largest_B111 > 0) & largest_B111.isfinite(), unit_BCHW, random_BCHW)


PRIORS: dict[PriorName, Prior] = {"student": student_prior, "neighbours": neighbour_prior}
