"""How finely answers are told: seen in the answers themselves, and what a difference of values loses by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dfme.spec import LabelMode

MAX_DECIMALS = 7
"""float32 probabilities carry about seven decimals: answers with more are not rounded."""

FLOAT32 = 2.0**-23
"""Distance of neighbouring float32 numbers, relative to them."""

FORMATS = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
"""The same of the short formats that an answer may have been cast from, the coarsest first."""

ObjectiveOfAnswers = Callable[[Tensor, Tensor], Tensor]
"""Our own side of an objective: images (N, C, H, W) and their answers -> (N,)."""


@dataclass(frozen=True)
class Resolution:
    """What distance between two answers is lost: a rounding step of ``decimals``, or ``relative`` to the answer.

    Both are exact knowledge of the wire, no guess at noise: a teacher may well compute less precisely.
    """

    decimals: int | None = None
    relative: float = FLOAT32

    @classmethod
    def declared(cls, mode: LabelMode) -> Resolution:
        """What the label mode says; float32 where it says nothing."""
        return cls(mode.decimals)

    @classmethod
    def seen(cls, answers_NK: Tensor) -> Resolution:
        """What scores show: decimals, or a short floating-point format that carries them all."""
        places = decimals(answers_NK)
        known = answers_NK[torch.isfinite(answers_NK)]
        if places is None:
            for dtype, relative in FORMATS.items():
                if torch.equal(known.to(dtype).to(known.dtype), known):
                    return cls(None, relative)
        return cls(places)

    def jitter(self, answers_NK: Tensor, rng: torch.Generator) -> Tensor:
        """Scores (N, K) that would have been answered alike: moved by up to half a step; unknown ones stay so.

        Answers of exactly 0 stay too: how small they were is not known to within anything (``hidden_weight``).
        """
        part_NK = torch.rand(answers_NK.shape, generator=rng, device=answers_NK.device) - 0.5
        if self.decimals is None:
            return answers_NK + part_NK * self.relative * answers_NK.abs()
        return torch.where(answers_NK == 0, answers_NK, answers_NK + part_NK * 10.0**-self.decimals)


def decimals(scores: Tensor) -> int | None:
    """The fewest decimals that carry the scores exactly (to float32), or None if they are not rounded."""
    known = scores[torch.isfinite(scores)].double()
    slack = 2 * FLOAT32 * known.abs()
    for places in range(1, MAX_DECIMALS):
        step = 10.0**-places
        if slack.numel() and slack.max() > step / 4:
            return None
        if (((known / step).round() * step - known).abs() <= slack).all():
            return places
    return None


def rms(values: Tensor) -> Tensor:
    """Root of the mean square, in float64."""
    return values.double().square().mean().sqrt()
