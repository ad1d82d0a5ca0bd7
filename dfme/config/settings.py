"""Settings of a run: one model per section, each field's type, range and help. No torch."""

import dataclasses
import math
from dataclasses import field, replace
from itertools import accumulate, pairwise
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from dfme.config.answer_settings import AnswersConfig
from dfme.config.defences import DefencesText
from dfme.config.detectors import OnAlarm, WatchText
from dfme.config.estimator_settings import EstimatorConfig
from dfme.config.fields import (
    CONFIG,
    Basic,
    Classes,
    Count,
    Device,
    Images,
    LabelModeText,
    Natural,
    NotNegative,
    Positive,
    Price,
    Seed,
    Share,
    ShareBelowOne,
    accepted_by,
)
from dfme.config.messages import listed
from dfme.config.query_settings import QueriesConfig
from dfme.config.wandb_settings import WandbConfig
from dfme.errors import UserError
from dfme.spec import SMALL_SIDE, ImageSpec, LabelMode, Shape


def _require_milestones(shares: tuple[float, ...]) -> None:
    if not all(lower < upper for lower, upper in pairwise((0.0, *shares, 1.0))):
        raise UserError(
            f"expected increasing shares of the budget between 0 and 1, got {listed(shares)}"
        )


def _require_rounds(shares: tuple[float, ...]) -> None:
    rising = all(lower < upper for lower, upper in pairwise((0.0, *shares)))
    if shares and not (rising and shares[-1] == 1):
        raise UserError(
            f"expected increasing shares of the budget, the last one 1, got {listed(shares)}"
        )


Augmentation = Literal["none", "flip", "shift", "both", "affine"]
UpTo64 = Annotated[int, Field(ge=0, le=64)]
ShapeOption = Annotated[tuple[int, int, int], accepted_by(ImageSpec)]
Bounds = Annotated[tuple[float, float], accepted_by(lambda bounds: ImageSpec((1, 1, 1), bounds))]
Levels = Annotated[int, accepted_by(lambda levels: ImageSpec((1, 1, 1), levels=levels))]
Milestones = Annotated[tuple[float, ...], accepted_by(_require_milestones)]
Rounds = Annotated[tuple[float, ...], accepted_by(_require_rounds)]


@dataclass(frozen=True, config=CONFIG)
class TeacherConfig:
    """Options that every kind of teacher has; a kind's own options stand beside it in a job."""

    kind: Basic[str] = "torch"
    """module:Class or module:function of your own"""
    shape: Basic[ShapeOption | None] = None
    """images as C,H,W; inferred where it can be"""
    num_classes: Basic[Classes | None] = None
    """number of classes, 2 of a binary model with one output; inferred where it can be"""
    label_mode: Basic[LabelModeText | None] = None
    """logits, probabilities[:DECIMALS], top_k:K[:DECIMALS] or label (hard labels); the owner
    decides
    """
    bounds: Bounds | None = None
    """lowest and highest pixel value the API takes"""
    levels: Levels | None = None
    """pixel values the wire can carry (256: 8-bit images); none: floats"""
    mean: tuple[float, ...] | None = None
    """per-channel mean that the teacher subtracts inside"""
    std: tuple[Positive, ...] | None = None
    """per-channel deviation that the teacher divides by inside"""
    max_batch: Count | None = None
    """most images in one call"""
    defences: DefencesText = ()
    """of a teacher on this machine, such as modelguard_w:epsilon=1+lattice:n=10 (docs/defences.md)
    """
    watch: WatchText = ()
    """of a teacher on this machine: detectors that see every image asked, such as pairs,sequential
    """
    benign: str | None = None
    """owner's held-out labelled images that calibrate the detectors: a data set's name, or FOLDER
    """
    on_alarm: OnAlarm = "log"
    """what follows an alarm: log (answers stay), refuse, or label (the top class alone from then
    on)
    """
    price_per_1000: Price | None = None
    """what a thousand answered images cost, in any currency; the cost is shown and kept"""


@dataclass(frozen=True, config=CONFIG)
class ScheduleConfig:
    """Learning rates of student and generator as a function of the share of the budget spent."""

    kind: Literal["steps", "cosine", "constant"] = "steps"
    """steps (multiply at milestones), cosine (to zero at the end of the budget) or constant"""
    milestones: Milestones = (0.1, 0.3, 0.5)
    """shares of the budget, within 0 and 1, at which the learning rates are multiplied by decay"""
    decay: Positive = 0.3
    """factor at each milestone"""


@dataclass(frozen=True, config=CONFIG)
class StudentConfig:
    """Students and their training. One is delivered; several learn from the same batches."""

    arch: Basic[str] = "auto"
    """a name from dfme.nets, a torchvision classifier, timm:NAME, module:Net of your own, or auto:
    by the images' size; on a CPU cnn_large above 16 pixels a side, which averages images down to at
    most 64"""
    count: UpTo64 = 0
    """students trained side by side; 0: as many as the method needs"""
    optimizer: Literal["sgd", "adam", "adamw", "auto"] = "sgd"
    """sgd, adam, adamw, or auto: above 16 pixels a side adamw with a hundredth of lr, 500 times
    weight_decay and, if loss is auto, kl of scores; below sgd for scores, adam with lr / 50 and no
    decay for labels"""
    loss: Literal["auto", "l1", "kl", "cross_entropy"] = "auto"
    """distance to the teacher, which a generator maximises: l1 (on recovered logits), kl (both
    spread what top_k hides evenly), cross_entropy (on hard labels), or auto (l1 of scores, kl of
    top_k, else that)"""
    lr: Basic[Positive] = 0.1
    """learning rate at the start"""
    momentum: ShareBelowOne = 0.9
    """of sgd"""
    weight_decay: NotNegative = 5e-4
    """of the optimiser"""
    decay_images: Natural = 0
    """paid images held that weight_decay is meant for; n of them scale it by sqrt(decay_images / n)
    """
    steps: Basic[Natural] = 0
    """optimiser steps of each student over the whole run, spread evenly over the budget: fresh
    batches first, then paid ones again (replay); 0: one step a fresh batch and replay_steps, or
    passes"""
    passes: Natural = 0
    """with rounds and without steps: passes over all that is held that a round takes with 5,000
    images; with n, sqrt(5000 / n) times as many"""
    final_share: Share = 0.0
    """share of steps that is taken once the budget has run out, on everything held"""
    rounds: Rounds = ()
    """shares of the budget, up to 1, at which the students take their passes, or parts of their
    steps like the roots of these shares, on everything paid for, each by a schedule of its own, and
    none in between; empty: steps are spread"""
    shrink: Share | Literal["auto"] = "auto"
    """shrink-and-perturb: share of the students' weights left as a round begins, the rest is fresh;
    or auto: 0.4, but 1 above 16 pixels a side with optimizer auto, whose decay makes them forget"""
    replay_steps: Natural = 0
    """steps on already paid answers after each fresh batch; 0 is the papers' own recipe"""
    replay_batch: Count | Literal["auto"] = 256
    """images per replay step, or auto: 256 up to 16 pixels a side, with twice the passes; above
    that a 64th of those held, but at least 64 and at most 256"""
    replay_capacity: Count = 1_000_000
    """paid images kept for replay, first in, first out"""
    replay_store: Literal["memory", "disk"] = "memory"
    """memory, or disk (files in the run directory, of which a batch at a time is read)"""
    augment: Literal[Augmentation, "auto"] = "none"
    """of paid images that are replayed, with the same answer: none, flip, shift (by a pixel), both,
    affine (turned, sheared, stretched and moved a little), or auto: affine above 16 pixels a
    side"""
    average: ShareBelowOne = 0.0
    """decay of the weights' moving average (EMA), which is delivered; 0 delivers the last weights
    """
    average_every: Count = 1
    """student steps between two updates of the EMA"""

    @property
    def is_planned(self) -> bool:
        """True if steps are spread over the budget for good; rounds go on under a larger one."""
        return bool(self.steps and not self.rounds)

    def fitting(self, mode: LabelMode, shape: Shape) -> "StudentConfig":
        """The settings with ``auto`` chosen by the teacher's answers and the images.

        Heuristic: with few scores a high rate and decay of SGD give the best clone of small images,
        with labels they keep a student from fitting what it has paid for
        (docs/results/comparison.md). Larger images are learnt faster by AdamW, scores on KL, in
        steps of few images, and with a decay that makes a student forget in a few hundred steps, so
        that no weights are shrunk; a small image is cheap, so a step of many costs little more, and
        its gradient is less noisy (docs/results/real_size.md).
        """
        chosen = self
        small = max(shape[1:]) <= SMALL_SIDE
        labels = mode.kind == "label"
        decays = self.optimizer == "auto" and not small
        if self.replay_batch == "auto" and small:
            chosen = replace(chosen, replay_batch=256, passes=2 * self.passes)
        if self.augment == "auto":
            chosen = replace(chosen, augment="none" if small else "affine")
        if self.shrink == "auto":
            chosen = replace(chosen, shrink=1.0 if decays else 0.4)
        if decays:
            loss = "kl" if self.loss == "auto" and not labels else self.loss
            decay = 500 * self.weight_decay
            return replace(
                chosen, optimizer="adamw", lr=self.lr / 100, weight_decay=decay, loss=loss
            )
        if self.optimizer != "auto":
            return chosen
        if labels:
            return replace(chosen, optimizer="adam", lr=self.lr / 50, weight_decay=0.0)
        return replace(chosen, optimizer="sgd")

    def batch(self, held: int) -> int:
        """Images of a replay step while so many are held; of ``auto`` above 16 pixels a side."""
        return min(max(64, held // 64), 256) if self.replay_batch == "auto" else self.replay_batch

    def pass_steps(self, held: int) -> int:
        """Steps of the passes over so many images, 0 without any; few images need more
        (heuristic).
        """
        return math.ceil(self.passes * math.sqrt(5_000 * held) / self.batch(held))

    def round_steps(self, images: int, most: int | None = None) -> tuple[int, ...]:
        """Steps of each of the rounds of a budget of so many images, ``most`` of them held at a
        time.

        ``steps`` are divided as passes would be: like the root of what a round holds.
        """
        if not self.steps:
            most = self.replay_capacity if most is None else most
            return tuple(
                self.pass_steps(min(most, math.ceil(share * images))) for share in self.rounds
            )
        roots = [0.0, *accumulate(math.sqrt(share) for share in self.rounds)]
        edges = [round(self.steps * each / roots[-1]) for each in roots]
        return tuple(end - begin for begin, end in pairwise(edges))


@dataclass(frozen=True, config=CONFIG)
class EvaluationConfig:
    """Images that the student is scored on. The teacher's answers to them are asked once and not
    charged.
    """

    dataset: Basic[str] = "none"
    """digits, shapes, letters, mnist, fashion_mnist, cifar10, cifar100, svhn, FOLDER, an .npz or
    none
    """
    classes: tuple[str, ...] | str | None = None
    """class names in the teacher's order, or a text file with one a line; none: as the teacher says
    """
    root: str = "datasets"
    """where torchvision's data sets lie"""
    download: bool = False
    """let torchvision fetch a missing data set"""
    mean: tuple[float, ...] | None = None
    """per-channel mean to normalise the images with, for a teacher that takes normalised images"""
    std: tuple[Positive, ...] | None = None
    """per-channel deviation, with mean; without both, images are scaled to the teacher's bounds"""
    points: Count = 25
    """evaluations over the budget, evenly spaced; some more come before the first"""
    limit: Natural = 0
    """use at most so many images; 0 uses all"""


@dataclass(frozen=True, config=CONFIG)
class ExtractConfig:
    """One extraction run, less its teacher and method, whose options depend on their kind."""

    recipe: Basic[str] = ""
    """a recipe for any teacher by its name: frugal (few queries), dfme, paper (the paper's values),
    a method's (the default) or one of configs/; a file of --config lies above it"""
    budget: Basic[Images] = 1_000_000
    """images that may be charged, such as 300000, 300k or 2M"""
    seed: Basic[Seed] = 0
    """seed of everything random"""
    out: Basic[str | None] = None
    """run directory; by default a free name under runs/"""
    resume: Basic[bool | Literal["auto"]] = False
    """go on with the run in --out; auto: if there is one, else begin it"""
    until_agreement: Annotated[float, Field(gt=0, le=0.99)] | None = None
    """end the run once student and teacher agree, with 95% confidence, on this share of the queries
    that are then held back from training; none: spend the whole budget"""
    minutes: Basic[Annotated[float, Field(gt=0)] | None] = None
    """fit the student's steps to so many minutes on this machine, by a rehearsal, or cnn_small's
    where few of an auto student do not fit; config.yaml has what was chosen; none: as the recipe
    says"""
    device: Basic[Device] = "auto"
    """auto, cpu, cuda or cuda:N"""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """of the student's training steps: fp32 or bf16 (autocast); auto: bf16 above 16 pixels a side
    on a CPU that has instructions for it, else fp32; estimates are always fp32"""
    channels_last: Literal["auto", "yes", "no"] = "auto"
    """memory format of convolutions; auto picks it where it is faster"""
    graphs: bool = False
    """replay student, generator and local teacher as CUDA graphs: faster, most of all for small
    images
    """
    deterministic: bool = False
    """on a GPU only kernels that give the same bits every time, as a CPU's do anyway"""
    checkpoint_seconds: NotNegative = 60.0
    """least time between two checkpoints, in seconds"""
    fsync: bool = False
    """wait for the disk before a request is sent and its answer used, for a power cut or a lost
    node
    """
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    """learning-rate schedule"""
    student: StudentConfig = field(default_factory=StudentConfig)
    """the student"""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """what the student is scored on"""
    answers: AnswersConfig = field(default_factory=AnswersConfig)
    """what is made of the answers of a defended teacher"""
    wandb: WandbConfig = field(default_factory=WandbConfig)
    """experiment tracking"""

    def fitting(self, mode: LabelMode, shape: Shape, fast_bf16: bool = False) -> "ExtractConfig":
        """The settings with ``auto`` chosen by the teacher's answers, the images, and the device.

        ``fast_bf16``: the device is a CPU that computes in it. Measured: .6 of a step's time, and
        level copies (docs/results/real_size.md). A net of one's own may have an operation that is
        fp32 alone.
        """
        precision = self.precision
        if precision == "auto":
            halved = fast_bf16 and max(shape[1:]) > SMALL_SIDE and ":" not in self.student.arch
            precision = "bf16" if halved else "fp32"
        return replace(self, student=self.student.fitting(mode, shape), precision=precision)

    @property
    def images(self) -> int:
        """Different images that the budget pays for: one that is asked several times is charged as
        often.
        """
        return int(self.budget) // self.answers.times


@dataclasses.dataclass(frozen=True)
class Job:
    """Everything that decides a run. ``teacher_options`` are the own arguments of the teacher's
    kind.

    ``estimator`` and ``queries`` are of no effect, and in no document, where the method estimates
    no gradient or draws nothing. ``objects``: what was handed over in Python, by the key of the
    option that has its name: a method's class (``method.name``), or what makes a network.
    ``larger``: the students' settings for images above ``SMALL_SIDE`` pixels a side, where they are
    others and the teacher's images are not known yet (``sized``).
    """

    config: ExtractConfig
    teacher: TeacherConfig
    teacher_options: dict[str, Any]
    method: str
    method_config: Any
    estimator: EstimatorConfig = field(default_factory=EstimatorConfig)
    queries: QueriesConfig = field(default_factory=QueriesConfig)
    objects: dict[str, Any] = field(default_factory=dict)
    larger: StudentConfig | None = None

    def sized(self, mode: LabelMode, shape: Shape) -> "Job":
        """The job with the students' settings for images of this size; what is ``auto`` in them is
        chosen.
        """
        if self.larger is None or max(shape[1:]) <= SMALL_SIDE:
            return replace(self, larger=None)
        student = self.larger.fitting(mode, shape)
        return replace(self, config=replace(self.config, student=student), larger=None)

    def fitting(self, mode: LabelMode, shape: Shape, fast_bf16: bool = False) -> "Job":
        """The job with what it leaves to the teacher's answers and images, and to the device."""
        config = self.config.fitting(mode, shape, fast_bf16)
        return replace(self, config=config, queries=self.queries.fitting(mode, shape))
