"""One frozen configuration per method. No torch here: the command line reads it before anything heavy loads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class StaticConfig:
    """The honest baseline: a generator as it was initialised, never trained.

    Args:
        batch_size: images per query batch
        student_steps: student batches paid for per iteration
        latent_size: size of the generator's input
    """

    batch_size: int = 256
    student_steps: int = 5
    latent_size: int = 256


@dataclass(frozen=True)
class DfmeConfig:
    """Data-Free Model Extraction (Truong et al., CVPR 2021, arXiv 2011.14779).

    Args:
        batch_size: images per batch, of the generator and of the student
        generator_steps: generator updates per iteration (g)
        student_steps: student batches paid for per iteration (d)
        latent_size: size of the generator's input
        generator_lr: learning rate of the generator's Adam
        directions: random directions per image of the estimate (m)
        step: length of a finite difference, in units of the perturbed space
        form: forward differences cost m+1 queries per image, central ones 2m
        direction: sphere (uniform on the unit sphere), gaussian, or rademacher (+-1 per pixel)
        space: where to perturb: pre_squash (before the generator's last tanh) or image
    """

    batch_size: int = 256
    generator_steps: int = 1
    student_steps: int = 5
    latent_size: int = 256
    generator_lr: float = 1e-4
    directions: int = 1
    step: float = 1e-3
    form: Literal["forward", "central"] = "forward"
    direction: Literal["sphere", "gaussian", "rademacher"] = "sphere"
    space: Literal["pre_squash", "image"] = "pre_squash"
