"""What answers say of a head's scores, as convex losses: N images, K classes, one number a loss.

The scores' constant per image is free: entropy does not see it, and log-odds are taken against the
class that the teacher answered.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from dfme.answers.reading import top_class
from dfme.spec import LabelMode
from dfme.students.losses import SMALLEST, log_probabilities

RELATIVE_STEP = 2.0**-23
"""What a float32 probability may be off, as a share of it: the rounding, and that of a softmax."""
FLOOR = 0.1
"""Deviation of log-odds below which an answer is not weighed more: heuristic, measured.

Weights in proportion to 1 / step^2 differ by ten orders of magnitude at six decimals; a descent of
some hundred steps does not come near the minimum then.
"""
BOUND = 0.3
"""Deviation of log-odds above an upper bound; heuristic."""


class HeadLoss(Protocol):
    """A loss of scores (N, K), a mean over images; ``curvature_N``, roughly, in each image's."""

    curvature_N: Tensor

    def __call__(self, scores_NK: Tensor) -> Tensor: ...


def targets(answers: Tensor, mode: LabelMode, num_classes: int) -> Tensor:
    """Probabilities (N, K) of the answers, adding up to one, float64."""
    if mode.kind == "label":
        return one_hot(top_class(answers), num_classes).double()
    p_NK = log_probabilities(answers.double(), mode).exp()
    return p_NK / p_NK.sum(dim=1, keepdim=True).clamp_min(SMALLEST)


class Entropy:
    """Cross-entropy of probabilities: multinomial logistic regression."""

    def __init__(self, target_NK: Tensor, hard: bool) -> None:
        self._target_NK = target_NK
        p_NK = target_NK
        if hard:  # a fit's own probabilities will be softer
            p_NK = 0.6 * target_NK + 0.4 / target_NK.shape[1]
        self.curvature_N = (p_NK * (1 - p_NK)).mean(dim=1).clamp_min(1e-4) / 2

    def __call__(self, scores_NK: Tensor) -> Tensor:
        return -(self._target_NK * scores_NK.log_softmax(dim=1)).sum(dim=1).mean()


@dataclass(frozen=True)
class Intervals:
    """Limits of the log-odds against the class answered, (N, K); ``open_NK`` where no lower one is
    known. ``top_N1``: the class.
    """

    low_NK: Tensor
    high_NK: Tensor
    open_NK: Tensor
    top_N1: Tensor

    @classmethod
    def of(cls, answers_NK: Tensor, mode: LabelMode) -> Intervals:
        """From scores: half a step of rounding to each side; of float32's own where not rounded."""
        scores_NK = answers_NK.double()
        top_N1 = top_class(answers_NK)[:, None]
        if mode.kind == "logits":
            odds_NK = scores_NK - scores_NK.gather(1, top_N1)
            width_NK = RELATIVE_STEP * scores_NK.abs().amax(dim=1, keepdim=True)
            nowhere_NK = torch.zeros_like(odds_NK, dtype=torch.bool)
            return cls(odds_NK - width_NK, odds_NK + width_NK, nowhere_NK, top_N1)
        hidden_NK = scores_NK.isnan()
        revealed_NK = scores_NK.nan_to_num(nan=1.0)
        p_NK = torch.where(hidden_NK, revealed_NK.amin(dim=1, keepdim=True), scores_NK)
        step_NK = RELATIVE_STEP * p_NK
        least = float(SMALLEST)
        if mode.decimals is not None:
            step_NK = torch.full_like(p_NK, 0.5 * 10.0**-mode.decimals)
            least = 0.0
        top_p_N1 = p_NK.gather(1, top_N1)
        top_step_N1 = step_NK.gather(1, top_N1)
        most_N1 = (top_p_N1 + top_step_N1).clamp_max(1.0)
        fewest_N1 = (top_p_N1 - top_step_N1).clamp_min(SMALLEST)
        high_NK = ((p_NK + step_NK).clamp_min(least) / fewest_N1).log().clamp_max(0.0)
        below_NK = p_NK - step_NK
        open_NK = hidden_NK | ~(below_NK > 0)
        low_NK = (below_NK.clamp_min(SMALLEST) / most_N1).log()
        return cls(torch.minimum(low_NK, high_NK), high_NK, open_NK, top_N1)

    def at(self, indices_N: Tensor) -> Intervals:
        """Those of some of the images."""
        return Intervals(
            self.low_NK[indices_N],
            self.high_NK[indices_N],
            self.open_NK[indices_N],
            self.top_N1[indices_N],
        )

    def odds(self, scores_NK: Tensor) -> Tensor:
        """Log-odds of scores against the class answered."""
        return scores_NK - scores_NK.gather(1, self.top_N1)


class LogOdds:
    """Squared errors of log-odds, by the deviation that rounding gives them; above a bound alone
    where an answer is only that.
    """

    def __init__(self, intervals: Intervals) -> None:
        self.intervals = intervals
        open_NK = intervals.open_NK
        width_NK = intervals.high_NK - intervals.low_NK
        variance_NK = (width_NK.square() / 12 + FLOOR**2).masked_fill(open_NK, BOUND**2)
        middle_NK = (intervals.high_NK + intervals.low_NK) / 2
        self.centre_NK = torch.where(open_NK, intervals.high_NK, middle_NK)
        self.weight_NK = variance_NK.reciprocal().scatter(1, intervals.top_N1, 0.0)
        share_NK = torch.where(open_NK, 0.3, 1.0)  # heuristic: few press against their bound
        self.curvature_N = (self.weight_NK * share_NK).mean(dim=1)

    def __call__(self, scores_NK: Tensor) -> Tensor:
        error_NK = self.intervals.odds(scores_NK).double() - self.centre_NK
        below_NK = self.intervals.open_NK & (error_NK < 0)
        error_NK = error_NK.masked_fill(below_NK, 0.0)
        return (self.weight_NK * error_NK.square()).sum(dim=1).mean() / 2

    def residual(self, scores_NK: Tensor) -> float:
        """Median error of the log-odds that are more than a bound, over their median distance from
        the median.
        """
        known_NK = (self.weight_NK > 0) & ~self.intervals.open_NK
        if not bool(known_NK.any()):
            return math.inf
        truth = self.centre_NK[known_NK]
        error = (self.intervals.odds(scores_NK)[known_NK] - truth).abs().median()
        spread = (truth - truth.median()).abs().median().clamp_min(SMALLEST)
        return float(error / spread)
