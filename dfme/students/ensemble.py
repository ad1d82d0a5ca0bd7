"""Several students as one module: their scores side by side, and their soft vote.

E members, B images, K classes; x_BCHW images, scores_EBK one score per member, image and class.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Ensemble(nn.Module):
    """Nets of one architecture on the same images: scores (E, B, K), gradients to each member's own parameters.

    Members are called one by one: vmap over stacked weights took 1.1 to 2.1 times as long on a CPU.
    Raises ValueError without nets, or where their weights differ in name or shape.
    """

    def __init__(self, nets: Sequence[nn.Module]) -> None:
        super().__init__()
        if len({_outline(net) for net in nets}) != 1:
            kinds = ", ".join(type(net).__name__ for net in nets)
            raise ValueError(f"expected nets of one architecture, got {kinds or 'none'}")
        self.members = nn.ModuleList(nets)
        self.training = all(net.training for net in nets)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Scores (E, B, K) before any softmax."""
        return torch.stack([member(x_BCHW) for member in self.members])


class Vote(nn.Module):
    """The soft vote of several nets, as scores: the logarithm of the mean of their class probabilities."""

    def __init__(self, nets: Sequence[nn.Module]) -> None:
        super().__init__()
        self.ensemble = Ensemble(nets)
        self.training = self.ensemble.training  # so that who evaluates a vote gives its members back as they were

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Log-probabilities (B, K)."""
        logs_EBK = self.ensemble(x_BCHW).log_softmax(dim=2)
        vote_BK: Tensor = logs_EBK.logsumexp(dim=0) - math.log(len(logs_EBK))
        return vote_BK


def _outline(net: nn.Module) -> tuple[tuple[str, torch.Size], ...]:
    return tuple((name, value.shape) for name, value in net.state_dict().items())
