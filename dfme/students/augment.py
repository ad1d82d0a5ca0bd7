"""Paid images that are trained on again, changed a little: mirrored, moved, or affinely mapped."""

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from dfme.config.settings import Augmentation

TURN = (
    0.2  # most radians that an affine map turns an image by; the other bounds of such a map follow
)
SHEAR = 0.2
STRETCH = 0.15  # of each axis by itself
MOVE = 0.075  # of the image's side


def augment(x_BCHW: Tensor, how: Augmentation, rng: torch.Generator) -> Tensor:
    """Images mirrored with probability 1/2, moved by -1, 0 or 1 pixel per axis, both, or affinely
    mapped.

    What moves in from outside repeats the edge. ``none`` gives the same tensor and draws nothing;
    else it is a new one, of any dtype, with the draws made on the device of ``rng``.
    """
    if how == "none":
        return x_BCHW
    if how == "affine":
        return _affine(x_BCHW, rng)
    batch, channels, height, width = x_BCHW.shape
    row_1H = torch.arange(height, device=rng.device)[None]
    column_BW = torch.arange(width, device=rng.device).expand(batch, width)
    if how != "shift":
        flipped_B1 = torch.randint(2, (batch, 1), generator=rng, device=rng.device)
        column_BW = torch.where(flipped_B1 == 1, width - 1 - column_BW, column_BW)
    row_BH = row_1H.expand(batch, height)
    if how != "flip":
        down_B1, right_B1 = torch.randint(
            -1, 2, (2, batch, 1), generator=rng, device=rng.device
        ).unbind()
        row_BH = (row_BH - down_B1).clamp(0, height - 1)
        column_BW = (column_BW - right_B1).clamp(0, width - 1)
    # One gather by the place of each pixel: a third of the time of indexing rows, then columns.
    pixel_BN = (row_BH[:, :, None] * width + column_BW[:, None]).flatten(1).to(x_BCHW.device)
    return (
        x_BCHW.flatten(2).gather(2, pixel_BN[:, None].expand(-1, channels, -1)).view(x_BCHW.shape)
    )


def _affine(x_BCHW: Tensor, rng: torch.Generator) -> Tensor:
    """Each image by a map of its own, evenly drawn within the bounds above; pixels are
    interpolated.
    """
    draws_6B = 2 * torch.rand(6, len(x_BCHW), generator=rng, device=rng.device) - 1
    turn_B, shear_B, wide_B, high_B, right_B, down_B = draws_6B.to(x_BCHW.device)
    cos_B, sin_B = (TURN * turn_B).cos(), (TURN * turn_B).sin()
    wide_B = 1 + STRETCH * wide_B
    high_B = 1 + STRETCH * high_B
    # a grid's axes run from -1 to 1 whatever the sides are, but a turn is one of pixels
    aspect = x_BCHW.shape[2] / x_BCHW.shape[3]
    rows = [wide_B * cos_B, aspect * (SHEAR * shear_B - high_B * sin_B), 2 * MOVE * right_B]
    rows += [wide_B * sin_B / aspect, high_B * cos_B, 2 * MOVE * down_B]
    grid_BHW2 = affine_grid(
        torch.stack(rows, 1).view(-1, 2, 3), list(x_BCHW.shape), align_corners=False
    )
    mapped_BCHW = grid_sample(x_BCHW.float(), grid_BHW2, padding_mode="border", align_corners=False)
    return mapped_BCHW.to(x_BCHW.dtype)
