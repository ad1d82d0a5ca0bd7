"""How far a head's scores (N, K) are from answers; no measure sees a constant per image."""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn.functional import one_hot

from dfme.answers.reading import top_class
from dfme.spec import LabelMode
from dfme.students.losses import SMALLEST, log_probabilities

MIN_IMAGES = 8
"""Images with known log-odds: of the heads that are tried, one comes near fewer by chance."""
MIN_SPREAD = 1e-5
"""Of log-odds: what float32 answers of a teacher that says the same of all images differ by."""


def targets(answers: Tensor, mode: LabelMode, num_classes: int) -> Tensor:
    """Probabilities (N, K) of the answers, adding up to one, float64."""
    if mode.kind == "label":
        return one_hot(top_class(answers), num_classes).double()
    p_NK = log_probabilities(answers.double(), mode).exp()
    return p_NK / p_NK.sum(dim=1, keepdim=True).clamp_min(SMALLEST)


class Entropy:
    """Cross-entropy of probabilities, a mean over images: multinomial logistic regression.

    ``curvature_N``: roughly, in each image's scores.
    """

    def __init__(self, target_NK: Tensor, hard: bool) -> None:
        self._target_NK = target_NK
        p_NK = target_NK
        if hard:  # a fit's own probabilities will be softer
            p_NK = 0.6 * target_NK + 0.4 / target_NK.shape[1]
        self.curvature_N = (p_NK * (1 - p_NK)).mean(dim=1).clamp_min(1e-4) / 2

    def __call__(self, scores_NK: Tensor) -> Tensor:
        return -(self._target_NK * scores_NK.log_softmax(dim=1)).sum(dim=1).mean()


def residual(scores_NK: Tensor, odds_NK: Tensor, known_NK: Tensor, constant_K: Tensor) -> float:
    """Median error of the known log-odds, against the largest known score of each image, over that
    of a constant answer; infinite where too few are known, or all images have the same answer.

    ``constant_K``: the constant answer's log-odds, such as ``usual`` gives. Classes differ in how
    frequent they are, which every head knows: that must not count as something explained.
    """
    top_N1 = odds_NK.masked_fill(~known_NK, -math.inf).argmax(dim=1, keepdim=True)
    others_NK = (known_NK & known_NK.gather(1, top_N1)).scatter(1, top_N1, False)
    if int(others_NK.any(dim=1).sum()) < MIN_IMAGES:
        return math.inf
    truth = (odds_NK - odds_NK.gather(1, top_N1))[others_NK]
    guess = (scores_NK - scores_NK.gather(1, top_N1))[others_NK]
    constant_NK = constant_K.expand_as(odds_NK)
    usual_guess = (constant_NK - constant_NK.gather(1, top_N1))[others_NK]
    spread = float((usual_guess - truth).abs().median())
    return float((guess - truth).abs().median()) / spread if spread > MIN_SPREAD else math.inf


def usual(odds_NK: Tensor, known_NK: Tensor) -> Tensor:
    """Median (K,) of each class's known log-odds, against the mean of those known of its image."""
    known_odds_NK = odds_NK.masked_fill(~known_NK, math.nan)
    centred_NK = known_odds_NK - known_odds_NK.nanmean(dim=1, keepdim=True)
    return centred_NK.nanmedian(dim=0).values.nan_to_num(nan=0.0)
