"""Which of many candidates are worth paying for: decided by the students alone, so it costs no query."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import one_hot

By = Literal["entropy", "margin", "disagreement", "random"]


def usefulness(scores_ENK: Tensor, by: By, rng: torch.Generator) -> Tensor:
    """How much an answer to each candidate would teach the students (N,), by their scores.

    entropy: of the students' mean probabilities, in nats (CaBaGe, arXiv 2409.10643; DualCOS, ICME 2024).
    margin: how little lies between the vote's two largest probabilities, for labels: the answer says on which side of
    the nearest boundary the image is (Scheffer et al. 2001). disagreement: the standard deviation over the students,
    mean over the classes (DisGUIDE's measure); nothing of one student. random: nobody knows; only balance then chooses.
    """
    if by == "random":
        return torch.rand(scores_ENK.shape[1], generator=rng, device=rng.device).to(scores_ENK.device)
    probabilities_ENK = scores_ENK.softmax(dim=2)
    if by == "disagreement":
        return probabilities_ENK.std(dim=0, correction=0).mean(dim=1)
    vote_NK = probabilities_ENK.mean(dim=0)
    if by == "margin":
        first_N, second_N = vote_NK.topk(2, dim=1).values.unbind(dim=1)
        return second_N - first_N
    return -(vote_NK * vote_NK.clamp_min(1e-12).log()).sum(dim=1)


def choose(scores_ENK: Tensor, count: int, by: By, balance: bool, rng: torch.Generator) -> Tensor:
    """Indices (count,) of the candidates to pay for, in increasing order.

    With ``balance`` the classes that the vote sees take turns, each with its most useful candidate left: a class with
    few candidates gives all of them, and the others share what it leaves.
    """
    vote_NK = scores_ENK.softmax(dim=2).mean(dim=0)
    useful_N = _ranks(usefulness(scores_ENK, by, rng))
    if balance:
        turn_N = _turns(useful_N, vote_NK.argmax(dim=1), vote_NK.shape[1])
        useful_N = useful_N - turn_N * len(useful_N)
    return useful_N.topk(count).indices.sort().values


def _ranks(values_N: Tensor) -> Tensor:
    """0 for the smallest, N - 1 for the largest; of equals the earlier one is taken for smaller."""
    return values_N.argsort(stable=True).argsort(stable=True)


def _turns(rank_N: Tensor, class_N: Tensor, classes: int) -> Tensor:
    """How many candidates of the same class have a higher rank."""
    order_N = rank_N.argsort(descending=True)
    before_N = one_hot(class_N[order_N], classes).cumsum(dim=0).gather(1, class_N[order_N, None]).squeeze(1) - 1
    return torch.empty_like(before_N).scatter(0, order_N, before_N)
