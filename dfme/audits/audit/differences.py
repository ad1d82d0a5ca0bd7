"""Images on which a copy and its model answer different classes, for the page."""

import io
from collections.abc import Sequence
from typing import Any

import torch
from matplotlib.image import imsave
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from dfme.answers.reading import top_class
from dfme.audits.audit.copies import Differences, DifferentAnswer
from dfme.data import ImageSet
from dfme.report.page import embedded
from dfme.report.run_files import to_picture
from dfme.run.evaluation import EvaluationSet
from dfme.spec import ImageSpec

MAX_SHOWN = 24
SIDE = 96  # pixels of the longer side of a picture at most


def differences(
    evaluation: EvaluationSet, copy: Any, answers: Tensor, scores_NK: Tensor, row: str
) -> Differences:
    """``MAX_SHOWN`` of the images that differ, evenly spread, each with both answers by class
    name.
    """
    names = numbers_without(evaluation.class_names, copy.num_classes)
    top_N = top_class(answers)
    copied_N = scores_NK.argmax(1)
    differ_M = (top_N != copied_N).nonzero()[:, 0]
    count = min(MAX_SHOWN, len(differ_M))
    picked_S = differ_M[torch.arange(count) * len(differ_M) // max(1, count)]
    pictures = list[DifferentAnswer]()
    pictures_SCHW = pick(evaluation.images, picked_S).cpu() if count else ()
    for place, x_CHW in zip(picked_S.tolist(), pictures_SCHW, strict=True):
        classes = names[int(top_N[place])], names[int(copied_N[place])]
        pictures.append(DifferentAnswer(_address(x_CHW, copy.spec), *classes))
    return Differences(row, len(top_N), len(differ_M), pictures)


def pick(images: Tensor | ImageSet, places_S: Tensor) -> Tensor:
    """The images at these places."""
    if isinstance(images, ImageSet):
        return images.batch(places_S)
    return images[places_S.to(images.device)]


def numbers_without(names: Sequence[str], classes: int) -> Sequence[str]:
    """The names of so many classes; their numbers where these are the names of others, or none."""
    return names if len(names) == classes else [*map(str, range(classes))]


def _address(x_CHW: Tensor, spec: ImageSpec) -> str:
    """A picture that holds itself, no larger than is seen."""
    (low, high) = spec.bounds
    times = max(1, -(-max(x_CHW.shape[1:]) // SIDE))
    (height, width) = (max(1, side // times) for side in x_CHW.shape[1:])
    small_CHW = adaptive_avg_pool2d(x_CHW.float(), (height, width))
    bytes_CHW = ((small_CHW - low) / (high - low) * 255).round().clamp(0, 255).byte()
    buffer = io.BytesIO()
    imsave(buffer, to_picture(bytes_CHW.numpy()), format="png")
    return embedded(buffer.getvalue())
