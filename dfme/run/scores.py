"""How good a copy is: accuracy, agreement with the teacher, and the divergence of its answers from the teacher's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dfme.compute import evaluating
from dfme.precision import ieee_fp32
from dfme.spec import ImageSpec, LabelMode
from dfme.students.losses import log_probabilities, top_class

EVALUATION_BATCH = 500
"""Images per forward pass while scoring, fewer of large ones; bounds memory, changes no result."""

COMPARED = 1 << 24
"""Scores that are compared at once: bounds memory."""

MANY_CLASSES = 100
"""Classes from which on the top five are looked at."""


@dataclass(frozen=True)
class Stream:
    """Images (N, C, H, W) that are made float32 on ``device`` when they are looked at: ``read(start, end)``."""

    shape: Sequence[int]
    device: torch.device
    read: Callable[[int, int], Tensor]

    def __len__(self) -> int:
        return self.shape[0]

    def split(self, count: int) -> Iterator[Tensor]:
        """So many at a time, as a tensor's ``split``."""
        for start in range(0, len(self), count):
            yield self.read(start, min(start + count, len(self))).to(self.device)


def evaluation_batch(shape: Sequence[int]) -> int:
    """How many images of a shape (..., C, H, W) are scored at once."""
    channels, height, width = shape[-3:]
    return ImageSpec((channels, height, width)).at_once(EVALUATION_BATCH)


def batches(images: Tensor | Stream) -> Iterable[Tensor]:
    """The images, as many as are scored at once."""
    parts: Iterable[Tensor] = images.split(evaluation_batch(images.shape))
    return parts


@torch.no_grad()
def scores(net: nn.Module, images: Tensor | Stream) -> Tensor:
    """The net's scores (N, K) on the images, in eval mode, in IEEE fp32, in batches."""
    with evaluating(net), ieee_fp32():
        return torch.cat([net(part) for part in batches(images)]).float()


def compare(scores_NK: Tensor, answers: Tensor, mode: LabelMode) -> dict[str, float]:
    """``agreement``: share of images with the teacher's top class. ``kl``: mean KL(teacher || student) in nats,
    where the answers are soft. ``agreement_top5``: see ``report.metrics``; of 100 classes or more."""
    top_N, rows = top_class(answers), max(1, COMPARED // scores_NK.shape[1])
    result = {"agreement": (scores_NK.argmax(dim=1) == top_N).double().mean().item()}
    if scores_NK.shape[1] >= MANY_CLASSES:
        among_N = (scores_NK.topk(5, dim=1).indices == top_N[:, None]).any(dim=1)
        result["agreement_top5"] = among_N.double().mean().item()
    if mode.soft:
        pairs = zip(scores_NK.split(rows), answers.split(rows), strict=True)
        result["kl"] = torch.cat([_divergence(*pair, mode) for pair in pairs]).mean().item()
    return result


def _divergence(scores_NK: Tensor, answers: Tensor, mode: LabelMode) -> Tensor:
    target_NK = log_probabilities(answers.double(), mode)
    kl_N: Tensor = (target_NK.exp() * (target_NK - scores_NK.double().log_softmax(dim=1))).sum(dim=1)
    return kl_N
