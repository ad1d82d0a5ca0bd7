"""How a copy is scored: the images as the teacher takes them, agreement, accuracy, divergence."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from dfme.answers.reading import largest, top_class
from dfme.compute.device import ieee_fp32
from dfme.compute.modules import evaluating
from dfme.config.settings import EvaluationConfig
from dfme.data import DATASETS, DRAWN, ImageSet, load_dataset, whole_name
from dfme.data.class_names import numbered, shown_names
from dfme.data.images import Split
from dfme.errors import OptionError, UserError, say
from dfme.spec import ImageSpec, LabelMode, Shape
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


HELD_BYTES = 1 << 28  # evaluation images that take more, as float32, are read again at each scoring


def shape_of(config: EvaluationConfig) -> Shape | None:
    """Shape of all images of an evaluation set; None where any is possible, as for a folder."""
    name = whole_name(config.dataset)
    sized = name.endswith(".npz") or name in DATASETS
    if not sized or name in DRAWN:
        return None
    return load_dataset(config.dataset, "test", root=config.root, download=config.download).shape


def chosen_images(
    config: EvaluationConfig,
    spec: ImageSpec,
    handed_over: ImageSet | None = None,
    split: Split = "test",
) -> ImageSet | None:
    """The evaluation images in the teacher's shape, with the data set's own labels; none without a
    set. ``split``: the part of the set.
    """
    if config.dataset == "none":
        return None
    try:
        data = load_dataset(
            config.dataset,
            split,
            shape=spec.shape,
            root=config.root,
            download=config.download,
            handed_over=handed_over,
            lazy=True,
        )
    except UserError as error:
        taken = "x".join(map(str, spec.shape))
        text = say("{} (the teacher takes {})", error.message, taken)
        raise OptionError("evaluation.dataset", text) from error
    return data.subset(config.limit)


def evaluation_images(
    config: EvaluationConfig,
    spec: ImageSpec,
    num_classes: int,
    class_names: Sequence[str] | None = None,
    handed_over: ImageSet | None = None,
    tell: Callable[[str], None] = lambda line: None,
    split: Split = "test",
) -> ImageSet | None:
    """The evaluation set as the teacher takes it; none without one. UserError if it does not fit
    the teacher.

    ``class_names``: the teacher's, where it announces any. ``tell`` hears how the images were read,
    and what was done to the labels. The digest is that of the images and labels as the data set has
    them.
    """
    chosen = chosen_images(config, spec, handed_over, split)
    if chosen is None:
        return None
    folder = whole_name(config.dataset) not in DATASETS
    data = numbered(chosen, num_classes, config.classes, class_names, folder=folder)
    labels = None if config.classes is not None else chosen.labels
    if labels is not None and not torch.equal(labels, data.required_labels):
        order = shown_names(data.class_names)
        tell(f"evaluation: the classes of {chosen.name} are put in the teacher's order: {order}")
    if 4 * math.prod(chosen.images.shape) <= HELD_BYTES:
        chosen = replace(chosen, images=chosen.batch(slice(None)), read=None)
        normalised = replace(data, images=_taken(chosen.images, config, spec), read=None)
    else:
        normalised = replace(data, read=lambda index: _taken(data.batch(index), config, spec))
    # every picture is read here, so one that cannot be is found before anything is asked
    digest = chosen.digested().digest
    for note in chosen.notes:
        tell(f"evaluation: {note}")
    return replace(normalised, digest=digest)


def _taken(x_NCHW: Tensor, config: EvaluationConfig, spec: ImageSpec) -> Tensor:
    """Images within 0 and 1 as the teacher takes them."""
    if config.mean is not None and config.std is not None:
        mean_C11, std_C11 = (
            torch.tensor(values).view(-1, 1, 1) for values in (config.mean, config.std)
        )
        return (x_NCHW - mean_C11) / std_C11
    low, high = spec.bounds
    return x_NCHW * (high - low) + low
