"""Whether scores are the shares of right answers that they seem to be."""

import torch
from torch import Tensor

BINS = 15


def binned_gaps(scores_N: Tensor, right_N: Tensor) -> Tensor:
    """Right (1) or wrong (0) less its score, of each image in the bin of its score: (N, ``BINS``), float64."""
    bins_N1 = (scores_N[:, None] * BINS).ceil().long().clamp(1, BINS) - 1
    gaps_N1 = right_N[:, None].double() - scores_N[:, None].double()
    return torch.zeros(len(scores_N), BINS, dtype=torch.float64).scatter_(1, bins_N1, gaps_N1)
