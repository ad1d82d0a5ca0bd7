"""The agreement on held-back queries that ends a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dfme.answers.reading import top_class
from dfme.config.settings import ExtractConfig
from dfme.oracle.oracle import Oracle
from dfme.run.evaluation import EvaluationSet, HoldOut
from dfme.statistics import wilson_interval


class Goal:
    """Agreement on held-back queries, which are paid for and never trained on.

    It is reached when an evaluation finds it below the 95% interval of the agreement (Wilson's),
    while a student that names one class for everything would not reach it. ``latest``: what that
    found. ``own``: the images are held back for this goal alone, so they are part of its state.
    """

    def __init__(self, share: float, held: HoldOut, own: bool) -> None:
        self.share = share
        self.held = held
        self._own = own
        self.latest = {
            "agreement": 0.0,
            "at_least": 0.0,
            "one_class": 1.0,
            "images": 0,
        }

    @property
    def reached(self) -> bool:
        return self.latest["at_least"] >= self.share > self.latest["one_class"]

    def look(self, student: nn.Module, scored: Mapping[str, Any]) -> dict[str, float]:
        """Metrics of the student; empty without held-back images. ``scored``: on the evaluation
        images.
        """
        score = (self.held.score(student) if self._own else scored).get("agreement")
        images = len(self.held)
        if score is None:
            return {}
        assert self.held.answers is not None
        one_class = torch.bincount(top_class(self.held.answers)).max().item() / images
        at_least = wilson_interval(score, images)[0]
        self.latest = {
            "agreement": score,
            "at_least": at_least,
            "one_class": one_class,
            "images": images,
        }
        return {"held_back_agreement": score}

    def state_dict(self) -> dict[str, Any]:
        return {"latest": self.latest, "held": self.held.state_dict() if self._own else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.latest = state["latest"]
        if self._own:
            self.held.load_state_dict(state["held"])


def goal_of(
    config: ExtractConfig,
    examination: EvaluationSet | HoldOut,
    oracle: Oracle,
    device: torch.device,
) -> tuple[Goal | None, Callable[[Tensor, Tensor], bool] | None]:
    """The agreement that ends the run, if one does, and what takes paid batches out of training."""
    held_back = examination if isinstance(examination, HoldOut) else None
    goal = None
    if config.until_agreement is not None:
        held_back = (
            HoldOut(oracle.label_mode, oracle.spec, device) if held_back is None else held_back
        )
        goal = Goal(config.until_agreement, held_back, own=held_back is not examination)
    return goal, None if held_back is None else held_back.hold_out
