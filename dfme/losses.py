"""Distances between a student's scores and a teacher's answers, one number per image, for every label mode."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from dfme.errors import UserError
from dfme.spec import LabelMode


@dataclass(frozen=True)
class Distance:
    """How far a student's scores are from a teacher's answers, one number per image.

    The answers' share of the work comes first and once: ``target`` turns answers into what is learnt, and
    ``between`` maps scores (B, K) and a target to (B,). A call does both.
    """

    target: Callable[[Tensor], Tensor]
    between: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, scores_BK: Tensor, answers: Tensor) -> Tensor:
        return self.between(scores_BK, self.target(answers))


AUTO_LOSS = {"logits": "l1", "probabilities": "l1", "top_k": "kl", "label": "cross_entropy"}
FITTING_LOSSES = {
    "logits": ("l1", "kl", "cross_entropy"),
    "probabilities": ("l1", "kl", "cross_entropy"),
    "top_k": ("kl", "cross_entropy"),
    "label": ("cross_entropy",),
}


def probability_floor(mode: LabelMode) -> float:
    """The least probability an answer can stand for: half a rounding step, or the smallest float32 there is."""
    return 0.5 * 10.0**-mode.decimals if mode.decimals is not None else torch.finfo(torch.float32).tiny


def log_probabilities(answers_BK: Tensor, mode: LabelMode) -> Tensor:
    """Log-probabilities (B, K) from answers with scores.

    Logits are normalised. Probabilities are floored at half a rounding step. In ``top_k`` answers the mass
    not revealed is spread evenly over the classes not revealed (heuristic: the answer says no more).
    """
    if mode.kind == "logits":
        return answers_BK.log_softmax(dim=1)
    if mode.kind == "top_k":
        unknown_BK = answers_BK.isnan()
        rest_B1 = (1.0 - answers_BK.nansum(dim=1, keepdim=True)).clamp_min(0.0)
        share_B1 = rest_B1 / unknown_BK.sum(dim=1, keepdim=True).clamp_min(1)
        answers_BK = torch.where(unknown_BK, share_B1, answers_BK)
    return answers_BK.clamp_min(probability_floor(mode)).log()


def recovered_logits(answers_BK: Tensor, mode: LabelMode) -> Tensor:
    """Logits up to a constant per image: rec(p) = log p - mean_k log p (Truong et al. 2021, section 3.4)."""
    scores_BK = answers_BK if mode.kind == "logits" else log_probabilities(answers_BK, mode)
    return scores_BK - scores_BK.mean(dim=1, keepdim=True)


def top_class(answers: Tensor) -> Tensor:
    """The class a teacher answered, (B,), from scores of any mode or from labels."""
    return answers if answers.ndim == 1 else answers.nan_to_num(nan=-math.inf).argmax(dim=1)


def make_distance(loss: str, mode: LabelMode) -> Distance:
    """The distance ``loss`` (auto, l1, kl or cross_entropy) for answers of ``mode``.

    l1: mean_k |S - rec(T)|, the student's scores not centred (the loss makes them so).
    kl: KL(T || S) in nats. cross_entropy: on the class the teacher answered.

    Raises UserError where the mode does not reveal what the loss needs.
    """
    loss = AUTO_LOSS[mode.kind] if loss == "auto" else loss
    if loss not in FITTING_LOSSES[mode.kind]:
        fitting = ", ".join(FITTING_LOSSES[mode.kind])
        raise UserError(f"--student.loss {loss} cannot use a teacher that answers {mode}; use one of {fitting}")

    distances = {
        "l1": Distance(lambda answers: recovered_logits(answers, mode), _l1),
        "kl": Distance(lambda answers: log_probabilities(answers, mode), _kl),
        "cross_entropy": Distance(top_class, partial(cross_entropy, reduction="none")),
    }
    return distances[loss]


def _l1(scores_BK: Tensor, logits_BK: Tensor) -> Tensor:
    return (scores_BK - logits_BK).abs().mean(dim=1)


def _kl(scores_BK: Tensor, target_BK: Tensor) -> Tensor:
    return (target_BK.exp() * (target_BK - scores_BK.log_softmax(dim=1))).sum(dim=1)
