"""The model that is marked, its images, and what a copy of it looks like."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import file_digest
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dfme.compute.device import derived_seed
from dfme.config.settings import TeacherConfig
from dfme.data import ImageSet
from dfme.errors import OptionError
from dfme.files import open_file
from dfme.nets import auto_net, build_net
from dfme.nets.files import SMALL_NETWORK, save_module
from dfme.spec import ImageSpec
from dfme.teachers.local.checks import flagged_scale
from dfme.teachers.local.pytorch import TorchTeacher
from dfme.teachers.local.weights import Card, read_checkpoint
from dfme.teachers.owner.marking.lessons import LARGE_RATE, TEACH_RATE, OwnerModel
from dfme.teachers.owner.marking.rule import LabelledImages

MAX_NUMBERS = 1_000_000_000
"""Of the training images: four gigabytes. Of more, a part is taken, spread evenly."""


@dataclass(frozen=True)
class Subject:
    """A teacher of kind torch, the card of the file that it will be written to, and images."""

    teacher: TorchTeacher
    card: Card
    arch: str
    """of copies"""
    rate: float
    """at which the owner is taught"""
    train: LabelledImages
    test: LabelledImages
    inputs: dict[str, str]
    """SHA-256 of the original weights' file and of the images"""

    @property
    def classes(self) -> int:
        return self.teacher.num_classes

    @property
    def owner(self) -> OwnerModel:
        return OwnerModel(self.teacher)

    def second(self) -> OwnerModel:
        """The same model with weights of its own."""
        return OwnerModel(copy.deepcopy(self.teacher))

    def fresh(self, seed: int) -> nn.Module:
        """A network that is to become a copy."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derived_seed(seed, "weights"))
            net = build_net(self.arch, self.teacher.spec.shape, self.classes)
        return net.to(self.teacher.device)

    def save(self, path: Path, accuracy: float) -> str:
        """Write the model as train-teacher does; the file's SHA-256."""
        card = replace(self.card, accuracy=round(accuracy, 6), test_images=len(self.test))
        save_module(path, self.teacher.network, card.to_metadata())
        return sha256_of(path)


def subject_of(
    teacher: TorchTeacher,
    config: TeacherConfig,
    options: Mapping[str, Any],
    train: ImageSet,
    test: ImageSet,
) -> Subject:
    """OptionError for a network that cannot be written as one of ours."""
    if options.get("transform_input"):
        raise OptionError(
            "teacher.transform_input",
            "a network that scales its input again cannot be written as it is; expected another",
        )
    path = Path(options["checkpoint"]).expanduser()
    card = read_checkpoint(path, options.get("entry")).card
    mean, std = flagged_scale(config) or (card.mean, card.std)
    arch = teacher.arch or ""
    card = replace(
        card,
        arch=arch,
        shape=teacher.spec.shape,
        num_classes=teacher.num_classes,
        mean=mean,
        std=std,
        bounds=teacher.spec.bounds,
    )
    size = sum(weight.numel() for weight in teacher.network.parameters())
    small = size <= SMALL_NETWORK
    accelerated = teacher.device.type != "cpu"
    return Subject(
        teacher,
        card,
        arch if small else auto_net(teacher.spec.shape, accelerated),
        TEACH_RATE if small else LARGE_RATE,
        images_of(train),
        images_of(test),
        {"original": sha256_of(path), "train": train.digest, "test": test.digest},
    )


def images_of(data: ImageSet) -> LabelledImages:
    """All images of a set, or as many as memory takes."""
    most = MAX_NUMBERS // ImageSpec(data.shape).numel
    data = data.subset(most) if len(data) > most else data
    return LabelledImages(data.batch(slice(None)), data.required_labels)


def sha256_of(path: Path) -> str:
    with open_file(path) as file:
        return file_digest(file, "sha256").hexdigest()
