"""Shapes: a procedural task of ten coloured shapes, of any size, from a seed and no file.

Every image has one shape, turned, scaled, placed and coloured at random, on a plain or textured
ground.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from dfme.data.drawn import draw, drawn_config
from dfme.data.images import DatasetRequest, ImageSet

# name -> whether a point (u, v), measured in radii from the centre, lies inside
OUTLINES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "disc": lambda u, v: u.hypot(v) < 0.8,
    "ring": lambda u, v: ((radius := u.hypot(v)) < 1.0) & (radius > 0.55),
    "half disc": lambda u, v: (u.hypot(v + 0.4) < 1.0) & (v > -0.4),
    "square": lambda u, v: (u.abs() < 0.7) & (v.abs() < 0.7),
    "triangle": lambda u, v: (v > -0.5) & (v + math.sqrt(3) * u.abs() < 1.0),
    "bar": lambda u, v: (u.abs() < 0.22) & (v.abs() < 1.0),
    "cross": lambda u, v: torch.minimum(u.abs(), v.abs()) < 0.22,
    "ell": lambda u, v: (
        ((u + 0.4).abs() < 0.22) & (v.abs() < 0.9)
        | ((v + 0.68).abs() < 0.22) & ((u - 0.1).abs() < 0.72)
    ),
    "tee": lambda u, v: (
        (u.abs() < 0.22) & (v.abs() < 0.9) | ((v - 0.68).abs() < 0.22) & (u.abs() < 0.75)
    ),
    "two dots": lambda u, v: u.hypot(v.abs() - 0.6) < 0.4,
}


def load(request: DatasetRequest) -> ImageSet:
    """20,000 images to train with, 2,000 others held out, at the size asked for."""
    return draw(drawn_config(request, (3, 12, 12)), tuple(OUTLINES), _inside)


def _inside(labels: Tensor, u: Tensor, v: Tensor, rng: torch.Generator) -> Tensor:
    inside = torch.zeros_like(u, dtype=torch.bool)
    for index, outline in enumerate(OUTLINES.values()):
        chosen = (labels == index).nonzero().squeeze(1)
        inside[chosen] = outline(u[chosen], v[chosen]) & (u[chosen].hypot(v[chosen]) < 1.05)
    return inside
