"""Augmentation of paid images: flipped or shifted by a pixel, an image keeps its answer and costs nothing.

Source: QEDG (AAAI 2025), which reuses a paid answer for the flipped and the shifted image. That the answer holds is an
assumption about the teacher, and a bold one for small images, where a pixel is a large part of an object.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Augmentation = Literal["none", "flip", "shift", "both"]


def augment(x_BCHW: Tensor, how: Augmentation, rng: torch.Generator) -> Tensor:
    """The images, each flipped left to right with probability 1/2, moved by -1, 0 or 1 pixel per axis, or both.

    What moves in from outside repeats the edge, so every value comes from the image itself. ``none`` gives the same
    tensor and draws nothing; else a new one, of any dtype, with the draws made on the device of ``rng``.
    """
    if how == "none":
        return x_BCHW
    batch, channels, height, width = x_BCHW.shape
    row_1H = torch.arange(height, device=rng.device)[None]
    column_BW = torch.arange(width, device=rng.device).expand(batch, width)
    if how != "shift":
        flipped_B1 = torch.randint(2, (batch, 1), generator=rng, device=rng.device)
        column_BW = torch.where(flipped_B1 == 1, width - 1 - column_BW, column_BW)
    row_BH = row_1H.expand(batch, height)
    if how != "flip":
        down_B1, right_B1 = torch.randint(-1, 2, (2, batch, 1), generator=rng, device=rng.device).unbind()
        row_BH = (row_BH - down_B1).clamp(0, height - 1)
        column_BW = (column_BW - right_B1).clamp(0, width - 1)
    # One gather by the place of each pixel: a third of the time of indexing rows and columns one after the other.
    pixel_BN = (row_BH[:, :, None] * width + column_BW[:, None]).flatten(1).to(x_BCHW.device)
    return x_BCHW.flatten(2).gather(2, pixel_BN[:, None].expand(-1, channels, -1)).view(x_BCHW.shape)
