"""How frequent the classes are among paid answers, and students that do not count on it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dfme.answers.reading import unanswered
from dfme.spec import LabelMode
from dfme.students.head_losses import targets
from dfme.students.replay import Replay

AT_ONCE = 1_024  # answers of a replay that are read together
MIN_SHARE = 1e-3
"""Share that a class counts with at least: of one that was never answered nothing is known."""


def class_mass(answers: Tensor, mode: LabelMode, num_classes: int) -> Tensor:
    """Sum over the images of each class's probability (K,), of labels their number; float64."""
    return targets(answers[~unanswered(answers)], mode, num_classes).sum(dim=0)


def adjustment(mass_K: Tensor, strength: float) -> Tensor:
    """What is added to scores in the loss (K,): ``strength`` times the log of each class's share,
    less its mean, which L1 would see.

    A student that learns so gives the others' classes to images that it cannot tell, and not the
    one that was answered most: logit adjustment (Menon et al., ICLR 2021, arXiv 2007.07314), whose
    shares are those of the training labels. Nothing is added where nothing was answered.
    """
    total = mass_K.sum()
    share_K = torch.where(total > 0, mass_K / total.clamp_min(MIN_SHARE), 1 / len(mass_K))
    log_K = share_K.clamp_min(MIN_SHARE).log()
    return (strength * (log_K - log_K.mean())).float()


class ClassPrior:
    """The adjustment for all answers that a replay has held."""

    def __init__(self, strength: float, mode: LabelMode, num_classes: int) -> None:
        self._strength = strength
        self._mode = mode
        self._mass_K = torch.zeros(num_classes, dtype=torch.float64)
        self._counted = 0
        self._adjustment_K: Tensor | None = None  # of what is counted

    def of(self, replay: Replay) -> Tensor:
        """The adjustment (K,) for what was added so far; each answer is read once."""
        if self._adjustment_K is None or self._counted != replay.added:
            self._count(replay)
            self._adjustment_K = adjustment(self._mass_K, self._strength)
        return self._adjustment_K

    def _count(self, replay: Replay) -> None:
        first = max(self._counted, replay.added - len(replay))
        for start in range(first, replay.added, AT_ONCE):
            _, answers = replay.items(start, min(start + AT_ONCE, replay.added))
            mass_K = class_mass(answers, self._mode, len(self._mass_K))
            self._mass_K = self._mass_K.to(mass_K.device) + mass_K
        self._counted = replay.added

    def state_dict(self) -> dict[str, Any]:
        return {"mass": self._mass_K, "counted": self._counted}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._mass_K = state["mass"]
        self._counted = state["counted"]
        self._adjustment_K = None
