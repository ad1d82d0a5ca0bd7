"""One frozen configuration per method. No torch here: the command line reads it before anything heavy loads."""

from __future__ import annotations

from dataclasses import dataclass


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
        reuse: let the answers at the generator's own batch, paid for by forward differences, be the student's
            first batch (as MAZE does): batch_size fewer images per iteration
    """

    batch_size: int = 256
    generator_steps: int = 1
    student_steps: int = 5
    latent_size: int = 256
    generator_lr: float = 1e-4
    reuse: bool = False
