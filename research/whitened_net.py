"""Variants of `cnn_whitened` that `research.fast_student` compares."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from dfme.nets.whitened import PATCH, WhitenedCnn

WIDTHS = (64, 256, 256)
NARROW = (32, 128, 128)
LEAST_VARIANCE = 5e-4  # added to the variance along each direction, of pixels of deviation 1
SAMPLE = 5000  # images that directions are taken from


class PrincipalNet(nn.Module):
    """`cnn_whitened` whose directions are the principal ones of given images, as published.

    They are scaled to a variance of 1 there, and stay as they are.
    """

    def __init__(self, channels: int, classes: int, widths: tuple[int, int, int] = WIDTHS) -> None:
        super().__init__()
        self.net = WhitenedCnn(widths, channels, classes)
        self.net.add_module("whitening", nn.Identity())

    def whiten(self, x_NCHW: Tensor) -> None:
        """Take the directions of these images; before the first step, since it waits for them."""
        self.net.stem.weight.copy_(principal_filters(x_NCHW[:SAMPLE]))

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Scores (B, K) before any softmax."""
        scores_BK: Tensor = self.net(x_BCHW)
        return scores_BK


def principal_filters(x_NCHW: Tensor) -> Tensor:
    """Filters (4C, C, 2, 2): the directions of the variance of all patches, of a variance of 1.

    Scaled so but for ``LEAST_VARIANCE``.
    """
    channels = x_NCHW.shape[1]
    patches_NDP = F.unfold(x_NCHW.float(), PATCH)
    patches_MD = patches_NDP.transpose(1, 2).reshape(-1, channels * PATCH * PATCH)
    variance_D, directions_DD = torch.linalg.eigh(patches_MD.T.cov())
    filters_DD = directions_DD.T / (variance_D + LEAST_VARIANCE).sqrt()[:, None]
    filters_DCPP: Tensor = filters_DD.reshape(-1, channels, PATCH, PATCH)
    return filters_DCPP
