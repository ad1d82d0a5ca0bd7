"""Learning rates and student steps as functions of the share of the query budget spent, so that a budget means one
thing."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from dfme.config.settings import ScheduleConfig, StudentConfig


def factor(config: ScheduleConfig, share: float) -> float:
    """What a learning rate is multiplied by once ``share`` (0 to 1) of the budget is spent."""
    if config.warmup and share < config.warmup:
        return share / config.warmup * _after_warmup(config, share)
    return _after_warmup(config, share)


def _after_warmup(config: ScheduleConfig, share: float) -> float:
    if config.kind == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * min(share, 1.0)))
    if config.kind == "steps":
        return float(config.decay ** sum(share >= milestone for milestone in config.milestones))
    return 1.0


def weight_decay(config: StudentConfig, images: int) -> float:
    """The students' weight decay with so many paid images held; fewer than a replayed batch count as one.

    As a prior on the weights it would be worth less by 1/n beside n images; not at all, if it stood for what the
    optimiser needs. Between them is 1/sqrt(n), a heuristic of ours: measured in docs/results/comparison.md.
    """
    if not config.decay_images:
        return config.weight_decay
    return config.weight_decay * math.sqrt(config.decay_images / max(images, config.replay_batch))


@dataclass(frozen=True)
class StepPlan:
    """The number of steps of a student: ``during``, evenly while the budget is spent, then ``final``.

    ``during`` of None plans no number: each fresh batch is worth a step and its replay steps. ``rounds`` are shares
    of the budget, the last one 1, at which equal parts of the final steps are taken. Of a run that was given a larger
    budget, ``taken`` rounds were due before, and those come that lie beyond the share ``since``, spent by then.
    """

    during: int | None = None
    final: int = 0
    rounds: tuple[float, ...] = (1.0,)
    taken: int = 0
    since: float = 0.0

    @staticmethod
    def of(config: StudentConfig) -> StepPlan:
        """The plan that a configuration describes."""
        if not config.steps:
            return StepPlan()
        if config.rounds:
            return StepPlan(0, config.steps, config.rounds)
        final = round(config.steps * config.final_share)
        return StepPlan(config.steps - final, final)

    def under(self, budget: int, spent: int, before: int) -> StepPlan:
        """The plan once ``budget`` takes the place of ``before``, after ``spent`` images; steps per round stay."""
        return replace(self, taken=self._reached(spent / before), since=spent / budget)

    @cached_property
    def edges(self) -> list[int]:
        """The steps after which rounds begin, and after which the last one ends."""
        before, count = self.during or 0, self._reached(1.0)
        return [before + round(self.final * number / len(self.rounds)) for number in range(count + 1)]

    def steps_due(self, share: float, steps: int) -> int:
        """Final steps to take before another image is paid for, after ``steps`` steps."""
        reached = self._reached(share)
        return max(0, self.edges[reached] - steps) if reached else 0

    def _reached(self, share: float) -> int:
        """Rounds that are due once ``share`` of the budget is spent."""
        return self.taken + sum(self.since < due <= share for due in self.rounds)

    def round_at(self, steps: int) -> int:
        """The number, from 0, of the round that begins after ``steps`` steps; -1 within a round."""
        return self.edges[:-1].index(steps) if steps in self.edges[:-1] else -1

    def progress(self, share: float, steps: int) -> float:
        """How far training is, 0 to 1, by the share of the budget spent and of the final steps taken.

        Where all steps are taken in rounds it is how far the round is.
        """
        if not self.final or self.during is None:
            return share
        if self.during:
            return (self.during * share + max(0, steps - self.during)) / (self.during + self.final)
        begin, end = next((pair for pair in pairwise(self.edges) if steps < pair[1]), (0, self.final))
        return min(1.0, (steps - begin) / (end - begin))
