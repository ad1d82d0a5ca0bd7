"""Distances of student scores to teacher answers, one number per image, for any label mode."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from dfme.answers.reading import top_class
from dfme.errors import Ref, UserError, say
from dfme.spec import LabelMode


@dataclass(frozen=True)
class Distance:
    """Distance of a student's scores from a teacher's answers, one number per image.

    The answers' share of the work comes first and once: ``target`` turns answers into what is
    learnt, and ``between`` maps scores (B, K) and a target to (B,). A call does both.
    """

    target: Callable[[Tensor], Tensor]
    between: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, scores_BK: Tensor, answers: Tensor) -> Tensor:
        return self.between(scores_BK, self.target(answers))


AUTO_LOSS = {
    "logits": "l1",
    "probabilities": "l1",
    "top_k": "kl",
    "label": "cross_entropy",
}
FITTING_LOSSES = dict.fromkeys(AUTO_LOSS, ("l1", "kl", "cross_entropy")) | {
    "label": ("cross_entropy",)
}
SMALLEST = torch.finfo(
    torch.float32
).tiny  # for zero under a logarithm: it weighs nothing in an expectation

BOUND_MARK = 1024.0
"""Subtracted from a recovered logit that is only an upper bound: a target is one float per class.

Recovered logits lie within +-88 (the logarithm of ``SMALLEST``), so a value below -512 is marked.
In float32 a marked bound is exact to 6e-5, and no bound is known that well.
"""


def probability_floor(mode: LabelMode) -> float:
    """Largest value behind an answer of exactly zero: half a rounding step, or what float32
    resolves at 1.
    """
    return 0.5 * 10.0**-mode.decimals if mode.decimals is not None else 1e-7


def log_probabilities(answers_BK: Tensor, mode: LabelMode) -> Tensor:
    """Log-probabilities (B, K), finite, to weigh by the probabilities themselves, as KL does.

    Logits are normalised. A probability of zero stays one: its logarithm is that of ``SMALLEST``.
    In ``top_k`` answers the mass not revealed is spread evenly over the classes not revealed, each
    at most the smallest revealed one (heuristic: the answer says no more). Measured (digits teacher
    on its training images, a student after 600 steps on generated ones): the cosine of KL's
    gradient in the scores to that on unrounded answers is .99, .97, .93 at 4, 3, 2 decimals, and
    .89, .51, -.03 with zeros raised to half a rounding step.
    """
    if mode.kind == "logits":
        return answers_BK.log_softmax(dim=1)
    if mode.kind == "top_k":
        answers_BK = torch.where(
            answers_BK.isnan(), _share_of_the_rest(answers_BK, mode), answers_BK
        )
    return answers_BK.clamp_min(SMALLEST).log()


def unresolved(answers_BK: Tensor) -> Tensor:
    """Mask (B, K) of answers that are upper bounds: exact zeros, and classes not revealed."""
    return ~(answers_BK > 0)


def recovered_logits(answers_BK: Tensor, unresolved_BK: Tensor, mode: LabelMode) -> Tensor:
    """Logits up to a constant per image: rec(p) = log p - mean_k log p (Truong et al. 2021, section
    3.4).

    An ``unresolved`` class counts with its bound: its even share of the mass not revealed, at least
    ``probability_floor`` and at most the least answer that is resolved.
    """
    bounded_BK = torch.where(unresolved_BK, _bound(answers_BK, mode), answers_BK)
    least = SMALLEST if mode.decimals is None else probability_floor(mode)
    return _centred(bounded_BK.clamp_min(least).log())


def make_distance(loss: str, mode: LabelMode) -> Distance:
    """The distance ``loss`` (auto, l1, kl or cross_entropy) for answers of ``mode``.

    l1: mean_k |S - rec(T)|, the student's scores not centred (the loss makes them so). An
    unresolved class is known only to lie at or below its bound, so there the error is max(0, S -
    bound), and the constant that recovery takes off is unknown, so S is shifted by its mean error
    over the resolved classes: the true logits have no error, whatever they are. In ``top_k``
    answers that is every class not revealed; the bound, an even share of the rest, is a heuristic
    that holds on average (the mean of a logarithm is at most the logarithm of the mean). kl: KL(T
    || S) in nats. cross_entropy: on the class the teacher answered.

    Measured: a student of the digits teacher, 450 steps on 20,000 images of an untrained generator,
    agreement with the unrounded teacher in per cent, mean of seeds 0 to 2, whose deviation is .6 to
    5. Unrounded: l1 93, kl 84. At 4, 3, 2 decimals: l1 90, 86, 79; with zeros taken at their word
    77, 71, 65; kl 85, 85, 85. With zeros left out at 4 and 2 decimals: 84, 60; with a dead zone of
    the rounding interval around every answer: 90, 79, so there is none. The same rounding
    undeclared: 91, 82; with a floor of 1e-38 78, 65. Top 3 and top 1, seeds 0 and 1: l1 82, 67;
    with the share taken at its word 68, 45; kl 82, 80, hence ``auto``.

    Raises UserError where the mode does not reveal what the loss needs.
    """
    loss = AUTO_LOSS[mode.kind] if loss == "auto" else loss
    if loss not in (able := FITTING_LOSSES[mode.kind]):
        fitting = ", ".join(able)
        raise UserError(
            say(
                "{} cannot use a teacher that answers {}; use one of {}",
                Ref("student.loss", loss),
                mode,
                fitting,
            )
        )
    if loss == "kl":
        return Distance(partial(log_probabilities, mode=mode), _kl)
    if loss == "cross_entropy":
        return Distance(top_class, partial(cross_entropy, reduction="none"))
    if mode.kind == "logits":
        return Distance(_centred, _l1)
    return Distance(partial(_marked_logits, mode=mode), _bounded_l1)


def _l1(scores_BK: Tensor, logits_BK: Tensor) -> Tensor:
    return (scores_BK - logits_BK).abs().mean(dim=1)


def _marked_logits(answers_BK: Tensor, mode: LabelMode) -> Tensor:
    """Recovered logits as a replay keeps them: an upper bound is marked by ``BOUND_MARK``."""
    bound_BK = unresolved(answers_BK)
    return recovered_logits(answers_BK, bound_BK, mode).add(bound_BK, alpha=-BOUND_MARK)


def _bounded_l1(scores_BK: Tensor, marked_BK: Tensor) -> Tensor:
    """L1 without loss below an upper bound; rows without bounds equal ``_l1`` bit for bit.

    In a row with bounds the constant that recovery took off is no knowledge: it follows from the
    bounds. So the scores are shifted to have, over the resolved classes, no error on average.
    """
    bound_BK = marked_BK < -0.5 * BOUND_MARK
    error_BK = scores_BK - marked_BK.add(bound_BK, alpha=BOUND_MARK)
    resolved_B1 = (~bound_BK).sum(dim=1, keepdim=True)
    shift_B1 = error_BK.masked_fill(bound_BK, 0.0).sum(dim=1, keepdim=True) / resolved_B1.clamp_min(
        1
    )
    error_BK = torch.where(resolved_B1 < bound_BK.shape[1], error_BK - shift_B1, error_BK)
    return error_BK.masked_fill(bound_BK & (error_BK < 0), 0.0).abs().mean(dim=1)


def _kl(scores_BK: Tensor, target_BK: Tensor) -> Tensor:
    return (target_BK.exp() * (target_BK - scores_BK.log_softmax(dim=1))).sum(dim=1)


def _centred(scores_BK: Tensor) -> Tensor:
    return scores_BK - scores_BK.mean(dim=1, keepdim=True)


def _least_revealed(answers_BK: Tensor, mode: LabelMode) -> Tensor:
    """Bound of an unresolved class, (B, 1): the smallest answer, a zero taken at its largest."""
    revealed_BK = answers_BK.masked_fill(answers_BK <= 0, probability_floor(mode))
    return revealed_BK.nan_to_num(nan=1.0).amin(dim=1, keepdim=True)


def _share_of_the_rest(answers_BK: Tensor, mode: LabelMode) -> Tensor:
    """An even share, for each class not revealed, of the mass not revealed, (B, 1)."""
    rest_B1 = (1.0 - answers_BK.nansum(dim=1, keepdim=True)).clamp_min(0.0)
    share_B1 = rest_B1 / answers_BK.isnan().sum(dim=1, keepdim=True).clamp_min(1)
    return torch.minimum(share_B1, _least_revealed(answers_BK, mode))


def _bound(answers_BK: Tensor, mode: LabelMode) -> Tensor:
    """Upper limit of an unresolved class, (B, 1)."""
    floor = probability_floor(mode)
    least_B1 = _least_revealed(answers_BK, mode)
    if mode.kind != "top_k":
        return least_B1.clamp_max(floor)
    return torch.minimum(_share_of_the_rest(answers_BK, mode).clamp_min(floor), least_B1)
