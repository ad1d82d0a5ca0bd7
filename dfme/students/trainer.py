"""Training of students: a step on each batch as it is paid, then replay steps on earlier ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from dfme.compute.modules import evaluating
from dfme.config.settings import ExtractConfig
from dfme.students.ensemble import Ensemble, Vote
from dfme.students.losses import Distance
from dfme.students.optimizers import (
    Schedule,
    ScheduledOptimizer,
    StepPlan,
    Stretch,
    gradient_norm,
    make_optimizer,
    weight_decay,
)
from dfme.students.replay import Replay, augment

if TYPE_CHECKING:
    from dfme.students.class_prior import ClassPrior


class MovingAverage(AveragedModel):
    """A net's parameters and buffers, averaged with weight ``decay`` on the past; begins as a copy.

    The numbers are those of torch's own update, whose counter makes a GPU wait for the host every
    time.
    """

    def __init__(self, net: nn.Module, decay: float) -> None:
        super().__init__(net, use_buffers=True)
        self._average = get_ema_multi_avg_fn(decay)

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        """Take in ``model`` as it is now; nothing waits for an accelerator."""
        own, now = ([*net.parameters(), *net.buffers()] for net in (self.module, model))
        if self.n_averaged == 0:
            torch._foreach_copy_(own, now)
        else:
            for floating in (True, False):
                if kept := [each for each in own if each.is_floating_point() == floating]:
                    new = [each for each in now if each.is_floating_point() == floating]
                    self._average(kept, new, self.n_averaged)
        self.n_averaged += 1


Metrics = dict[str, Tensor | float | Callable[[], Tensor]]
"""Metrics of a step by name (``report.metrics.METRICS``). A function is called when its value is
read.
"""


class StudentTrainer:
    """Trains one or more students: optimiser, replay and, if configured, an EMA of their weights.

    Several students learn from the same batches, each by its own loss; one optimiser minimises the
    sum. Learning rate and number of steps follow the share of the budget spent, which ``schedule``
    holds. ``rng`` draws the augmentations. ``fresh`` makes as many nets, for the round of
    a number to begin with. ``prior``: what is added to scores in the loss, if anything is; it needs
    a replay.
    """

    def __init__(
        self,
        config: ExtractConfig,
        nets: Sequence[nn.Module],
        distance: Distance,
        replay: Replay | None,
        schedule: Schedule,
        rng: torch.Generator,
        fresh: Callable[[int], Sequence[nn.Module]] | None = None,
        prior: ClassPrior | None = None,
    ) -> None:
        self.nets = list(nets)
        self.distance = distance
        self.replay = replay
        self.steps = 0
        self.config = config.student
        self._images = config.images
        self._epochs = 0  # that follow the budget, where nothing else is planned
        self.plan = self._plan(config.images)
        self._budget = 0
        self._stretch: Stretch | None = (
            None  # of the batch that is learnt from, if it is a long one
        )
        self._passed = (
            0  # images learnt from since the last kept batch, whose replay steps stand for them too
        )
        self._greatest_lr = 0.0  # of the round, or of the run without rounds
        self.precision = config.precision
        self.schedule = schedule
        self._rng = rng
        self._fresh = fresh
        self._prior = prior
        self._whole = self.nets[0] if len(self.nets) == 1 else Ensemble(self.nets)
        self._optimizer = ScheduledOptimizer(
            make_optimizer(self._whole, config.student), self.lr_factor
        )
        decay = config.student.average
        self._average = MovingAverage(self._whole, decay) if decay else None

    def train_afterwards(self, epochs: int, images: int) -> None:
        """Plan so many passes over ``images`` once all are paid, unless steps are configured."""
        if self.plan.during is None and not self.config.replay_steps:
            self._epochs = epochs
            self.plan = self._plan(images)

    def steps_due_under(self, budget: int, spent: int) -> int:
        """Steps due under the present budget; under a larger one rounds, or passes, follow those
        due.
        """
        if self._grows and self._budget not in (0, budget):
            self.plan = self.plan.goes_on(self._plan(budget), spent / self._budget, spent / budget)
        self._budget = budget
        return self.steps_due

    @property
    def facts(self) -> dict[str, Any]:
        """What a run's summary says of the training besides."""
        return {}

    @property
    def outcome(self) -> str:
        """What came of the training, in a line for people; empty where there is nothing to say."""
        return ""

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

    keeps_features = False  # of images, from which it computes their scores again in no time

    @torch.no_grad()
    def scores(self, x_NCHW: Tensor) -> Tensor:
        """Scores (E, N, K) of the students on images that nobody need be asked about."""
        with evaluating(self._whole):
            return torch.stack([net(x_NCHW) for net in self.nets]).float()

    @property
    def progress(self) -> float:
        """Share of the schedule that has passed."""
        share = self.schedule.share if self._stretch is None else self._stretch.share(self.steps)
        return self.plan.progress(share, self.steps)

    def lr_factor(self) -> float:
        """Factor of the learning rate now."""
        return self.schedule.at(self.progress)

    @property
    def steps_left(self) -> int:
        """Steps still to take once the budget is spent."""
        if self.plan.during is None or not self._held:
            return 0
        return max(0, self.plan.edges[-1] - self.steps)

    @property
    def steps_due(self) -> int:
        """Steps to take before another image is paid for."""
        if self.schedule.share >= 1:
            return self.steps_left
        return self.plan.steps_due(self.schedule.share, self.steps) if self._held else 0

    def learn(self, images_BCHW: Tensor, answers: Tensor, keep: bool = True) -> Metrics:
        """Take the steps due for a fresh batch, the first on the batch itself, others on replayed
        ones.

        Without ``keep`` the batch does not enter the replay, and no replay steps follow.
        """
        before = self.steps
        share = self.schedule.share
        if self.plan.during is None:
            steps = 1 + self.config.replay_steps
        else:
            steps = round(self.plan.during * share) - before
        images = len(images_BCHW) + (self._passed if keep and steps > 1 else 0)
        self._passed = 0 if keep else self._passed + len(images_BCHW)
        self._stretch = self.plan.stretch(share, images / self._images, before, steps)
        metrics = self._begin()
        if steps > 0:
            metrics["student_loss"] = self._step(images_BCHW, answers).mean()
        if keep and self.replay is not None:
            self.replay.add(images_BCHW, answers)
            metrics |= self._replay_steps(steps - 1)
        self._stretch = None
        return metrics | self._taken(before)

    def train_pending(self, at_most: int) -> Metrics:
        """Take up to ``at_most`` of the ``steps_due``, on replayed batches."""
        before = self.steps
        metrics = self._begin()
        self._stretch = self.plan.left_over(before)
        for _ in range(min(at_most, self.plan.steps_due(self.schedule.share, self.steps))):
            self._begin_round(self.plan.round_at(self.steps))
            metrics |= self._begin() | self._replay_steps(1)
        self._stretch = None
        return metrics | self._taken(before)

    @property
    def _grows(self) -> bool:
        """True if a larger budget adds steps to those that were due, on all that is held then."""
        return bool(self.config.rounds or self._epochs)

    def _plan(self, images: int) -> StepPlan:
        if self._epochs:
            return StepPlan(0, (self._epochs * math.ceil(images / self.config.batch(images)),))
        return StepPlan.of(
            self.config, images, None if self.replay is None else self.replay.capacity
        )

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
        self._optimizer.set_weight_decay(weight_decay(self.config, self._held))
        return {"student_grad_norm": partial(gradient_norm, self._whole)}

    def _taken(self, before: int) -> Metrics:
        """Metrics of the steps since there were ``before``; without any there is no rate to
        tell.
        """
        taken: Metrics = {"student_steps": self.steps}
        if self.steps > before:
            taken["student_lr"] = self._optimizer.rate
            taken["student_lr_greatest"] = self._greatest_lr
        return taken

    def _begin_round(self, number: int) -> None:
        """Shrink and perturb the students and restart optimiser and average; not in the first
        round.
        """
        if number < 1:
            return
        self._greatest_lr = 0.0
        if self._epochs:  # which go on with the student as it is
            return
        assert self._fresh is not None, "rounds need fresh nets"
        for net, fresh in zip(self.nets, self._fresh(number), strict=True):
            shrink_and_perturb(net, fresh, self.config.shrink)
        self._optimizer.forget_moments()
        if self._average is not None:
            self._average.n_averaged.zero_()

    def _replay_steps(self, steps: int) -> Metrics:
        loss_B = None
        for _ in range(steps):
            assert self.replay is not None
            images_BCHW, answers = self.replay.sample(self.config.batch(self._held))
            loss_B = self._step(augment(images_BCHW, self.config.augment, self._rng), answers)
        return {} if loss_B is None else {"replay_loss": loss_B.mean()}

    def _step(self, images_BCHW: Tensor, answers: Tensor) -> Tensor:
        """One step of every student; the loss of each image (B,), mean over the students."""
        # walking the modules of a net for nothing costs a hundredth of a small one's step
        if not self._whole.training:
            self._whole.train()
        batch = len(images_BCHW)
        targets = self.distance.target(answers)
        # batch normalisation refuses a lone value per channel; doubled, its mean is the same
        if batch == 1:
            images_BCHW = torch.cat([images_BCHW] * 2)
            targets = torch.cat([targets] * 2)
        self._optimizer.zero_grad()
        # around the forward pass alone: the loss, and every estimate, is computed in fp32
        with torch.autocast(
            images_BCHW.device.type, torch.bfloat16, enabled=self.precision == "bf16"
        ):
            scores = self._whole(images_BCHW)
        scores = scores.float()
        if self._prior is not None:
            assert self.replay is not None, "a prior needs a replay"
            scores = scores + self._prior.of(self.replay).to(scores.device)
        if len(self.nets) == 1:
            losses_B = self.distance.between(scores, targets)
        else:
            losses = [self.distance.between(scores_BK, targets) for scores_BK in scores]
            losses_B = torch.stack(losses).sum(dim=0)
        losses_B.mean().backward()
        self._optimizer.step()
        self._greatest_lr = max(self._greatest_lr, self._optimizer.rate)  # which NaN is not
        self.steps += 1
        if self._average is not None and self.steps % self.config.average_every == 0:
            self._average.update_parameters(self._whole)
        return losses_B[:batch].detach() / len(self.nets)

    def state_dict(self) -> dict[str, Any]:
        plan = self.plan
        return {
            "nets": self._whole.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "average": None if self._average is None else self._average.state_dict(),
            "replay": None if self.replay is None else self.replay.state_dict(),
            "steps": self.steps,
            "greatest_lr": self._greatest_lr,
            "precision": self.precision,
            "prior": None if self._prior is None else self._prior.state_dict(),
            "rounds": {"budget": self._budget, "ends": list(plan.ends), "since": plan.since}
            if self._grows
            else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._whole.load_state_dict(state["nets"])
        self._optimizer.load_state_dict(state["optimizer"])
        if self._average is not None:
            self._average.load_state_dict(state["average"])
        if self.replay is not None:
            self.replay.load_state_dict(state["replay"])
        if self._prior is not None:
            self._prior.load_state_dict(state["prior"])
        self.steps = state["steps"]
        self._greatest_lr = state["greatest_lr"]
        self.precision = (
            "bf16" if state["precision"] == "bf16" else "fp32"
        )  # the run's, on any machine
        if self._grows:
            rounds = state["rounds"]
            if (ends := [0, *rounds["ends"]]) != sorted(map(int, ends)):
                raise ValueError("rounds: expected rising numbers of steps at their ends")
            self._budget = rounds["budget"]
            plan = self._plan(self._budget) if self._budget else self.plan
            self.plan = replace(plan, ends=tuple(rounds["ends"]), since=rounds["since"])


def shrink_and_perturb(net: nn.Module, fresh: nn.Module, kept: float) -> None:
    """Every parameter becomes ``kept`` (0 to 1) times itself plus 1 - ``kept`` times that of
    ``fresh``.

    Source: Ash & Adams 2020 (arXiv 1910.08475). The paper adds fresh weights of a scale of its own
    (0.01); here the two make up a whole, so 0 is a fresh net and 1 the old one. Buffers stay: batch
    normalisation's averages follow within a few dozen steps.
    """
    with torch.no_grad():
        for own, new in zip(net.parameters(), fresh.parameters(), strict=True):
            own.lerp_(new.to(own.device), 1.0 - kept)
