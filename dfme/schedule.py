"""Learning rates and student steps as functions of the share of the query budget spent, so that a budget means one
thing."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dfme.config import ScheduleConfig, StudentConfig


def factor(config: ScheduleConfig, share: float) -> float:
    """What a learning rate is multiplied by once ``share`` (0 to 1) of the budget is spent."""
    if config.warmup and share < config.warmup:
        return share / config.warmup * _settled(config, share)
    return _settled(config, share)


def _settled(config: ScheduleConfig, share: float) -> float:
    if config.kind == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * min(share, 1.0)))
    if config.kind == "steps":
        return float(config.decay ** sum(share >= milestone for milestone in config.milestones))
    return 1.0


@dataclass(frozen=True)
class Plan:
    """The steps that a student takes: ``during`` the spending, evenly; afterwards ``final`` ones, then ``distil``.

    ``during`` of None: one a fresh batch, and a number of replays of it.
    """

    during: int | None = None
    final: int = 0
    distil: int = 0

    @staticmethod
    def of(config: StudentConfig) -> Plan:
        """The plan that a configuration describes."""
        if not config.steps:
            return Plan()
        distil = round(config.steps * config.distil_share)
        final = round(config.steps * config.final_share * (1.0 - config.distil_share))
        return Plan(config.steps - final - distil, final, distil)

    def progress(self, share: float, steps: int) -> float:
        """How far training is, 0 to 1, less distillation: by the share of the budget spent, and of final steps done."""
        if not self.final or self.during is None:
            return share
        return (self.during * share + max(0, steps - self.during)) / (self.during + self.final)
