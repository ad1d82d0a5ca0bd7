"""Terms of generators' losses that the students alone decide: no query, and autograd knows their gradient."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import combinations

import torch
from torch import Tensor, nn

from dfme.compute import evaluating


def predict(nets: Sequence[nn.Module], x_BCHW: Tensor) -> Tensor:
    """The scores (E, B, K) of every net in eval mode, with their graph."""
    with ExitStack() as stack:
        for net in nets:
            stack.enter_context(evaluating(net))
        return torch.stack([net(x_BCHW) for net in nets]).float()


def students_disagreement(scores_EBK: Tensor) -> Tensor:
    """The standard deviation (n - 1) of the students' probabilities, mean over images and classes (DisGUIDE)."""
    # At equal probabilities the root has no slope that a float could hold.
    return scores_EBK.softmax(dim=2).var(dim=0).clamp_min(1e-12).sqrt().mean()


def pairwise_distance(scores_EBK: Tensor) -> Tensor:
    """Mean absolute difference of the students' scores, over all pairs of them (Dual Students)."""
    return torch.stack([(a_BK - b_BK).abs().mean() for a_BK, b_BK in combinations(scores_EBK, 2)]).mean()


def class_diversity(scores_EBK: Tensor) -> Tensor:
    """sum_k pbar_k log pbar_k, pbar the mean probabilities over students and batch: least where all classes are alike.

    Source: DisGUIDE's class-diversity and DFMS's diversity loss. In nats.
    """
    mean_K = scores_EBK.softmax(dim=2).mean(dim=(0, 1))
    return (mean_K * mean_K.clamp_min(1e-12).log()).sum()
