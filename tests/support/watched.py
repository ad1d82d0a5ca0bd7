"""The digits teacher's answers as a watch sees them, honest images, and streams of an attack."""

from functools import cache

import torch
from defended import digits
from torch import Tensor

from dfme.config.imports import find_target
from dfme.data import load_dataset
from dfme.queries.programs import ProceduralImages
from dfme.spec import ImageSpec, Teacher
from dfme.teachers.owner.features import Mahalanobis
from dfme.teachers.owner.utility import corrupted
from dfme.teachers.owner.watch import DETECTORS
from dfme.teachers.owner.watch.detector import Benign, Detector, Observation

SPEC = ImageSpec((1, 8, 8))


@cache
def features() -> Mahalanobis:
    return Mahalanobis(teacher(), "digits", "benign")


@cache
def teacher() -> Teacher:
    return digits()


def seen(images_BCHW: Tensor, inside: bool = True) -> Observation:
    """What the watch sees; ``inside``: into the network, too."""
    images_BCHW = images_BCHW.clamp(0, 1)
    distance_B = features()(images_BCHW) if inside else None
    return Observation(images_BCHW, teacher()(images_BCHW).double(), distance_B)


@cache
def drawn(program: str, count: int = 1_500) -> Observation:
    return seen(procedural(program, count))


def held_out(measuring: bool, seed: int = 0) -> Tensor:
    """Every second test image in random order: those to calibrate on, or the others."""
    images_NCHW = load_dataset("digits", "test").images[int(measuring) :: 2]
    return images_NCHW[
        torch.randperm(len(images_NCHW), generator=torch.Generator().manual_seed(seed))
    ]


def in_turn(count: int) -> Tensor:
    """Training images of the ten classes in turn, as the teacher sees them."""
    images_NCHW = load_dataset("digits", "train").images[:400]
    top_N = teacher()(images_NCHW).argmax(1)
    return torch.stack([images_NCHW[top_N == top][:count] for top in range(10)], 1).flatten(0, 1)


def worn(images_NCHW: Tensor, seed: int = 0) -> Tensor:
    return corrupted(images_NCHW.clone(), SPEC, torch.Generator().manual_seed(seed)).clamp(0, 1)


@cache
def benign() -> Benign:
    return Benign(seen(held_out(False)), seen(worn(held_out(False))), 10)


def detector(name: str, own: Benign | None = None) -> Detector:
    made: Detector = find_target(DETECTORS[name])(own or benign())
    return made


def procedural(program: str, count: int = 1_500) -> Tensor:
    return ProceduralImages(SPEC, [program]).draw(count, torch.Generator().manual_seed(0))


def pairs(base_BCHW: Tensor, directions: int = 1, step: float | None = None) -> Tensor:
    """Each image, then itself moved in so many directions: to an L2 of ``step``."""
    rng = torch.Generator().manual_seed(1)
    signs = torch.randn((len(base_BCHW), directions, *base_BCHW.shape[1:]), generator=rng)
    if step is None:
        level_BCHW = (base_BCHW * 255).round()
        base_BCHW = level_BCHW / 255
        way = signs.sign()
        level = level_BCHW[:, None]
        way = torch.where((level + way < 0) | (level + way > 255), -way, way)
        moved = (level + way) / 255
    else:
        unit = signs.flatten(2) / signs.flatten(2).norm(dim=2, keepdim=True)
        moved = base_BCHW[:, None] + step * unit.view_as(signs)
    return torch.cat([base_BCHW[:, None], moved], 1).flatten(0, 1)
