"""A net that learnt from few images, made ready to learn from more.

Ash and Adams 2020, "On Warm-Starting Neural Network Training" (NeurIPS; arXiv 1910.08475): a net trained on part of the
data and then on all of it generalises worse than one trained on all of it from the start. Weights that are shrunk
towards zero, and to which fresh ones are added, do not, and learn faster than fresh ones alone.
"""

from __future__ import annotations

import torch
from torch import nn


def shrink_and_perturb(net: nn.Module, fresh: nn.Module, kept: float) -> None:
    """Every parameter becomes ``kept`` (0 to 1) of itself and 1 - ``kept`` of that of ``fresh``, of the same form.

    The paper adds fresh weights of a scale of its own (0.01) to what is left; here the two make up a whole, so 0 is
    a fresh net and 1 the old one. Buffers stay: batch normalisation's averages follow within a few dozen steps.
    """
    with torch.no_grad():
        for own, new in zip(net.parameters(), fresh.parameters(), strict=True):
            own.lerp_(new.to(own.device), 1.0 - kept)
