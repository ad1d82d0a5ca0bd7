"""Colour gradients: from one random colour to another along a line or from a point, once or in
waves.

No paper: the smooth end of what a picture can be, where leaves are all edges.
"""

import math

import torch
from torch import Tensor

from dfme.queries.programs.canvas import in_chunks, log_uniform, pixel_grid, uniform
from dfme.spec import ImageSpec

LENGTHS = (0.25, 4.0)  # of the way from one colour to the other, in halves of the shorter side


@in_chunks
def draw(count: int, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    """``count`` images (B, C, H, W), float32 within the bounds, on the device of ``rng``."""
    one = (count, 1, 1)
    channels = spec.shape[0]
    position_BHW = _position(count, spec, rng).div_(log_uniform(one, *LENGTHS, rng))
    phase_B11 = uniform(one, -1, 1, rng)
    ramp_BHW = (position_BHW + phase_B11).mul_(0.5).add_(0.5).clamp_(0, 1)
    wave_BHW = position_BHW.add_(phase_B11).mul_(math.pi).sin_().mul_(0.5).add_(0.5)
    share_BHW = torch.where(uniform(one, 0, 1, rng) < 0.5, ramp_BHW, wave_BHW)
    first, second = uniform((2, count, channels, 1, 1), 0, 1, rng).unbind()
    return torch.lerp(first, second, share_BHW.unsqueeze(1))


def _position(count: int, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    """Where a pixel stands: along a line of any direction, or away from any point of the image, (B,
    H, W).
    """
    one = (count, 1, 1)
    x_1W, y_H1 = pixel_grid(spec, rng.device)
    centre_x = uniform(one, -1, 1, rng) * x_1W.amax()
    centre_y = uniform(one, -1, 1, rng) * y_H1.amax()
    angle = uniform(one, 0, 2 * math.pi, rng)
    dx_B1W = x_1W - centre_x
    dy_BH1 = y_H1 - centre_y
    along_BHW = dx_B1W * angle.cos() + dy_BH1 * angle.sin()
    return torch.where(uniform(one, 0, 1, rng) < 0.5, along_BHW, dx_B1W.hypot(dy_BH1))
