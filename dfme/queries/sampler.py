"""The query sampler draws images from generator, programs and evolution, and selects the best of a
pool.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from dfme.answers.reading import top_class
from dfme.compute.device import Streams, on_accelerator
from dfme.compute.modules import evaluating
from dfme.config.sections import QueriesConfig
from dfme.nets.generators import DrawImages, GeneratorNet
from dfme.spec import ImageSpec, LabelMode
from dfme.students.losses import log_probabilities
from dfme.students.replay import Replay, augment

By = Literal["entropy", "margin", "random", "kcenter"]


def usefulness(vote_NK: Tensor, by: By, rng: torch.Generator) -> Tensor:
    """Usefulness of an answer to each candidate for the students (N,), by their mean probabilities.

    entropy: in nats (CaBaGe, arXiv 2409.10643; DualCOS, ICME 2024). margin: how little lies between
    the two largest probabilities (Scheffer et al. 2001). random: only balance chooses.
    """
    if by == "random":
        return torch.rand(len(vote_NK), generator=rng, device=rng.device).to(vote_NK.device)
    if by == "margin":
        first_N, second_N = vote_NK.topk(2, dim=1).values.unbind(dim=1)
        return second_N - first_N
    return -(vote_NK * vote_NK.clamp_min(1e-12).log()).sum(dim=1)


def choose(scores_ENK: Tensor, count: int, by: By, balance: bool, rng: torch.Generator) -> Tensor:
    """Indices (count,) of the candidates to pay for, in increasing order.

    With ``balance`` the classes that the vote sees take turns, each with its most useful candidate
    left.
    """
    vote_NK = scores_ENK.softmax(dim=2).mean(dim=0)
    rank_N = usefulness(vote_NK, by, rng).argsort(stable=True).argsort(stable=True)
    if balance:
        turn_N = _turns(rank_N, vote_NK.argmax(dim=1), vote_NK.shape[1])
        rank_N = rank_N - turn_N * len(rank_N)
    return rank_N.topk(count).indices.sort().values


def _turns(rank_N: Tensor, class_N: Tensor, classes: int) -> Tensor:
    """Number of candidates of the same class that have a higher rank."""
    order_N = rank_N.argsort(descending=True)
    class_N = class_N[order_N]
    before_N = one_hot(class_N, classes).cumsum(dim=0).gather(1, class_N[:, None]).squeeze(1) - 1
    return torch.empty_like(before_N).scatter(0, order_N, before_N)


CHUNK = 4_096  # candidates in one forward pass of the students; fewer where they are large


@dataclass(eq=False)
class QuerySampler:
    """Draws the images to pay for, quantised as the teacher takes them.

    ``generator`` of None: all images that are not bred are drawn by ``draw``. One makes whole
    batches, even where fewer are wanted, for its batch statistics. ``students`` score the pool,
    once they are ``trained``.
    """

    config: QueriesConfig
    spec: ImageSpec
    generator: GeneratorNet | None
    draw: DrawImages | None
    students: Sequence[nn.Module]
    streams: Streams
    batch_size: int
    evolution: Evolution | None = None
    trained: Callable[[], bool] = lambda: True

    @property
    def by_students(self) -> bool:
        """True if what is drawn depends on the students, or on answers that came before."""
        return self.config.candidates > 1 or self.evolution is not None

    def drawn(self, count: int) -> int:
        """Number of ``count`` images, neither bred nor chosen, that a program draws: the last
        ones.
        """
        return count if self.generator is None else round(count * self.config.procedural)

    @torch.no_grad()
    def images(self, count: int) -> Tensor:
        """``count`` images to pay for, selected from ``pool`` times as many candidates."""
        config = self.config
        if config.candidates == 1 or not self.trained():
            return self.spec.quantise(self._joined(count))
        # The last, smaller batch is chosen from as many candidates as any other.
        x_NCHW = self.spec.quantise(self._joined(self.batch_size * config.candidates))
        scores_ENK = torch.stack([self._scores_of(net, x_NCHW) for net in self.students])
        rng = self.streams["choice"]
        return x_NCHW[choose(scores_ENK, count, config.choose, config.balance, rng)]

    def _joined(self, count: int) -> Tensor:
        parts = self._parts(count)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _parts(self, count: int) -> list[Tensor]:
        """``count`` images, the configured share from each source."""
        if self.evolution is None or not self.evolution.ready:
            return self._fresh(count)
        most = round(count * self.config.evolve)
        rng = self.streams["evolution"]
        if on_accelerator(rng.device):
            return [self.evolution.replace(torch.cat(self._fresh(count)), most, rng)]
        bred_BCHW = self.evolution.draw(most, rng)
        return [*self._fresh(count - len(bred_BCHW)), bred_BCHW]

    def _fresh(self, count: int) -> list[Tensor]:
        drawn = self.drawn(count)
        parts = [self._generated(count - drawn)] if count > drawn else []
        if drawn:
            assert self.draw is not None
            parts.append(self.draw(drawn, self.streams["procedural"]))
        return parts

    def _generated(self, count: int) -> Tensor:
        assert self.generator is not None
        batches = []
        for _ in range(math.ceil(count / self.batch_size)):
            z_BZ = self.generator.draw(self.batch_size, self.streams["latent"])
            batches.append(self.generator.squash(self.generator(z_BZ)))
        return torch.cat(batches)[:count]

    def _scores_of(self, net: nn.Module, x_NCHW: Tensor) -> Tensor:
        with evaluating(net):
            return torch.cat([net(part) for part in x_NCHW.split(self.spec.at_once(CHUNK))]).float()


PARENTS = 4_096  # paid images that parents are taken from, drawn for every batch of children
READY = 512  # paid images from which on there are parents
HALF_SIDES = (0.15, 0.5)  # half of a graft's sides, as shares of the image's


class Evolution:
    """A child is one parent shifted by at most a pixel, with a rectangle of another parent in its
    place.

    A parent is drawn with weight confidence^2 / n: the largest probability that the teacher
    answered (1 of a label) and how many of the candidates have its class. So images of a class that
    sources seldom hit are varied until it is no rarer than others. Our own heuristic
    (docs/results/comparison.md).
    """

    def __init__(self, replay: Replay, mode: LabelMode, num_classes: int) -> None:
        self._replay = replay
        self._mode = mode
        self._num_classes = num_classes

    @property
    def ready(self) -> bool:
        """True if enough images are paid for to breed from."""
        return len(self._replay) >= READY

    def draw(self, most: int, rng: torch.Generator) -> Tensor:
        """Children (B, C, H, W), float32 within the bounds; ``most``: share where classes are
        missing.

        That share is 1 - e^H / K, with H the entropy of the answered classes in nats.
        """
        images_NCHW, weight_N, share = self._parents()
        count = int((most * share).round())
        return self._bred(count, images_NCHW, weight_N, rng) if count else images_NCHW[:0]

    def replace(self, x_BCHW: Tensor, most: int, rng: torch.Generator) -> Tensor:
        """The images, the last ones replaced by ``draw``'s children, whose number is not read."""
        if most == 0:
            return x_BCHW
        images_NCHW, weight_N, share = self._parents()
        bred_BCHW = self._bred(most, images_NCHW, weight_N, rng)
        used_B = torch.arange(most, 0, -1, device=x_BCHW.device) <= (most * share).round()
        last_BCHW = torch.where(used_B[:, None, None, None], bred_BCHW, x_BCHW[-most:])
        return torch.cat([x_BCHW[:-most], last_BCHW])

    def _parents(self) -> tuple[Tensor, Tensor, Tensor]:
        """Paid images, their weights as parents, and the share of a batch to breed, a scalar in
        float64.
        """
        images_NCHW, answers = self._replay.sample(self._replay.spec.at_once(PARENTS))
        # an accelerator's answers are checked later
        class_N = top_class(answers).clamp(0, self._num_classes - 1)
        # To count by bincount would make an accelerator wait.
        count_K = class_N.new_zeros(self._num_classes).scatter_add_(
            0, class_N, torch.ones_like(class_N)
        )
        share_K = count_K / len(class_N)
        missing = 1.0 - torch.special.entr(share_K).sum().exp().double() / self._num_classes
        if self._mode.kind == "label":
            return images_NCHW, 1 / share_K[class_N], missing
        confidence_N = log_probabilities(answers, self._mode).amax(dim=1).exp()
        return images_NCHW, confidence_N.square() / share_K[class_N], missing

    def _bred(
        self, count: int, images_NCHW: Tensor, weight_N: Tensor, rng: torch.Generator
    ) -> Tensor:
        first_B, second_B = torch.multinomial(
            weight_N, 2 * count, replacement=True, generator=rng
        ).chunk(2)
        return graft(augment(images_NCHW[first_B], "shift", rng), images_NCHW[second_B], rng)


def graft(x_BCHW: Tensor, other_BCHW: Tensor, rng: torch.Generator) -> Tensor:
    """Each image with a rectangle of the other: any centre, sides at equal shares of the image."""
    batch, _, height, width = x_BCHW.shape
    low, high = HALF_SIDES
    row_B1, column_B1, size_B1 = torch.rand(3, batch, 1, generator=rng, device=rng.device).unbind()
    half_B1 = low + (high - low) * size_B1
    rows_BH = (torch.arange(height, device=rng.device).add(0.5) / height - row_B1).abs() < half_B1
    columns_BW = (
        torch.arange(width, device=rng.device).add(0.5) / width - column_B1
    ).abs() < half_B1
    inside_B1HW = (rows_BH[:, :, None] & columns_BW[:, None, :])[:, None]
    return torch.where(inside_B1HW, other_BCHW, x_BCHW)
