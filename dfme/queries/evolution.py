"""Evolution breeds new queries from paid images, most of them from classes that are seldom answered."""

from __future__ import annotations

import torch
from torch import Tensor

from dfme.answers.reading import top_class
from dfme.spec import LabelMode
from dfme.students.augment import augment
from dfme.students.losses import log_probabilities
from dfme.students.replay import Replay

PARENTS = 4_096
"""Paid images that parents are taken from, drawn for every batch of children."""

READY = 512
"""Paid images from which on there are parents: with fewer, fresh images teach more than children of so few."""

OF_LABELS = 0.75
"""Share of a batch to breed where answers are labels alone: a label says little of an image, and most of one that lies
near others with other labels. Heuristic; measured in docs/results/comparison.md."""

HALF_SIDES = (0.15, 0.5)
"""Half of a graft's sides, as shares of the image's."""


class Evolution:
    """A child is one parent shifted by at most a pixel, with a rectangle of another parent in its place.

    A parent is drawn with weight confidence^2 / n: the largest probability that the teacher answered (1 of a label) and
    how many of the candidates have its class. So images of a class that sources seldom hit are varied until it is
    no rarer than others. Children are paid for like any other image; no answer is taken over. Our own heuristic:
    on a task whose classes procedural images seldom reach it decides (docs/results/comparison.md).
    """

    def __init__(self, replay: Replay, mode: LabelMode, num_classes: int) -> None:
        self._replay = replay
        self._mode, self._of_labels = mode, mode.kind == "label"
        self._num_classes = num_classes

    @property
    def ready(self) -> bool:
        """Whether enough images are paid for to breed from."""
        return len(self._replay) >= READY

    def draw(self, most: int, rng: torch.Generator) -> Tensor:
        """Children (B, C, H, W), float32 within the bounds: of ``most`` the share in which classes are missing.

        That share is 1 - e^H / K, with H the entropy of the answered classes in nats: e^H is how many of the K classes
        are answered, counted by how often. Where the other sources reach all classes alike nothing is bred. Of labels
        alone it is ``OF_LABELS``.
        """
        images_NCHW, weight_N, share = self._parents()
        count = int((most * share).round())
        return self._bred(count, images_NCHW, weight_N, rng) if count else images_NCHW[:0]

    def replace(self, x_BCHW: Tensor, most: int, rng: torch.Generator) -> Tensor:
        """The images, the last of them replaced by as many children as ``draw`` gives, without reading how many.

        ``most`` are bred, and those in excess stay unused: so no accelerator is waited for.
        """
        if most == 0:
            return x_BCHW
        images_NCHW, weight_N, share = self._parents()
        bred_BCHW = self._bred(most, images_NCHW, weight_N, rng)
        used_B = torch.arange(most, 0, -1, device=x_BCHW.device) <= (most * share).round()
        last_BCHW = torch.where(used_B[:, None, None, None], bred_BCHW, x_BCHW[-most:])
        return torch.cat([x_BCHW[:-most], last_BCHW])

    def _parents(self) -> tuple[Tensor, Tensor, Tensor]:
        """Paid images, their weights as parents, and the share of a batch to breed, a scalar in float64."""
        images_NCHW, answers = self._replay.sample(self._replay.spec.at_once(PARENTS))
        class_N = top_class(answers).clamp(0, self._num_classes - 1)  # an accelerator's answers are checked later
        # To count by bincount would make an accelerator wait.
        count_K = class_N.new_zeros(self._num_classes).scatter_add_(0, class_N, torch.ones_like(class_N))
        share_K = count_K / len(class_N)
        answered = torch.special.entr(share_K).sum().exp().double()
        weight_N = self._confidence(answers).square() / share_K[class_N]
        share = torch.full_like(answered, OF_LABELS) if self._of_labels else 1.0 - answered / self._num_classes
        return images_NCHW, weight_N, share

    def _bred(self, count: int, images_NCHW: Tensor, weight_N: Tensor, rng: torch.Generator) -> Tensor:
        first_B, second_B = torch.multinomial(weight_N, 2 * count, replacement=True, generator=rng).chunk(2)
        return graft(augment(images_NCHW[first_B], "shift", rng), images_NCHW[second_B], rng)

    def _confidence(self, answers: Tensor) -> Tensor:
        if self._of_labels:
            return torch.ones(len(answers), device=answers.device)
        return log_probabilities(answers, self._mode).amax(dim=1).exp()


def graft(x_BCHW: Tensor, other_BCHW: Tensor, rng: torch.Generator) -> Tensor:
    """Each image with a rectangle of the other one: its centre anywhere, its sides alike as shares of the image's."""
    batch, _, height, width = x_BCHW.shape
    low, high = HALF_SIDES
    row_B1, column_B1, size_B1 = torch.rand(3, batch, 1, generator=rng, device=rng.device).unbind()
    half_B1 = low + (high - low) * size_B1
    rows_BH = (torch.arange(height, device=rng.device).add(0.5) / height - row_B1).abs() < half_B1
    columns_BW = (torch.arange(width, device=rng.device).add(0.5) / width - column_B1).abs() < half_B1
    inside_B1HW = (rows_BH[:, :, None] & columns_BW[:, None, :])[:, None]
    return torch.where(inside_B1HW, other_BCHW, x_BCHW)
