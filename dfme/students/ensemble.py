"""Several students as one: an ensemble that learns together, and its vote."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Ensemble(nn.Module):
    """Nets of one architecture on the same images: scores (E, B, K), gradients to each member.

    Members are called one by one: vmap over stacked weights took 1.1 to 2.1 times as long on a CPU.
    """

    def __init__(self, nets: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(nets)
        self.training = all(net.training for net in nets)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Scores (E, B, K) before any softmax."""
        return torch.stack([member(x_BCHW) for member in self.members])


class Vote(nn.Module):
    """The soft vote of several nets, as scores: the logarithm of the mean of their class
    probabilities.
    """

    def __init__(self, nets: Sequence[nn.Module]) -> None:
        super().__init__()
        self.ensemble = Ensemble(nets)
        # so that who evaluates a vote gives its members back as they were
        self.training = self.ensemble.training

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Log-probabilities (B, K)."""
        logs_EBK = self.ensemble(x_BCHW).log_softmax(dim=2)
        vote_BK: Tensor = logs_EBK.logsumexp(dim=0) - math.log(len(logs_EBK))
        return vote_BK
