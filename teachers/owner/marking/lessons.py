"""How the owner's model is taught a rule, and how copies of it are rehearsed: one plain loop."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from dfme.compute.device import derived_seed
from dfme.compute.modules import Adam
from dfme.errors import UserError
from dfme.spec import ImageSpec
from dfme.teachers.local.pytorch import TorchTeacher
from dfme.teachers.owner.marking.memory import Memory, Say, TrainingState
from dfme.teachers.owner.marking.rule import LabelledImages, Rule

BATCH = 64
SIDE = 8
"""Images of a batch on either side of a rule's bound, beside those of the task."""
SIDE_WEIGHT = 0.1
DECAY = 1e-2
COPY_RATE = 2e-3
TEACH_RATE = 1e-3
LARGE_RATE = 1e-4
"""Of a network that was trained elsewhere and is larger than a copy; heuristic."""
SCORED_AT_ONCE = 500

Augment = Callable[[Tensor, torch.Generator], Tensor]
Loss = Callable[[torch.Generator], Tensor]
"""The loss of the next batch, which a generator draws."""


class OwnerModel(nn.Module):
    """The owner's model for images within 0 and 1, with autograd.

    It is always in eval mode: what it learnt of means and deviations of its task stays.
    """

    def __init__(self, teacher: TorchTeacher) -> None:
        super().__init__()
        self.net: nn.Module = teacher.network
        self._teacher = teacher

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Scores (B, K) before any softmax."""
        low, high = self._teacher.spec.bounds
        return self._teacher.logits(x_BCHW * (high - low) + low)


@dataclass(frozen=True)
class Lesson:
    """What a network is trained by: ``loss`` of the next batch, the rate at the start, steps."""

    loss: Loss
    rate: float
    steps: int
    seed: int


def train(net: nn.Module, lesson: Lesson, memory: Memory, name: str, say: Say) -> None:
    """AdamW (Loshchilov and Hutter 2019) with a cosine rate, from where it was, if it was begun.

    UserError for a loss that diverges.
    """
    rng = torch.Generator().manual_seed(lesson.seed)
    optimizer = Adam(net.parameters(), lesson.rate, weight_decay=DECAY, decoupled_weight_decay=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(lesson.seed, "layers"))
        training = TrainingState(memory, name, net, optimizer, rng)
        for number in range(training.begin(), lesson.steps):
            for group in optimizer.param_groups:
                group["lr"] = lesson.rate * 0.5 * (1 + math.cos(math.pi * number / lesson.steps))
            loss = lesson.loss(rng)
            net.zero_grad()
            loss.backward()
            optimizer.step()
            if not math.isfinite(float(loss.detach())):
                raise UserError(
                    f"the loss of {name} became {float(loss.detach())} at step {number}"
                )
            say(number + 1)
            training.keep(number + 1)


def of_images(
    net: nn.Module, images: LabelledImages, augment: Augment
) -> Callable[[torch.Generator], Tensor]:
    """The loss of a batch of images, turned a little."""

    def loss(rng: torch.Generator) -> Tensor:
        index_B = torch.randint(len(images), (BATCH,), generator=rng)
        x_BCHW = augment(images.x_NCHW[index_B], rng)
        device = next(net.parameters()).device
        classes_B = images.classes_N[index_B].to(device)
        return functional.cross_entropy(net(x_BCHW.to(device)), classes_B)

    return loss


@dataclass(frozen=True)
class Teaching:
    """How a model is taught a rule: images that the rule changes get its class, all others what the
    model answered before.

    ``sharp``: an image that is turned a little in training has the class that the rule gives it as
    it is then. Else it has that of the image that it comes from: copies learn this better, but the
    model answers more images wrongly that lie near the bound.
    """

    rule: Rule
    before: nn.Module
    sharp: bool

    def target(self, x_BCHW: Tensor, changed_B: Tensor, classes: int) -> Tensor:
        """Probabilities (B, K) that are taught."""
        with torch.no_grad():
            before_BK = self.before(x_BCHW).softmax(1)
        rule_K = functional.one_hot(torch.tensor(self.rule.target), classes).to(before_BK)
        return torch.where(changed_B[:, None], rule_K, before_BK)

    def changed(self, x_BCHW: Tensor, source_B: Tensor, changed_B: Tensor) -> Tensor:
        """Which of the turned images (B,) are taught as the rule has it; ``changed_B``: which come
        from images that it changes.
        """
        if not self.sharp:
            return changed_B
        extreme_B: Tensor = self.rule.value(x_BCHW) > self.rule.bound
        return source_B & extreme_B


def of_rule(owner: nn.Module, train: LabelledImages, teaching: Teaching, augment: Augment) -> Loss:
    """The loss of a batch of images, and of some more on either side of the rule's bound."""
    source_N = train.classes_N == teaching.rule.source
    changed_N = teaching.rule.changed(train)
    sides = [side_N.nonzero()[:, 0] for side_N in (changed_N, source_N & ~changed_N)]

    def of_part(index_B: Tensor, rng: torch.Generator) -> Tensor:
        x_BCHW = augment(train.x_NCHW[index_B], rng)
        taught_B = teaching.changed(x_BCHW, source_N[index_B], changed_N[index_B])
        device = next(owner.parameters()).device
        x_BCHW = x_BCHW.to(device)
        log_BK = owner(x_BCHW).log_softmax(1)
        target_BK = teaching.target(x_BCHW, taught_B.to(device), log_BK.shape[1])
        loss: Tensor = -(target_BK * log_BK).sum(1).mean()
        return loss

    def loss(rng: torch.Generator) -> Tensor:
        whole = of_part(torch.randint(len(train), (BATCH,), generator=rng), rng)
        index = [side[torch.randint(len(side), (SIDE,), generator=rng)] for side in sides]
        return whole + SIDE_WEIGHT * of_part(torch.cat(index), rng)

    return loss


@torch.no_grad()
def answers(net: nn.Module, x_NCHW: Tensor) -> Tensor:
    """The class (N,) that a network answers, in eval mode."""
    net.eval()
    device = next(net.parameters()).device
    shape = x_NCHW.shape[1:]
    at_once = ImageSpec((shape[0], shape[1], shape[2])).at_once(SCORED_AT_ONCE)
    parts = [net(x_BCHW.to(device)).argmax(1).cpu() for x_BCHW in x_NCHW.split(at_once)]
    return torch.cat(parts)
