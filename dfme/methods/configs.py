"""One frozen configuration per method. No torch here: the command line reads it before anything heavy loads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dfme.config.settings import EstimatorConfig, ObjectiveName


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


@dataclass(frozen=True)
class MazeEstimatorConfig(EstimatorConfig):
    """The estimator with MAZE's values."""

    objective: ObjectiveName = "kl"
    directions: int = 10


@dataclass(frozen=True)
class MazeConfig:
    """MAZE (Kariyappa et al., CVPR 2021, arXiv 2005.03161), and with partial_data its variant PD-MAZE.

    Args:
        batch_size: images per batch, of the generator and of the student
        generator_steps: generator updates per iteration (g)
        student_steps: student batches learnt from per iteration (d)
        latent_size: size of the generator's input
        generator_lr: learning rate of the generator's SGD
        reuse: let the answers at the generator's own batch, paid for by forward differences, be the student's
            first batch: batch_size fewer images per iteration
        store: what is held for replay of an iteration: its last student batch, or all
        partial_data: real images that the generator's shall resemble: a data set (digits, shapes, mnist, cifar10, ...),
            a FOLDER of images, an .npz file, or procedural; none: MAZE proper
        root: where torchvision's data sets lie
        download: let torchvision fetch a missing data set
        seed_images: of partial_data: so many are drawn; each is paid for once
        gan_weight: of partial_data: weight of the critic's term in the generator's loss (lambda)
        gradient_penalty: weight of the critic's gradient penalty
        critic_steps: critic updates before each of the generator's, which cost no queries
        critic_lr: learning rate of the critic's Adam
    """

    batch_size: int = 128
    generator_steps: int = 1
    student_steps: int = 5
    latent_size: int = 256
    generator_lr: float = 1e-4
    reuse: bool = True
    store: Literal["last", "all"] = "last"
    partial_data: str | None = None
    root: str = "datasets"
    download: bool = False
    seed_images: int = 100
    gan_weight: float = 10.0
    gradient_penalty: float = 10.0
    critic_steps: int = 5
    critic_lr: float = 1e-4


@dataclass(frozen=True)
class DisguideConfig:
    """DisGUIDE: disagreement-guided data-free model extraction (Rosenthal et al., AAAI 2023).

    Args:
        batch_size: images per batch, of the generator and of the students
        generator_steps: generator updates per iteration, which cost no queries
        student_steps: student batches paid for per iteration
        latent_size: size of the generator's input
        generator_lr: learning rate of the generator's Adam
        diversity: weight of the class-diversity term (lambda)
        grey_every: every so many-th image of a batch is made grey; 0: none
    """

    batch_size: int = 256
    generator_steps: int = 1
    student_steps: int = 5
    latent_size: int = 256
    generator_lr: float = 1e-4
    diversity: float = 0.2
    grey_every: int = 8


@dataclass(frozen=True)
class DualStudentsConfig:
    """Dual Students (Beetham et al., ICLR 2023): two students, a generator of what they differ on.

    Args:
        batch_size: images per batch, of the generator and of the students
        generator_steps: generator updates per iteration, which cost no queries
        student_steps: student batches paid for per iteration
        latent_size: size of the generator's input
        generator_lr: learning rate of the generator's Adam
        before_tanh: in the generator's step show the students its output before the squashing, as the published
            code does, in place of the image
    """

    batch_size: int = 256
    generator_steps: int = 1
    student_steps: int = 5
    latent_size: int = 256
    generator_lr: float = 1e-4
    before_tanh: bool = False


@dataclass(frozen=True)
class ProceduralConfig:
    """Queries drawn by a program (``queries.programs``), with no data and no training.

    Args:
        batch_size: images per query batch
        student_steps: student batches paid for per iteration
    """

    batch_size: int = 256
    student_steps: int = 5


@dataclass(frozen=True)
class DfmsConfig:
    """DFMS: a GAN of proxy images (Sanyal et al., CVPR 2022, arXiv 2204.11022); HL on labels, SL on scores.

    Args:
        batch_size: images per batch, of the networks and of the student
        generator_steps: steps of generator and discriminator per iteration, which cost no queries
        student_steps: student batches paid for per iteration
        latent_size: size of the generator's input
        generator_lr: learning rate of the generator's Adam
        discriminator_lr: learning rate of the discriminator's Adam
        proxy: images that the generator's shall resemble: procedural (by queries.programs), a data set (digits, shapes,
            mnist, cifar10, ...), a FOLDER of images or an .npz file
        root: where torchvision's data sets lie
        download: let torchvision fetch a missing data set
        gan_steps: steps of generator and discriminator before the first query
        proxy_share: share of the budget, the first, that pays for proxy images, each at most once
        diversity: weight of the class-diversity term in the generator's loss (w)
        diversity_later: the same from later_from on
        later_from: share of the budget from which on diversity_later holds
        adversarial: weight of the term that drives the student from the teacher's answers, by the student's slope
    """

    batch_size: int = 128
    generator_steps: int = 1
    student_steps: int = 1
    latent_size: int = 256
    generator_lr: float = 2e-4
    discriminator_lr: float = 2e-4
    proxy: str = "procedural"
    root: str = "datasets"
    download: bool = False
    gan_steps: int = 1_000
    proxy_share: float = 0.1
    diversity: float = 10.0
    diversity_later: float = 500.0
    later_from: float = 0.5
    adversarial: float = 0.0


@dataclass(frozen=True)
class KnockoffConfig:
    """Knockoff Nets, random strategy (Orekondy et al., CVPR 2019, arXiv 1812.02766): other images, each paid for once.

    Args:
        batch_size: images per query batch
        pool: procedural (leaves, without end), a data set (digits, shapes, mnist, cifar10, ...), a FOLDER of images
            or an .npz file; without end or with at least as many images as the budget
        root: where torchvision's data sets lie
        download: let torchvision fetch a missing data set
        epochs: passes over all that was paid for, once the budget has run out, of a student whose configuration
            plans neither steps nor replay steps
    """

    batch_size: int = 256
    pool: str = "procedural"
    root: str = "datasets"
    download: bool = False
    epochs: int = 100
