"""The students' training: a step on each batch as it is paid for, then replay steps on batches paid for before."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dfme.compute import held_to, take_up
from dfme.config.settings import ExtractConfig
from dfme.graphs import Captured, GraphedForward, refuse
from dfme.precision import autocast
from dfme.students.augment import augment
from dfme.students.average import MovingAverage
from dfme.students.ensemble import Ensemble, Vote
from dfme.students.losses import Distance
from dfme.students.optimizers import ScheduledOptimizer, gradient_norm, make_optimizer
from dfme.students.replay import Replay
from dfme.students.schedule import StepPlan, factor, weight_decay

Metrics = dict[str, Tensor | float | Callable[[], Tensor]]
"""Metrics of a step, by the names in ``report.metrics.METRICS``. A function is called only when its value is read."""

FreshNets = Callable[[int], Sequence[nn.Module]]
"""As many newly initialised nets as there are students, for the round of a number."""


class StudentTrainer:
    """Trains one or more students: optimiser, replay and, if configured, an EMA of their weights.

    Several students learn from the same batches, each by its own loss; one optimiser minimises the sum. ``share``
    gives the share of the budget spent: learning rate and number of steps are functions of it. ``rng`` draws the
    augmentations. ``fresh`` gives the nets that a round of training begins with.
    """

    def __init__(
        self,
        config: ExtractConfig,
        nets: Sequence[nn.Module],
        distance: Distance,
        replay: Replay | None,
        share: Callable[[], float],
        rng: torch.Generator,
        fresh: FreshNets | None = None,
    ) -> None:
        self.nets = list(nets)
        self.distance = distance
        self.replay = replay
        self.steps = 0
        self.plan, self._budget = StepPlan.of(config.student), 0
        self._config = config.student
        self._schedule, self._precision = config.schedule, config.precision
        self._share = share
        self._rng = rng
        self._fresh = fresh
        self._whole = self.nets[0] if len(self.nets) == 1 else Ensemble(self.nets)
        self._optimizer = ScheduledOptimizer(make_optimizer(self._whole, config.student), self._lr_factor)
        self._average = None
        if decay := config.student.average:
            self._average = MovingAverage(self._whole, decay)
        self._update: Callable[..., tuple[Tensor, ...]] = self._kernels

    def use_graphs(self) -> None:
        """Replay forward passes without a gradient from now on, and of a lone student the whole step."""
        for net in self.nets:
            GraphedForward(net, "a student")
        if len(self.nets) > 1:
            return refuse("the students' step", "there are several")
        self._optimizer.stay_in_place()
        optimizer, nets = self._optimizer, [self._whole] + ([] if self._average is None else [self._average.module])

        def changed() -> list[Tensor]:
            return [each for net in nets for each in (*net.parameters(), *net.buffers())] + optimizer.moments

        self._update = Captured("the student's step", self._kernels, changed)

    def train_afterwards(self, epochs: int, images: int) -> None:
        """Plan so many passes over ``images`` once all of them are paid for, unless the configuration plans steps."""
        if self.plan.during is None and not self._config.replay_steps:
            self.plan = StepPlan(during=0, final=epochs * math.ceil(images / self._config.replay_batch))

    def steps_due_under(self, budget: int, spent: int) -> int:
        """The steps due under the budget in force; with a larger one, rounds go on from those due after ``spent``."""
        if self._config.rounds and self._budget not in (0, budget):
            self.plan = self.plan.under(budget, spent, self._budget)
        self._budget = budget
        return self.steps_due

    @property
    def net(self) -> nn.Module:
        """The student; of several, the first."""
        return self.nets[0]

    @property
    def delivered(self) -> nn.Module:
        """The net that the run delivers: the first student, averaged if configured."""
        return self._averaged()[0]

    @property
    def vote(self) -> nn.Module | None:
        """The soft vote of several students, averaged if configured; None for one student."""
        return None if len(self.nets) == 1 else Vote(self._averaged())

    @property
    def progress(self) -> float:
        """How far the training is, from 0 to 1."""
        return self.plan.progress(self._share(), self.steps)

    @property
    def steps_left(self) -> int:
        """Steps still to take once the budget is spent."""
        if self.plan.during is None or not self._held:
            return 0
        return max(0, self.plan.edges[-1] - self.steps)

    @property
    def steps_due(self) -> int:
        """Steps to take before another image is paid for."""
        if self._share() >= 1:
            return self.steps_left
        return self.plan.steps_due(self._share(), self.steps) if self._held else 0

    def learn(self, images_BCHW: Tensor, answers: Tensor, keep: bool = True) -> Metrics:
        """Take the steps that a fresh batch is worth, the first on the batch itself, the others on replayed ones.

        Without ``keep`` the batch does not enter the replay, and no replay steps follow. Returns the last losses.
        """
        metrics = self._begin()
        if self.plan.during is None:
            steps = 1 + self._config.replay_steps
        else:
            steps = round(self.plan.during * self._share()) - self.steps
        if steps > 0:
            metrics["student_loss"] = self._step(images_BCHW, answers).mean()
        if keep and self.replay is not None:
            self.replay.add(images_BCHW, answers)
            metrics |= self._replay_steps(steps - 1)
        return metrics | {"student_steps": self.steps}

    def train_pending(self, at_most: int) -> Metrics:
        """Take up to ``at_most`` of the ``steps_due``, on replayed batches."""
        metrics = self._begin()
        for _ in range(min(at_most, self.plan.steps_due(self._share(), self.steps))):
            self._begin_round(self.plan.round_at(self.steps))
            metrics |= self._begin() | self._replay_steps(1)
        return metrics | {"student_steps": self.steps}

    @property
    def _held(self) -> int:
        return 0 if self.replay is None else len(self.replay)

    def _averaged(self) -> list[nn.Module]:
        """The students, or their exponential moving averages (EMA) if configured."""
        if self._average is None:
            return self.nets
        whole = self._average.module
        return list(whole.members) if isinstance(whole, Ensemble) else [whole]

    def _begin(self) -> Metrics:
        self._optimizer.set_weight_decay(weight_decay(self._config, self._held))
        return {"student_grad_norm": partial(gradient_norm, self._whole), "student_lr": self._optimizer.lr}

    def _lr_factor(self) -> float:
        return factor(self._schedule, self.progress)

    def _begin_round(self, number: int) -> None:
        """Shrink and perturb the students, and start optimiser and average anew; not before the first round."""
        if number < 1:
            return
        assert self._fresh is not None, "rounds need fresh nets"
        for net, fresh in zip(self.nets, self._fresh(number), strict=True):
            shrink_and_perturb(net, fresh, self._config.shrink)
        self._optimizer.forget_moments()
        if self._average is not None:
            self._average.n_averaged.zero_()

    def _replay_steps(self, steps: int) -> Metrics:
        loss_B = None
        for _ in range(steps):
            assert self.replay is not None
            images_BCHW, answers = self.replay.sample(self._config.replay_batch)
            loss_B = self._step(augment(images_BCHW, self._config.augment, self._rng), answers)
        return {} if loss_B is None else {"replay_loss": loss_B.mean()}

    def _step(self, images_BCHW: Tensor, answers: Tensor) -> Tensor:
        """One step of every student; the loss of each image (B,), mean over the students."""
        if not self._whole.training:  # walking the modules of a net for nothing costs a hundredth of a small one's step
            self._whole.train()
        self._optimizer.set_lr()
        average = self._average if (self.steps + 1) % self._config.average_every == 0 else None
        averaged = -1 if average is None else int(average.n_averaged)
        losses_B, *grads = self._update(images_BCHW, answers, min(averaged, 1), self._optimizer.weight_decay)
        for parameter, grad in zip(self._optimizer.learning, grads, strict=True):
            parameter.grad = grad  # of several graphs, those of the one that was replayed
        if average is not None:
            average.n_averaged.fill_(averaged + 1)  # the host's, which a graph leaves as it is
        self.steps += 1
        return losses_B[: len(images_BCHW)] / len(self.nets)

    def _kernels(self, images_BCHW: Tensor, answers: Tensor, averaged: int, _: float) -> tuple[Tensor, ...]:
        """What a step computes: its losses, then its gradients. ``averaged``: 1 if before, 0 if now first, else -1."""
        targets = self.distance.target(answers)
        if len(images_BCHW) == 1:  # batch normalisation refuses a lone value per channel; doubled, its mean is the same
            images_BCHW, targets = torch.cat([images_BCHW] * 2), torch.cat([targets] * 2)
        self._optimizer.zero_grad()
        with autocast(images_BCHW.device, self._precision):
            scores = self._whole(images_BCHW)
        losses_B = self._losses(scores.float(), targets)
        losses_B.mean().backward()
        self._optimizer.take_step()
        if self._average is not None and averaged >= 0:
            self._average.update_parameters(self._whole)
        return losses_B.detach(), *(parameter.grad for parameter in self._optimizer.learning)

    def _losses(self, scores: Tensor, targets: Tensor) -> Tensor:
        """The loss of each image (B,), summed over the students."""
        if len(self.nets) == 1:
            return self.distance.between(scores, targets)
        return torch.stack([self.distance.between(scores_BK, targets) for scores_BK in scores]).sum(dim=0)

    def state_dict(self) -> dict[str, Any]:
        plan, rounds = self.plan, self._config.rounds
        return {
            "nets": self._whole.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "average": None if self._average is None else self._average.state_dict(),
            "replay": None if self.replay is None else self.replay.state_dict(),
            "steps": self.steps,
            "rounds": {"budget": self._budget, "taken": plan.taken, "since": plan.since} if rounds else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        take_up(self._whole, state["nets"], "student")
        take_up(self._optimizer, state["optimizer"], "student_optimizer")
        if self._average is not None:
            take_up(self._average, state["average"], "average")
        if self.replay is not None:
            self.replay.load_state_dict(state["replay"])
        self.steps = held_to(0, state["steps"], "student steps")
        if self._config.rounds:  # before 0.9.0 they had one budget for good
            told = held_to({"budget": 0, "taken": 0, "since": 0.0}, state["rounds"], "rounds")
            if told["taken"] > 10_000:  # a plan lists them
                raise ValueError(f"rounds: expected so many as a run takes, got {told['taken']}")
            self.plan, self._budget = replace(self.plan, taken=told["taken"], since=told["since"]), told["budget"]
        if self.plan.during is not None and self.steps > self.plan.edges[-1]:
            raise ValueError(f"student steps: expected at most those planned, got {self.steps}")


def shrink_and_perturb(net: nn.Module, fresh: nn.Module, kept: float) -> None:
    """Every parameter becomes ``kept`` (0 to 1) times itself plus 1 - ``kept`` times that of ``fresh``.

    Source: Ash & Adams 2020 (arXiv 1910.08475). The paper adds fresh weights of a scale of its own (0.01); here the
    two make up a whole, so 0 is a fresh net and 1 the old one. Buffers stay: batch normalisation's averages follow
    within a few dozen steps.
    """
    with torch.no_grad():
        for own, new in zip(net.parameters(), fresh.parameters(), strict=True):
            own.lerp_(new.to(own.device), 1.0 - kept)
