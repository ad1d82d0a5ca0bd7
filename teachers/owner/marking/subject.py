"""The model that is marked, its images, and what a copy of it looks like."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dfme.compute.device import derived_seed
from dfme.config.settings import TeacherConfig
from dfme.data import ImageSet
from dfme.errors import OptionError, flag
from dfme.files import sha256_of
from dfme.nets import auto_net, build_net
from dfme.nets.files import SMALL_NETWORK, save_module
from dfme.spec import ImageSpec
from dfme.teachers.local.checks import flagged_scale
from dfme.teachers.local.pytorch import TorchTeacher
from dfme.teachers.local.weights import Card, read_checkpoint
from dfme.teachers.owner.marking.judging import share_right
from dfme.teachers.owner.marking.lessons import LARGE_RATE, TEACH_RATE, OwnerModel, answers
from dfme.teachers.owner.marking.options import MarkConfig
from dfme.teachers.owner.marking.plan import require_images
from dfme.teachers.owner.marking.rule import LabelledImages

MIN_OF_CLASS = 40
"""Training images of a class that a rule may be of."""
MIN_USABLE = 2
"""Classes that a rule may be of, or name."""
MIN_CHANGED = 5
"""Training images that a rule changes."""
MIN_TEST = 50
MAX_TRIED = 200
"""Test images by which the model is tried before it is marked."""
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
    names: tuple[str, ...]
    """of the classes, where they have any"""
    inputs: dict[str, str]
    """SHA-256 of the original weights' file and of the images"""
    doubts: tuple[str, ...] = ()
    """sentences on what may be wrong with the model or the images"""

    @property
    def classes(self) -> int:
        return self.teacher.num_classes

    def spared(self, words: Sequence[str]) -> frozenset[int]:
        """The classes that these names or numbers name. OptionError for what names none, or two."""
        names = self.names
        spared = set[int]()
        for word in words:
            meant = {number for number, name in enumerate(names) if name == word}
            if word.isdecimal() and int(word) < self.classes:
                meant.add(int(word))
            if len(meant) != 1:
                expected = f"a name or a number of one of {self.classes} classes"
                two = f", which are two: {sorted(meant)}" if meant else ""
                raise OptionError("spare", f"expected {expected}", f"{word}{two}")
            spared |= meant
        return frozenset(spared)

    def usable(self, spare: Sequence[str]) -> dict[int, int]:
        """Training images of each class that a rule may be of, or name."""
        counts_K = self.train.classes_N.bincount(minlength=self.classes).tolist()
        spared = self.spared(spare)
        return {number: count for number, count in enumerate(counts_K) if number not in spared}

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


def check_images(subject: Subject, config: MarkConfig) -> None:
    """UserError for too few images, or classes that may be marked."""
    require_images(len(subject.test), MIN_TEST, "test images")
    usable = subject.usable(config.spare)
    if len(usable) < MIN_USABLE:
        expected = f"{MIN_USABLE} or more of the {subject.classes} classes to be left"
        raise OptionError("spare", f"expected {expected}", str(len(usable)))
    require_images(max(usable.values()), MIN_OF_CLASS, "training images of some class")
    changed = round(config.share * len(subject.train))
    what = f"training images in a {flag('share', config.share)} of them, give more or a larger one"
    require_images(changed, MIN_CHANGED, what)


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
    train_images = images_of(train)
    distinct = train_images.distinct
    test_images = images_of(test)
    return Subject(
        teacher,
        card,
        arch if small else auto_net(teacher.spec.shape, accelerated),
        TEACH_RATE if small else LARGE_RATE,
        distinct,
        test_images,
        tuple(teacher.info.class_names or train.class_names or ()),
        {"original": sha256_of(path), "train": train.digest, "test": test.digest},
        (
            *_doubts_of_images(train_images, distinct, test_images),
            *_doubts_of_model(OwnerModel(teacher), test_images),
        ),
    )


def _doubts_of_model(owner: OwnerModel, test: LabelledImages) -> Iterator[str]:
    """What is said of a model that is of no use for these images, by some of them."""
    rng = torch.Generator().manual_seed(0)
    some = test.part(torch.randperm(len(test), generator=rng)[:MAX_TRIED])
    right = share_right(answers(owner, some.x_NCHW), some.classes_N)
    constant = int(some.classes_N.bincount().max()) / len(some)
    if right <= constant:
        yield (
            f"the model answers {right:.1%} of {len(some):,} test images rightly, and one answer "
            f"to all of them is right on {constant:.1%}: are these its classes, in its order, and "
            "pixels as it takes them?"
        )


def _doubts_of_images(
    train: LabelledImages, distinct: LabelledImages, test: LabelledImages
) -> Iterator[str]:
    """What is said of training images that repeat others, and of test images that are among
    them.
    """
    if repeats := len(train) - len(distinct):
        yield (
            f"{repeats:,} of {len(train):,} training images repeat another of their class: they "
            "are left out, and shares are of the others."
        )
    known = set(distinct.fingerprints)
    if seen := sum(image in known for image in test.fingerprints):
        yield (
            f"{seen:,} of {len(test):,} test images are among the training images: accuracy, and "
            "what the last copy comes to, are not of images that are new to the model."
        )


def images_of(data: ImageSet) -> LabelledImages:
    """All images of a set, or as many as memory takes."""
    most = MAX_NUMBERS // ImageSpec(data.shape).numel
    data = data.subset(most) if len(data) > most else data
    return LabelledImages(data.batch(slice(None)), data.required_labels)
