"""The images that students are scored on, as the teacher takes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dfme.config.settings import EvaluationConfig
from dfme.data import DATASETS, DRAWN, ImageSet, load_dataset, whole_name
from dfme.data.class_names import numbered, shown_names
from dfme.errors import OptionError, UserError, say
from dfme.spec import ImageSpec, Shape

HELD_BYTES = 1 << 28  # evaluation images that take more, as float32, are read again at each scoring


def shape_of(config: EvaluationConfig) -> Shape | None:
    """Shape of all images of an evaluation set; None where any is possible, as for a folder."""
    name = whole_name(config.dataset)
    sized = name.endswith(".npz") or name in DATASETS
    if not sized or name in DRAWN:
        return None
    return load_dataset(config.dataset, "test", root=config.root, download=config.download).shape


def chosen_images(
    config: EvaluationConfig, spec: ImageSpec, handed_over: ImageSet | None = None
) -> ImageSet | None:
    """The evaluation images in the teacher's shape, with the data set's own labels; none without a
    set.
    """
    if config.dataset == "none":
        return None
    try:
        data = load_dataset(
            config.dataset,
            "test",
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
) -> ImageSet | None:
    """The evaluation set as the teacher takes it; none without one. UserError if it does not fit
    the teacher.

    ``class_names``: the teacher's, where it announces any. ``tell`` hears how the images were read,
    and what was done to the labels. The digest is that of the images and labels as the data set has
    them.
    """
    chosen = chosen_images(config, spec, handed_over)
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
