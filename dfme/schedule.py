"""Learning rates as a function of the share of the query budget spent, so that a budget means one thing."""

from __future__ import annotations

import math

from dfme.config import ScheduleConfig


def factor(config: ScheduleConfig, share: float) -> float:
    """What a learning rate is multiplied by once ``share`` (0 to 1) of the budget is spent."""
    if config.kind == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * min(share, 1.0)))
    if config.kind == "steps":
        return float(config.decay ** sum(share >= milestone for milestone in config.milestones))
    return 1.0
