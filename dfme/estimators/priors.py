"""Guesses of the gradient's direction that cost no image: the student's own gradient, and answers already paid for.

A prior looks at an objective in two parts, at the points (B, C, H, W) and at the answers there, and gives one
direction per image, of unit length. Where it has nothing to say (a zero gradient, no memory) the direction is
random, uniform on the unit sphere, which is what one would probe along without a prior.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from dfme.errors import UserError
from dfme.estimators.base import ImageFunction, Objective
from dfme.estimators.directions import DIRECTIONS, PerturbedPoint

PriorName = Literal["student", "neighbours"]
Prior = Callable[[Objective, Tensor, Tensor, torch.Generator], Tensor]
"""(objective, point_BCHW, answers at the point, rng) -> directions (B, C, H, W), each of unit length."""

NEIGHBOURS = 64
"""Remembered images that a point's slopes are taken towards.

Measured with the last 1,280 answers, two queries an image, cosine of the generator's parameter gradient (mean of
four batches of 256), for 8 / 32 / 64 / 128 neighbours with a ridge of .01, then 64 with .1: untrained student,
digits .58 .71 .67 .74, .77, shapes .27 .34 .39 .38, .41; after 10 % of the budget, digits .18 .15 .12 .15, .18,
shapes .11 .18 .21 .22, .22. The plain difference has .25, .09, .13 and .08.
"""

RIDGE = 0.1
"""Ridge of their least squares as a share of the mean squared distance."""

PIECE = 64
"""Points whose neighbours are looked up together: PIECE * NEIGHBOURS images are in memory at a time."""


def in_two_parts(objective: ImageFunction, kind: str) -> Objective:
    """The objective in its two parts; UserError where the API's part cannot be told from our own."""
    if not isinstance(objective, Objective):
        raise UserError(
            f"kind {kind}: expected an Objective (query and value), got {type(objective).__name__}; "
            "use finite_difference for an objective that is one function"
        )
    return objective


def student_term(objective: Objective, point_BCHW: Tensor, answers: Tensor) -> Tensor:
    """d value(x, a) / d x with the answers held (B, C, H, W): what the student contributes to the gradient.

    Exact and free. No parameter's ``grad`` is touched, whatever mode the caller is in.
    """
    with torch.enable_grad():
        x_BCHW = point_BCHW.detach().requires_grad_()
        value = objective.value_at(x_BCHW, answers.detach()).sum()
    grad_BCHW: Tensor = torch.autograd.grad(value, x_BCHW)[0]
    return grad_BCHW


def student_prior(objective: Objective, point_BCHW: Tensor, answers: Tensor, rng: torch.Generator) -> Tensor:
    """The direction of the student's own gradient at the answers just given.

    Of the two nets behind the objective it knows one: the transfer-based prior of Cheng et al. (NeurIPS 2019).
    """
    return _unit_or_random(student_term(objective, point_BCHW, answers), rng)


def neighbour_prior(objective: Objective, point_BCHW: Tensor, answers: Tensor, rng: torch.Generator) -> Tensor:
    """The direction that explains the objective's values at the nearest images paid for before.

    With y_i = f(x_i) - f(x) towards the NEIGHBOURS nearest remembered images, by the present student and the
    remembered answers, w = sum_i c_i (x_i - x) is the ridge regression of y on the differences of the images:
    (K + r I) c = y with K their Gram matrix. Costs a distance from every point to every remembered image, and
    the student's scores of the latter. Heuristic: it is as good as the objective is straight between neighbours.
    """
    batches = [batch for batch in objective.remembered if len(batch[0])]
    if not batches:
        return _unit_or_random(torch.zeros_like(point_BCHW), rng)
    images_NCHW, kept_answers = (torch.cat(parts) for parts in zip(*batches, strict=True))
    points_BD, images_ND = point_BCHW.flatten(1), images_NCHW.flatten(1).to(point_BCHW.dtype)
    with torch.no_grad():
        pieces = zip(images_NCHW.split(len(point_BCHW)), kept_answers.split(len(point_BCHW)), strict=True)
        remembered_N = torch.cat([objective.value(*piece) for piece in pieces])
        value_B = objective.value_at(point_BCHW, answers)
        near = zip(points_BD.split(PIECE), value_B.split(PIECE), strict=True)
        slopes_BD = torch.cat([_towards_the_nearest(*piece, images_ND, remembered_N) for piece in near])
    return _unit_or_random(slopes_BD.view(point_BCHW.shape), rng)


def _towards_the_nearest(points_BD: Tensor, value_B: Tensor, images_ND: Tensor, remembered_N: Tensor) -> Tensor:
    """What the values of the nearest images say of the gradient at the points (B, D): w of ``neighbour_prior``."""
    index_BR = torch.cdist(points_BD, images_ND).topk(min(NEIGHBOURS, len(images_ND)), largest=False).indices
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
    """Each direction at unit length; a random one in place of what has none. Draws as much either way."""
    random_BCHW = next(DIRECTIONS["sphere"].stream(PerturbedPoint(direction_BCHW), rng))
    # Scaled by the largest coordinate first: the square of a small gradient is no number in fp32.
    largest_B111 = direction_BCHW.abs().amax((1, 2, 3), keepdim=True)
    scaled_BCHW = direction_BCHW / largest_B111
    unit_BCHW = scaled_BCHW / torch.linalg.vector_norm(scaled_BCHW, dim=(1, 2, 3), keepdim=True)
    return torch.where((largest_B111 > 0) & largest_B111.isfinite(), unit_BCHW, random_BCHW)


PRIORS: dict[PriorName, Prior] = {"student": student_prior, "neighbours": neighbour_prior}
