"""Scores of a copy: accuracy, agreement with the teacher, divergence of answers."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from dfme.answers.reading import largest, top_class
from dfme.compute.modes import evaluating
from dfme.data import ImageSet
from dfme.precision import ieee_fp32
from dfme.spec import ImageSpec, LabelMode
from dfme.students.losses import make_distance

EVALUATION_BATCH = (
    500  # images per forward pass while scoring, fewer of large ones; changes no result
)
COMPARED = 1 << 24  # scores that are compared at once: bounds memory
MANY_CLASSES = 100  # from which on the top five are looked at


def evaluation_batch(shape: Sequence[int]) -> int:
    """Number of images of a shape (..., C, H, W) that are scored at once."""
    channels, height, width = shape[-3:]
    return ImageSpec((channels, height, width)).at_once(EVALUATION_BATCH)


def batches(images: Tensor | ImageSet) -> Iterable[Tensor]:
    """The images, as many as are scored at once."""
    parts: Iterable[Tensor] = images.split(evaluation_batch(images.shape))
    return parts


@torch.no_grad()
def scores(net: nn.Module, images: Tensor | ImageSet) -> Tensor:
    """The net's scores (N, K) on the images, in eval mode, in IEEE fp32, in batches."""
    with evaluating(net), ieee_fp32():
        return torch.cat([net(part) for part in batches(images)]).float()


def compare(scores_NK: Tensor, answers: Tensor, mode: LabelMode) -> dict[str, float]:
    """``agreement``: share of images with the teacher's top class. ``kl``: mean KL(teacher ||
    student) in nats, where the answers are soft. ``agreement_top5``: see ``report.metrics``; of 100
    classes or more.

    Beside them ``agreement_balanced``, and ``constant_agreement``, that of one answer to
    everything.
    """
    top_N = top_class(answers)
    many = max(1, COMPARED // scores_NK.shape[1])
    same_N = scores_NK.argmax(dim=1) == top_N
    result = {
        "agreement": same_N.double().mean().item(),
        "agreement_balanced": balanced(same_N, top_N),
        "constant_agreement": torch.bincount(top_N).max().item() / len(top_N),
    }
    if scores_NK.shape[1] >= MANY_CLASSES:
        among_N = largest(scores_NK, 5).gather(1, top_N[:, None])
        result["agreement_top5"] = among_N.double().mean().item()
    if mode.soft:
        divergence = make_distance("kl", mode)
        pairs = zip(scores_NK.split(many), answers.split(many), strict=True)
        kl_N = torch.cat(
            [
                divergence(student_NK.double(), teacher_NK.double())
                for student_NK, teacher_NK in pairs
            ]
        )
        result["kl"] = kl_N.mean().item()
    return result


def balanced(same_N: Tensor, top_N: Tensor) -> float:
    """Mean over the teacher's classes of the share of their images where the student says the
    ``same``.

    Of a constant answer it is 1 / K' for K' classes that occur. It is the balanced accuracy of
    Brodersen et al. 2010 (ICPR, 3121-3124), with the teacher's top classes in place of labels.
    """
    images_K = torch.bincount(top_N)
    same_K = torch.bincount(top_N[same_N], minlength=len(images_K))
    occurs_K = images_K > 0
    return (same_K[occurs_K].double() / images_K[occurs_K]).mean().item()
