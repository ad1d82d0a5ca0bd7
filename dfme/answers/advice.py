"""What to do about scores that are no probabilities, from what their values show."""

import torch
from torch import Tensor

from dfme.errors import Ref, Text, say
from dfme.spec import LabelMode

MAX_DECIMALS = 7
"""float32 probabilities carry about seven decimals: answers with more are not rounded."""

FLOAT32 = 2.0**-23
"""Distance of neighbouring float32 numbers, relative to them."""

LEVELS = (255, 256)
"""Parts of one of which 8-bit probabilities are multiples."""

SLACK = 2e-3
"""How far from one a row may sum, besides what rounding takes away."""


def decimals(scores: Tensor) -> int | None:
    """The fewest decimals that carry the scores exactly (to float32); None if they are not
    rounded.
    """
    finite = scores[torch.isfinite(scores)].double()
    slack = 2 * FLOAT32 * finite.abs()
    for places in range(1, MAX_DECIMALS):
        step = 10.0**-places
        if slack.numel() and slack.max() > step / 4:
            return None
        if (((finite / step).round() * step - finite).abs() <= slack).all():
            return places
    return None


def rounded_to(p_BK: Tensor) -> int | None:
    """Decimals to which probabilities, with other sums than one, were rounded, maybe down; or None.

    Probabilities of 8 bits count as rounded to two decimals.
    """
    places = decimals(p_BK)
    if places is None:
        parts = (p_BK.double() * levels for levels in LEVELS)
        on_a_lattice = any(bool(((part.round() - part).abs() < SLACK).all()) for part in parts)
        places = 2 if on_a_lattice else None
    if places is None:
        return None
    lost = p_BK.shape[1] * 10.0**-places
    over_B = p_BK.double().sum(1) - 1
    within_B = (over_B >= -lost - SLACK) & (over_B <= lost / 2 + SLACK)
    return places if bool(within_B.all()) else None


def add_up_to(scores_BK: Tensor, total: float, slack: float = SLACK) -> bool:
    """True if no score is negative and every image's add up to ``total``, within a share of it."""
    sums_B = scores_BK.double().sum(1)
    return bool((scores_BK >= -slack).all() and ((sums_B / total - 1).abs() <= slack).all())


def what_to_do(scores_BK: Tensor) -> Text:
    """The cure for scores that were taken for probabilities, in words; empty if none is known."""
    if not scores_BK.isfinite().all():
        return ""
    if add_up_to(scores_BK, 100.0):
        return "they add up to 100, as percentages do: divide them by 100"
    if bool((scores_BK < 0).any()) or bool((scores_BK > 1 + SLACK).any()):
        return say("if these are logits, start a new run with {teacher.label_mode:logits}")
    if mode := _cut_mode(scores_BK):
        return say("start a new run with {}", Ref("teacher.label_mode", mode))
    return (
        "each lies within 0 and 1, as where every class has a sigmoid of its own: "
        "answer one softmax over all classes"
    )


def _cut_mode(p_BK: Tensor) -> LabelMode | None:
    """The label mode that reads rounded probabilities, or the largest alone beside zeros."""
    places = rounded_to(p_BK)
    if places is not None:
        return LabelMode("probabilities", places)
    revealed = int((p_BK > 0).sum(1).max())
    if revealed == p_BK.shape[1] or bool((p_BK.double().sum(1) > 1 + SLACK).any()):
        return None
    return LabelMode("top_k", decimals(p_BK), max(revealed, 1))
