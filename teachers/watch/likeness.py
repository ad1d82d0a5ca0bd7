"""How alike images are, in whole numbers: exact, so that no batch and no machine changes a bit."""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

SIDE = 16
MAX_NUMBERS = SIDE * SIDE  # of an image: sums of so many products of 8 bits are exact in float32
DIGEST = 8  # bytes
AT_ONCE = 8_192  # rows


def rows_of(images_BCHW: Tensor) -> Tensor:
    """Images, float32 within 0 and 1, as they are remembered (B, R), int8: what they look like, then a digest.

    An image of at most 256 numbers is its own 8 bits, less 128; a larger one the mean of its channels, averaged to at
    most 16 x 16. The digest is of the very image: of two that differ below 8 bits, neither is the other repeated.
    """
    levels_BCHW, shape = (images_BCHW * 255).round_().clamp_(0, 255), images_BCHW.shape
    if shape[1:].numel() > MAX_NUMBERS:
        grey_B1HW = adaptive_avg_pool2d(levels_BCHW.sum(1, True).double(), (min(shape[2], SIDE), min(shape[3], SIDE)))
        levels_BCHW = (grey_B1HW / shape[1]).round_()
    digests = [hashlib.blake2b(each, digest_size=DIGEST).digest() for each in images_BCHW.contiguous().numpy()]
    number_B1 = torch.tensor([[int.from_bytes(each, "little", signed=True)] for each in digests], dtype=torch.int64)
    return torch.cat([(levels_BCHW.flatten(1) - 128).to(torch.int8), number_B1.view(-1, 1).view(torch.int8)], 1)


def nearest_before(rows_BR: Tensor, past_NR: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """Of each image, the distance to the nearest of the ``window`` before it, and whether it is one of them repeated.

    Before it are the past, oldest first, and the batch's own before it. Distances are L2 of pixels within 0 and 1,
    float64; infinite where there is none before.
    """
    all_MR, past, batch = torch.cat([past_NR, rows_BR]), len(past_NR), len(rows_BR)
    nearest_B, repeats_B = torch.full((batch,), math.inf), torch.zeros(batch, dtype=torch.bool)
    for start in range(0, len(all_MR), AT_ONCE):
        apart_BN = squared(rows_BR, all_MR[start : start + AT_ONCE])
        if start + AT_ONCE > past or past + batch - 1 - start > window:  # some are not before, or too long
            age_BN = torch.arange(past, past + batch)[:, None] - torch.arange(start, start + apart_BN.shape[1])
            apart_BN.masked_fill_((age_BN < 1) | (age_BN > window), math.inf)
        nearest_B = nearest_B.minimum(apart_BN.amin(1))
    for row in (nearest_B == 0).nonzero()[:, 0].tolist():
        repeats_B[row] = among(rows_BR[row], all_MR[max(0, past + row - window) : past + row])
    return nearest_B.double().sqrt() / 255, repeats_B


def among(row_R: Tensor, rows_NR: Tensor) -> bool:
    """Whether the very image is among others."""
    return bool((rows_NR[:, -DIGEST:] == row_R[-DIGEST:]).all(1).any())


def squared(rows_BR: Tensor, others_NR: Tensor) -> Tensor:
    """Squared distances (B, N) in levels, float32, each a whole number."""
    x_BD, y_ND = rows_BR[:, :-DIGEST].float(), others_NR[:, :-DIGEST].float()
    return torch.addmm((y_ND * y_ND).sum(1), x_BD, y_ND.T, alpha=-2).add_((x_BD * x_BD).sum(1)[:, None])
