"""Random directions to probe along, and the factor that makes each kind's estimate unbiased."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

DirectionName = Literal["sphere", "gaussian", "rademacher"]

# Gaussian draws are cut here so that the reach of a probe is known; it touches 2 draws in a thousand million.
GAUSSIAN_REACH = 6.0


@dataclass(frozen=True)
class Direction:
    """One distribution of directions v over R^D.

    ``draw(like_BCHW, rng)``: one direction per image, in the shape, dtype and device of ``like_BCHW``.
    ``scale(D)``: the s with s * E[v v^T] = I, so that s * (v . g) * v has the mean g.
    ``reach``: no coordinate of v is larger than this in size.
    """

    draw: Callable[[Tensor, torch.Generator], Tensor]
    scale: Callable[[int], float]
    reach: float


def _normal(like: Tensor, rng: torch.Generator) -> Tensor:
    # Always in row-major order, so that the memory format of the point does not change the draws.
    return torch.randn(like.shape, generator=rng, dtype=like.dtype, device=like.device)


def _sphere(like: Tensor, rng: torch.Generator) -> Tensor:
    v_BCHW = _normal(like, rng)
    return v_BCHW.div_(torch.linalg.vector_norm(v_BCHW, dim=(1, 2, 3), keepdim=True))


def _gaussian(like: Tensor, rng: torch.Generator) -> Tensor:
    return _normal(like, rng).clamp_(-GAUSSIAN_REACH, GAUSSIAN_REACH)


def _rademacher(like: Tensor, rng: torch.Generator) -> Tensor:
    v_BCHW = torch.empty(like.shape, dtype=like.dtype, device=like.device)
    return v_BCHW.bernoulli_(0.5, generator=rng).mul_(2).sub_(1)


DIRECTIONS: dict[DirectionName, Direction] = {
    "sphere": Direction(_sphere, scale=float, reach=1.0),
    "gaussian": Direction(_gaussian, scale=lambda _: 1.0, reach=GAUSSIAN_REACH),
    "rademacher": Direction(_rademacher, scale=lambda _: 1.0, reach=1.0),
}
