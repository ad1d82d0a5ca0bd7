"""Training images moved and mirrored, a batch of tensors at a time."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def shift(x_BCHW: Tensor, padding: int, flip: bool, rng: torch.Generator) -> Tensor:
    """Each image moved by up to ``padding`` pixels either way, on black, and mirrored by chance if ``flip``.

    ``rng`` lives on the CPU, so that the draws are the same on every device.
    """
    batch, _, height, width = x_BCHW.shape
    top_B, left_B = torch.randint(0, 2 * padding + 1, (2, batch), generator=rng)
    rows_BH = top_B[:, None] + torch.arange(height)
    columns_BW = left_B[:, None] + torch.arange(width)
    if flip:
        mirrored_B = torch.rand(batch, generator=rng) < 0.5
        columns_BW = torch.where(mirrored_B[:, None], columns_BW.flip(1), columns_BW)
    padded_BCHW = nn.functional.pad(x_BCHW, (padding,) * 4)
    images_B11 = torch.arange(batch, device=x_BCHW.device)[:, None, None]
    rows_BH1 = rows_BH[:, :, None].to(x_BCHW.device)
    columns_B1W = columns_BW[:, None, :].to(x_BCHW.device)
    return padded_BCHW[images_B11, :, rows_BH1, columns_B1W].permute(0, 3, 1, 2).contiguous()
