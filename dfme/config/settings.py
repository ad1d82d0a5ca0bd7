"""The configuration of a run: frozen dataclasses whose docstrings are the command line's help. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

ObjectiveName = Literal["student", "l1", "kl"]


@dataclass(frozen=True)
class TeacherConfig:
    """What every kind of teacher has in common; a kind's own options stand beside it in a job.

    Args:
        kind: torch, v2, tf-serving, hf-api, json, onnx, pt2, torchscript, hf, timm, or module:Class or
            module:function of your own
        shape: images as C,H,W; inferred where it can be
        num_classes: number of classes, 2 of a binary model with one output; inferred where it can be
        label_mode: logits, probabilities[:DECIMALS], top_k:K[:DECIMALS] or label; decided by the owner's side
        bounds: lowest and highest pixel value the API takes
        levels: pixel values the wire can carry (256: 8-bit images); none: floats
        mean: per-channel mean that the teacher subtracts inside
        std: per-channel deviation that the teacher divides by inside
        max_batch: most images in one call
        price_per_1000: what a thousand answered images cost, in any currency; the cost is shown and kept
    """

    kind: str = "torch"
    shape: tuple[int, int, int] | None = None
    num_classes: int | None = None
    label_mode: str | None = None
    bounds: tuple[float, float] | None = None
    levels: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    max_batch: int | None = None
    price_per_1000: float | None = None


@dataclass(frozen=True)
class ScheduleConfig:
    """Learning rates of student and generator as a function of the share of the budget spent.

    Args:
        kind: steps (multiply at milestones), cosine (to zero at the end of the budget) or constant
        milestones: shares of the budget, within 0 and 1, at which the learning rates are multiplied by decay
        decay: factor at each milestone
        warmup: share of the budget over which the learning rates climb from zero
    """

    kind: Literal["steps", "cosine", "constant"] = "steps"
    milestones: tuple[float, ...] = (0.1, 0.3, 0.5)
    decay: float = 0.3
    warmup: float = 0.0


@dataclass(frozen=True)
class StudentConfig:
    """The students and how they are trained. One is delivered; of several, each learns from the same batches.

    Args:
        arch: a name from dfme.nets, a torchvision classifier, or auto (by the size of the image)
        count: students trained side by side; 0: as many as the method needs
        optimizer: sgd or adam
        loss: distance to the teacher, which a trained generator maximises: l1 (on recovered logits; a rounded
            zero is an upper bound), kl, cross_entropy (on labels), or auto (l1 for soft answers, kl for top_k,
            cross_entropy for labels); for l1 and kl, top_k's unrevealed mass is spread evenly
        lr: learning rate at the start
        momentum: of sgd
        weight_decay: of the optimiser
        decay_images: paid images held that weight_decay is meant for; with n of them it is sqrt(decay_images / n) times
            as large; 0: the same for any number
        steps: optimiser steps of each student over the whole run, spread evenly over the budget: fresh batches
            first, then paid ones again; 0: one step a fresh batch and replay_steps
        final_share: share of steps that is taken once the budget has run out, on everything held
        rounds: shares of the budget, up to 1, at which the students take equal parts of their steps on everything paid
            for, each by a schedule of its own, and none in between; empty: steps are spread over the budget
        shrink: what is left of the students' weights as a round begins; the rest is that of fresh ones
        distil_share: share of steps, the last, in which a fresh net learns the vote of the students; it is delivered
        replay_steps: steps on already paid answers after each fresh batch; 0 is the papers' own recipe
        replay_batch: images per replay step
        replay_capacity: paid images kept for replay, first in, first out
        replay_order: uniform, or hard (of twice as many drawn, those with the larger last loss)
        replay_store: memory, or disk (files in the run directory, of which a batch at a time is read)
        replay_precision: of kept images that are not 8-bit on the wire, which are kept exactly: float32 or float16
        augment: of paid images that are replayed, with the same answer: none, flip, shift (by a pixel) or both
        average: decay of the moving average of weights that is delivered; 0 delivers the last weights
        average_every: student steps between two updates of the average
    """

    arch: str = "auto"
    count: int = 0
    optimizer: Literal["sgd", "adam"] = "sgd"
    loss: Literal["auto", "l1", "kl", "cross_entropy"] = "auto"
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    decay_images: int = 0
    steps: int = 0
    final_share: float = 0.0
    rounds: tuple[float, ...] = ()
    shrink: float = 0.4
    distil_share: float = 0.0
    replay_steps: int = 0
    replay_batch: int = 256
    replay_capacity: int = 1_000_000
    replay_order: Literal["uniform", "hard"] = "uniform"
    replay_store: Literal["memory", "disk"] = "memory"
    replay_precision: Literal["float32", "float16"] = "float32"
    augment: Literal["none", "flip", "shift", "both"] = "none"
    average: float = 0.0
    average_every: int = 1


@dataclass(frozen=True)
class QueriesConfig:
    """Which images are paid for with the student, of methods that draw them: from what, and which of them.

    Args:
        programs: what procedural images are drawn by, evenly: leaves, strokes, noise, gradients, generators; a name
            that stands twice counts twice
        procedural: share of every batch that a program draws in place of the generator
        base: none, or procedural: the generator transforms such an image, gen_op = base + G(z, base)
        generators: generators side by side, each of which makes its part of every batch
        evolve: share of every batch that is bred from images paid for before, seldom answered classes above all; times
            the share of the classes that is missing among the answers so far
        pool: candidates for each image that is paid for
        choose: of a pool, those on which the students' vote has the most entropy, on which the students differ most
            (disagreement, of two or more), on which the vote has the most confidence, or random ones, for balance and
            ceiling alone to decide
        balance: choose as evenly as can be over the classes that the students see
        ceiling: choose first where the students' confidence is at most this; 1 sets no ceiling
    """

    programs: tuple[str, ...] = ("leaves",)
    procedural: float = 0.0
    base: Literal["none", "procedural"] = "none"
    generators: int = 1
    evolve: float = 0.0
    pool: int = 1
    choose: Literal["entropy", "disagreement", "confidence", "random"] = "entropy"
    balance: bool = True
    ceiling: float = 1.0


@dataclass(frozen=True)
class EstimatorConfig:
    """How a method that trains its generator by finite differences estimates the gradient at its output.

    Args:
        kind: finite_difference; prior_guided (directions that lean towards a prior); exact_student (the
            student's term by autograd, differences through the teacher only); synthetic (a network learns to
            predict the gradient, one step in ``every`` is paid); or auto: the pre-flight check chooses
            objective, space, form, direction and step of a finite_difference
        objective: what the generator drives apart: student (the student's own loss), l1 or kl; kl survives
            rounded answers, where l1's differences are mostly hidden
        directions: random directions per image of the estimate (m)
        step: length of a finite difference in units of the perturbed space (of the lattice: whole levels), or
            auto: the pre-flight check measures it
        form: forward differences cost m+1 queries per image, central ones (antithetic pairs) 2m; of kind prior_guided
            2m+1
        direction: sphere (uniform on the unit sphere), gaussian, rademacher (+-1 per pixel), orthogonal (m
            random directions at right angles), dct (random low-frequency patterns), range (what the
            generator's last layer can realise)
        space: where to perturb: pre_squash (before the generator's last tanh), image, or lattice (+- whole
            levels per pixel, which 8-bit images carry exactly)
        frequencies: share of the frequencies, the lowest, that dct directions are made of
        prior: of prior_guided: student (its own gradient at the last answer) or neighbours (slopes towards
            images that were paid for before)
        control: of exact_student: weight of the student's difference as a control variate: 0 none, 1 the plain
            difference of the loss, auto the weight of least variance
        every: of synthetic: one generator step in so many is paid for
        synthetic_lr: of synthetic: learning rate of the network's Adam
    """

    kind: Literal["auto", "finite_difference", "prior_guided", "exact_student", "synthetic"] = "finite_difference"
    objective: ObjectiveName = "student"
    directions: int = 1
    step: float | Literal["auto"] = 1e-3
    form: Literal["forward", "central"] = "forward"
    direction: Literal["sphere", "gaussian", "rademacher", "orthogonal", "dct", "range"] = "sphere"
    space: Literal["pre_squash", "image", "lattice"] = "pre_squash"
    frequencies: float = 0.125
    prior: Literal["student", "neighbours"] = "student"
    control: float | Literal["auto"] = "auto"
    every: int = 4
    synthetic_lr: float = 1e-3


@dataclass(frozen=True)
class EvaluationConfig:
    """What the student is scored on. The teacher's answers on it are asked once, recorded and not charged.

    Args:
        dataset: digits, shapes, mnist, fashion_mnist, cifar10, cifar100, svhn, a FOLDER of class folders, or none
        root: where torchvision's data sets lie
        download: let torchvision fetch a missing data set
        mean: per-channel mean to normalise the images with, for a teacher that takes normalised images
        std: per-channel deviation, with mean; without both, images are scaled to the teacher's bounds
        points: evaluations over the budget, evenly spaced
        limit: use at most so many images; 0 uses all
    """

    dataset: str = "none"
    root: str = "datasets"
    download: bool = False
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    points: int = 25
    limit: int = 0


@dataclass(frozen=True)
class WandbConfig:
    """Tracking in Weights & Biases, beside the run's own files.

    Args:
        mode: off, offline, or online (falls back to offline where there is no key or no network)
        project: wandb project
        entity: wandb user or team
        name: name of the run
        group: group of the run
        tags: tags of the run
    """

    mode: Literal["off", "offline", "online"] = "off"
    project: str = "dfme"
    entity: str | None = None
    name: str | None = None
    group: str | None = None
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExtractConfig:
    """One extraction run, less its teacher and method, whose options depend on their kind.

    Args:
        budget: images that may be charged, such as 300000, 300k or 2M
        seed: seed of everything random
        out: run directory; by default a free name under runs/
        resume: go on with the run in --out
        device: auto, cpu, cuda or cuda:N
        precision: of the student's training steps: fp32, or bf16 (autocast); estimates are always fp32
        channels_last: memory format of convolutions; auto picks it where it is faster
        compile: run student and generator through torch.compile
        checkpoint_seconds: least time between two checkpoints, in seconds
        schedule: learning-rate schedule
        student: the student
        evaluation: what the student is scored on
        wandb: experiment tracking
    """

    budget: int | str = 1_000_000
    seed: int = 0
    out: str | None = None
    resume: bool = False
    device: str = "auto"
    precision: Literal["fp32", "bf16"] = "fp32"
    channels_last: Literal["auto", "yes", "no"] = "auto"
    compile: bool = False
    checkpoint_seconds: float = 60.0
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    student: StudentConfig = field(default_factory=StudentConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    wandb: WandbConfig = field(default_factory=WandbConfig)


@dataclass(frozen=True)
class Job:
    """Everything that decides a run. ``teacher_options`` are the own arguments of the teacher's kind.

    ``estimator`` and ``queries`` are of no effect, and in no document, where the method estimates no gradient or
    draws nothing.
    """

    config: ExtractConfig
    teacher: TeacherConfig
    teacher_options: dict[str, Any]
    method: str
    method_config: Any
    estimator: EstimatorConfig = field(default_factory=EstimatorConfig)
    queries: QueriesConfig = field(default_factory=QueriesConfig)
