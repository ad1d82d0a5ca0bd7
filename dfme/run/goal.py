"""``--until-agreement``: a run that ends before its budget does, once the student is known to be good enough."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dfme.answers.reading import top_class
from dfme.compute import held_to
from dfme.config.settings import ExtractConfig
from dfme.oracle.oracle import Oracle
from dfme.report.facts import wilson_interval
from dfme.run.evaluation import EvaluationSet, HoldOut


class Goal:
    """A share of the held-back queries, images paid for and never trained on, on which student and teacher agree.

    It is reached when an evaluation finds it below the 95% interval of the agreement (Wilson's), while a student that
    names one class for everything would not reach it. ``latest``: what the last evaluation found. ``own``: the images
    are held back for this goal alone, so they are part of its state.
    """

    def __init__(self, share: float, held: HoldOut, own: bool) -> None:
        self.share, self.held, self._own = share, held, own
        self.latest = {"agreement": 0.0, "at_least": 0.0, "one_class": 1.0, "images": 0}

    @property
    def reached(self) -> bool:
        return self.latest["at_least"] >= self.share > self.latest["one_class"]

    def look(self, student: nn.Module, scored: Mapping[str, Any]) -> dict[str, float]:
        """Score the student; its metrics, nothing while no image is held back. ``scored``: on the evaluation images."""
        score, images = (self.held.score(student) if self._own else scored).get("agreement"), len(self.held)
        if score is None:
            return {}
        assert self.held.answers is not None
        one_class = torch.bincount(top_class(self.held.answers)).max().item() / images
        at_least = wilson_interval(score, images)[0]
        self.latest = {"agreement": score, "at_least": at_least, "one_class": one_class, "images": images}
        return {"held_back_agreement": score}

    def state_dict(self) -> dict[str, Any]:
        return {"latest": self.latest, "held": self.held.state_dict() if self._own else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.latest = held_to(self.latest, state["latest"], "goal")
        if self._own:
            self.held.load_state_dict(state["held"])


def goal_of(
    config: ExtractConfig, examination: EvaluationSet | HoldOut, oracle: Oracle, device: torch.device
) -> tuple[Goal | None, Callable[[Tensor, Tensor], bool] | None]:
    """The agreement that ends the run, if one does, and what takes paid batches out of training."""
    held_back, goal = examination if isinstance(examination, HoldOut) else None, None
    if config.until_agreement is not None:
        held_back = HoldOut(oracle.label_mode, oracle.spec, device) if held_back is None else held_back
        goal = Goal(config.until_agreement, held_back, own=held_back is not examination)
    return goal, None if held_back is None else held_back.hold_out
