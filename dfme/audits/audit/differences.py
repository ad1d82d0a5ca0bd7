"""Images on which a copy and its model answer different classes, for the page."""

import io
from collections.abc import Sequence
from typing import Any

import torch
from matplotlib.image import imsave
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from dfme.answers.reading import top_class
from dfme.audits.audit.model import Entry
from dfme.data import ImageSet
from dfme.report.page import embedded
from dfme.report.run_files import to_picture
from dfme.run.evaluation import EvaluationSet
from dfme.spec import ImageSpec

MAX_SHOWN = 24
SIDE = 96  # pixels of the longer side of a picture at most


def differences(
    on: EvaluationSet, copy: Any, answers: Tensor, scores_NK: Tensor, row: str
) -> Entry:
    """``MAX_SHOWN`` of the images that differ, evenly spread, each with both answers by class
    name.
    """
    names = numbers_without(on.class_names, copy.num_classes)
    top_N = top_class(answers)
    own_N = scores_NK.argmax(1)
    differ_M = (top_N != own_N).nonzero()[:, 0]
    count = min(MAX_SHOWN, len(differ_M))
    picked_S = differ_M[torch.arange(count) * len(differ_M) // max(1, count)]
    found: Entry = {"row": row, "images": len(top_N), "differ": len(differ_M), "shown": []}
    if count:
        held = on.images
        x_SCHW = (
            held.batch(picked_S) if isinstance(held, ImageSet) else held[picked_S.to(held.device)]
        )
        pictures = [_address(x_CHW, copy.spec) for x_CHW in x_SCHW.cpu()]
        pairs = zip(pictures, top_N[picked_S].tolist(), own_N[picked_S].tolist(), strict=True)
        told = [
            {"image": image, "model": names[top], "clone": names[own]} for image, top, own in pairs
        ]
        found["shown"] = told
    return found


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
