"""The images a student is scored on, as its teacher takes them."""

from __future__ import annotations

from dataclasses import replace

import torch

from dfme.config import EvaluationConfig
from dfme.data import LabelledImages, load_dataset
from dfme.errors import UserError
from dfme.spec import ImageSpec


def evaluation_images(config: EvaluationConfig, spec: ImageSpec, num_classes: int) -> LabelledImages | None:
    """The evaluation set as the teacher takes it; none without one. UserError if it does not fit the teacher."""
    if config.dataset == "none":
        return None
    try:
        data = load_dataset(config.dataset, "test", shape=spec.shape, root=config.root, download=config.download)
    except UserError as error:
        taken = "x".join(map(str, spec.shape))
        raise UserError(f"--evaluation.dataset: {error} (the teacher takes {taken})") from error
    data = data.subset(config.limit)
    if int(data.labels.max()) >= num_classes:
        raise UserError(
            f"--evaluation.dataset {config.dataset}: has {len(data.class_names)} classes, but the teacher "
            f"answers {num_classes}; choose the data set the teacher was made for"
        )
    x_NCHW = data.batch(slice(None))
    if config.mean is not None and config.std is not None:
        mean_C11, std_C11 = (torch.tensor(values).view(-1, 1, 1) for values in (config.mean, config.std))
        return replace(data, images=(x_NCHW - mean_C11) / std_C11)
    low, high = spec.bounds
    return replace(data, images=x_NCHW * (high - low) + low)
