"""The students' training: a fresh batch of paid answers at a time, then steps on answers paid for before."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from dfme.compute import Precision, autocast
from dfme.config.settings import ScheduleConfig, StudentConfig
from dfme.students.augment import augment
from dfme.students.ensemble import Ensemble, Vote
from dfme.students.losses import Distance
from dfme.students.optimizers import ScheduledOptimizer, gradient_norm, make_optimizer
from dfme.students.replay import Replay
from dfme.students.schedule import StepPlan, factor, weight_decay

Metrics = dict[str, Tensor | float | Callable[[], Tensor]]
"""What a step tells, by the names in ``tracking.METRICS``. A function is called only when somebody reads it."""

Fresh = Callable[[int], Sequence[nn.Module]]
"""As many newly initialised nets as there are students, for the round of a number."""


class StudentTrainer:
    """One or more students with their optimiser, replay and, if asked for, a moving average of their weights.

    Several learn from the same batches, each by its own loss: the sum is minimised by one optimiser. ``share`` is the
    share of the budget spent, asked before every batch: learning rate and steps are functions of it. ``fresh`` gives
    nets as new as the students were, by the number of the round that they are for.
    """

    def __init__(
        self,
        nets: Sequence[nn.Module],
        config: StudentConfig,
        distance: Distance,
        replay: Replay | None,
        share: Callable[[], float],
        schedule: ScheduleConfig,
        rng: torch.Generator,
        precision: Precision = "fp32",
        fresh: Fresh | None = None,
    ) -> None:
        self.nets = list(nets)
        self.distance = distance
        self.replay = replay
        self.steps = 0
        self.plan = StepPlan.of(config)
        self._config = config
        self._share = share
        self._schedule = schedule
        self._rng = rng
        self._precision = precision
        self._fresh = fresh
        self._whole = self.nets[0] if len(self.nets) == 1 else Ensemble(self.nets)
        self._optimizer = ScheduledOptimizer(make_optimizer(self._whole, config), self._lr_factor)
        self._average = (
            AveragedModel(self._whole, multi_avg_fn=get_ema_multi_avg_fn(config.average), use_buffers=True)
            if config.average
            else None
        )

    def train_afterwards(self, epochs: int, images: int) -> None:
        """Plan so many passes over ``images`` once all of them are paid for, unless the configuration plans steps."""
        if self.plan.during is None and not self._config.replay_steps:
            self.plan = StepPlan(during=0, final=epochs * math.ceil(images / self._config.replay_batch))

    @property
    def net(self) -> nn.Module:
        """The student; of several, the first."""
        return self.nets[0]

    @property
    def delivered(self) -> nn.Module:
        """The net a run delivers: the first student, averaged if asked for."""
        return self._settled()[0]

    @property
    def vote(self) -> nn.Module | None:
        """The soft vote of several students, averaged if asked for; none of one."""
        return None if len(self.nets) == 1 else Vote(self._settled())

    @property
    def progress(self) -> float:
        """How far the students' training is, 0 to 1."""
        return self.plan.progress(self._share(), self.steps)

    @property
    def left(self) -> int:
        """Steps still to take once the budget has run out."""
        if self.plan.during is None or self.replay is None or not len(self.replay):
            return 0
        return max(0, self.plan.during + self.plan.final - self.steps)

    @property
    def owed(self) -> int:
        """Of the steps ``left``, those to take before another image is paid for."""
        if self._share() >= 1:
            return self.left
        return self.plan.owed(self._share(), self.steps) if self.replay is not None and len(self.replay) else 0

    def learn(self, images_BCHW: Tensor, answers: Tensor, keep: bool = True) -> Metrics:
        """The steps that a fresh batch is worth, the first on itself. Returns the last losses.

        Only a batch to ``keep`` is held for replay, and followed by steps on what is held.
        """
        metrics = self._begin()
        due = self._due()
        if due > 0:
            metrics["student_loss"] = self._step(images_BCHW, answers).mean()
        if keep and self.replay is not None:
            self.replay.add(images_BCHW, answers)
            metrics |= self._rehearse(due - 1)
        metrics["student_steps"] = self.steps
        return metrics

    def conclude(self, most: int) -> Metrics:
        """Up to ``most`` of the steps that are ``owed``, on all that is held."""
        metrics = self._begin()
        for _ in range(min(most, self.plan.owed(self._share(), self.steps))):
            self._renew(self.plan.begun(self.steps))
            metrics |= self._begin() | self._rehearse(1)
        metrics["student_steps"] = self.steps
        return metrics

    def _settled(self) -> list[nn.Module]:
        """The students, or their averages."""
        if self._average is None:
            return self.nets
        whole = self._average.module
        return list(whole.members) if isinstance(whole, Ensemble) else [whole]

    def _begin(self) -> Metrics:
        held = 0 if self.replay is None else len(self.replay)
        self._optimizer.set_weight_decay(weight_decay(self._config, held))
        return {"student_grad_norm": partial(gradient_norm, self._whole), "student_lr": self._optimizer.lr}

    def _lr_factor(self) -> float:
        return factor(self._schedule, self.progress)

    def _renew(self, number: int) -> None:
        """As a round begins, but for the first: the students in part anew, the optimiser and the average wholly."""
        if number < 1:
            return
        assert self._fresh is not None, "rounds need fresh nets"
        for net, fresh in zip(self.nets, self._fresh(number), strict=True):
            shrink_and_perturb(net, fresh, self._config.shrink)
        self._optimizer.forget_moments()
        if self._average is not None:
            self._average.n_averaged.zero_()

    def _due(self) -> int:
        if self.plan.during is None:
            return 1 + self._config.replay_steps
        return round(self.plan.during * self._share()) - self.steps

    def _rehearse(self, steps: int) -> Metrics:
        """Steps on what is held."""
        loss_B = None
        for _ in range(steps):
            assert self.replay is not None
            images_BCHW, answers = self.replay.sample(self._config.replay_batch)
            loss_B = self._step(augment(images_BCHW, self._config.augment, self._rng), answers)
        return {} if loss_B is None else {"replay_loss": loss_B.mean()}

    def _step(self, images_BCHW: Tensor, answers: Tensor) -> Tensor:
        """One step of every student; its loss on each image (B,), mean over the students."""
        targets, batch = self.distance.target(answers), len(images_BCHW)
        if batch == 1:  # batch normalisation refuses a lone value per channel; doubled, its mean is the same
            images_BCHW, targets = torch.cat([images_BCHW] * 2), torch.cat([targets] * 2)
        if not self._whole.training:  # walking the modules of a net for nothing costs a hundredth of a small one's step
            self._whole.train()
        self._optimizer.zero_grad()
        with autocast(images_BCHW.device, self._precision):
            scores = self._whole(images_BCHW)
        losses_B = self._losses(scores.float(), targets)
        losses_B.mean().backward()
        self._optimizer.step()
        self.steps += 1
        if self._average is not None and self.steps % self._config.average_every == 0:
            self._average.update_parameters(self._whole)
        return losses_B.detach()[:batch] / len(self.nets)

    def _losses(self, scores: Tensor, targets: Tensor) -> Tensor:
        """Each image's loss (B,), summed over the students."""
        if len(self.nets) == 1:
            return self.distance.between(scores, targets)
        return torch.stack([self.distance.between(scores_BK, targets) for scores_BK in scores]).sum(dim=0)

    def state_dict(self) -> dict[str, Any]:
        return {
            "nets": self._whole.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "average": None if self._average is None else self._average.state_dict(),
            "replay": None if self.replay is None else self.replay.state_dict(),
            "steps": self.steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._whole.load_state_dict(state["nets"])
        self._optimizer.load_state_dict(state["optimizer"])
        if self._average is not None:
            self._average.load_state_dict(state["average"])
        if self.replay is not None:
            self.replay.load_state_dict(state["replay"])
        self.steps = state["steps"]


def shrink_and_perturb(net: nn.Module, fresh: nn.Module, kept: float) -> None:
    """Every parameter becomes ``kept`` (0 to 1) of itself and 1 - ``kept`` of that of ``fresh``, of the same form.

    The paper adds fresh weights of a scale of its own (0.01) to what is left; here the two make up a whole, so 0 is
    a fresh net and 1 the old one. Buffers stay: batch normalisation's averages follow within a few dozen steps.
    """
    with torch.no_grad():
        for own, new in zip(net.parameters(), fresh.parameters(), strict=True):
            own.lerp_(new.to(own.device), 1.0 - kept)
