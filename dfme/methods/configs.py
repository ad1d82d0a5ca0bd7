"""One frozen configuration per method. No torch: the command line reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic.dataclasses import dataclass

from dfme.config.sections import EstimatorConfig, ObjectiveName
from dfme.config.values import CONFIG, Count, Natural, NotNegative, Positive, Share, ShareBelowOne

if TYPE_CHECKING:
    BatchSize = int  # which it is once a job is read: dfme.run.recipes.fitted
else:
    BatchSize = Count | Literal["auto"]


@dataclass(frozen=True, config=CONFIG)
class BatchesConfig:
    """Options of all methods that pay for some batches with the students in every iteration."""

    batch_size: BatchSize = 256
    """images per batch, or auto: halved until it fits the budget"""
    student_steps: Count = 5
    """student batches paid for per iteration (d)"""


@dataclass(frozen=True, config=CONFIG)
class ProceduralConfig(BatchesConfig):
    """Queries drawn by a program (``queries.programs``), or the images of a pool; no training."""

    pool: str = "procedural"
    """procedural (drawn by queries.programs, without end), or pictures, each asked once at most: a
    data set (digits, shapes, mnist, cifar10, ...), a FOLDER or an .npz file with at least as many
    as the budget"""
    root: str = "datasets"
    """where torchvision's data sets lie"""
    download: bool = False
    """let torchvision fetch a missing data set"""


@dataclass(frozen=True, config=CONFIG)
class StaticConfig(BatchesConfig):
    """The honest baseline: a generator as it was initialised, never trained."""

    latent_size: Count = 256
    """size of the generator's input"""
    generator: str = "auto"
    """auto (that of DFME's paper), or module:Net of your own: latents (B, latent_size) to images
    before tanh"""


@dataclass(frozen=True, config=CONFIG)
class GeneratorConfig(StaticConfig):
    """Options of all methods that train a generator."""

    generator_steps: Count = 1
    """generator updates per iteration (g)"""
    generator_lr: Positive = 1e-4
    """learning rate of the generator's Adam"""


@dataclass(frozen=True, config=CONFIG)
class EstimatingConfig(GeneratorConfig):
    """Options of methods whose generator learns by gradients that are estimated through the API."""

    learn_from: Literal["students", "all"] = "students"
    """whose answers the students learn from: those paid for with them, or all, the generator's
    images and their neighbours too"""


@dataclass(frozen=True, config=CONFIG)
class DfmeConfig(EstimatingConfig):
    """Data-Free Model Extraction (Truong et al., CVPR 2021, arXiv 2011.14779)."""

    reuse: bool = False
    """let the answers at the generator's own batch, paid for by forward differences, be the
    student's first batch (as MAZE does): batch_size fewer images per iteration"""


@dataclass(frozen=True, config=CONFIG)
class MazeEstimatorConfig(EstimatorConfig):
    """The estimator with MAZE's values."""

    objective: ObjectiveName = "kl"
    directions: Count = 10


@dataclass(frozen=True, config=CONFIG)
class MazeConfig(EstimatingConfig):
    """MAZE (Kariyappa et al., CVPR 2021, arXiv 2005.03161), and with partial_data its variant
    PD-MAZE.
    """

    batch_size: BatchSize = 128
    student_steps: Count = 5
    """student batches learnt from per iteration (d)"""
    generator_lr: Positive = 1e-4
    """learning rate of the generator's SGD"""
    generator_momentum: ShareBelowOne = 0.9
    """of the generator's SGD"""
    generator_weight_decay: NotNegative = 5e-4
    """of the generator's SGD"""
    reuse: bool = True
    """let the answers at the generator's own batch, paid for by forward differences, be the
    student's first batch: batch_size fewer images per iteration"""
    store: Literal["last", "all"] = "last"
    """what is held for replay of an iteration: its last student batch, or all"""
    partial_data: str | None = None
    """real images that the generator's shall resemble: a data set (digits, shapes, mnist, cifar10,
    ...), a FOLDER of images, an .npz file, or procedural; none: MAZE proper"""
    root: str = "datasets"
    """where torchvision's data sets lie"""
    download: bool = False
    """let torchvision fetch a missing data set"""
    seed_images: Count = 100
    """of partial_data: so many are drawn; each is paid for once"""
    gan_weight: NotNegative = 10.0
    """of partial_data: weight of the critic's term in the generator's loss (lambda)"""
    gradient_penalty: NotNegative = 10.0
    """weight of the critic's gradient penalty"""
    critic_steps: Count = 5
    """critic updates before each of the generator's, which cost no queries"""
    critic_lr: Positive = 1e-4
    """learning rate of the critic's Adam"""


@dataclass(frozen=True, config=CONFIG)
class TwoStudentsConfig(GeneratorConfig):
    """Options of methods that play students against each other."""

    generator_steps: Count = 1
    """generator updates per iteration, which cost no queries"""


@dataclass(frozen=True, config=CONFIG)
class DisguideConfig(TwoStudentsConfig):
    """DisGUIDE: disagreement-guided data-free model extraction (Rosenthal et al., AAAI 2023)."""

    student_steps: Count = 1
    diversity: NotNegative = 0.2
    """weight of the class-diversity term (lambda)"""
    grey_every: Natural = 8
    """every so many-th colour image of a batch is made grey, one of its channels in place of all
    three; 0: none"""


@dataclass(frozen=True, config=CONFIG)
class DualStudentsConfig(TwoStudentsConfig):
    """Dual Students (Beetham et al., ICLR 2023): two students, a generator of what they differ
    on.
    """

    before_tanh: bool = False
    """in the generator's step show the students its output before the squashing, as the published
    code does, in place of the image"""


@dataclass(frozen=True, config=CONFIG)
class DfmsConfig(GeneratorConfig):
    """DFMS: a GAN of proxy images (Sanyal et al., CVPR 2022, arXiv 2204.11022); labels or
    scores.
    """

    batch_size: BatchSize = 128
    """images per batch, of the networks and of the student, or auto: halved until it fits the
    budget
    """
    generator_steps: Count = 1
    """steps of generator and discriminator per iteration, which cost no queries"""
    student_steps: Count = 1
    generator_lr: Positive = 2e-4
    discriminator_lr: Positive = 2e-4
    """learning rate of the discriminator's Adam"""
    proxy: str = "procedural"
    """images that the generator's shall resemble: procedural (by queries.programs), a data set
    (digits, shapes, mnist, cifar10, ...), a FOLDER of images or an .npz file"""
    root: str = "datasets"
    """where torchvision's data sets lie"""
    download: bool = False
    """let torchvision fetch a missing data set"""
    gan_steps: Natural = 1_000
    """steps of generator and discriminator before the first query"""
    proxy_share: Share = 0.1
    """share of the budget, the first, that pays for proxy images, each at most once"""
    diversity: NotNegative = 10.0
    """weight of the class-diversity term in the generator's loss (w)"""
    diversity_later: NotNegative = 500.0
    """the same from later_from on"""
    later_from: Share = 0.5
    """share of the budget from which on diversity_later holds"""
    adversarial: NotNegative = 0.0
    """weight of the term that drives the student from the teacher's answers, by the student's slope
    """


@dataclass(frozen=True, config=CONFIG)
class KnockoffConfig:
    """Knockoff Nets, random strategy (Orekondy et al., CVPR 2019, arXiv 1812.02766)."""

    batch_size: BatchSize = 256
    """images per query batch, or auto: halved until it fits the budget"""
    pool: str = "procedural"
    """procedural (leaves, without end), a data set (digits, shapes, mnist, cifar10, ...), a FOLDER
    of images or an .npz file; without end or with at least as many images as the budget"""
    root: str = "datasets"
    """where torchvision's data sets lie"""
    download: bool = False
    """let torchvision fetch a missing data set"""
    epochs: Count = 100
    """passes over all that was paid for, once the budget has run out, of a student whose
    configuration plans neither steps nor replay steps"""
