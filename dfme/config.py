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
        num_classes: number of classes; inferred where it can be
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
    """

    kind: Literal["steps", "cosine", "constant"] = "steps"
    milestones: tuple[float, ...] = (0.1, 0.3, 0.5)
    decay: float = 0.3


@dataclass(frozen=True)
class StudentConfig:
    """The student and how it is trained.

    Args:
        arch: a name from dfme.nets, a torchvision classifier, or auto (by the size of the image)
        optimizer: sgd or adam
        loss: distance to the teacher, which a trained generator maximises: l1 (on recovered logits; a rounded
            zero is an upper bound), kl, cross_entropy (on labels), or auto (l1 for soft answers, kl for top_k,
            cross_entropy for labels); for l1 and kl, top_k's unrevealed mass is spread evenly
        lr: learning rate at the start
        momentum: of sgd
        weight_decay: of the optimiser
        replay_steps: steps on already paid answers after each fresh batch; 0 is the papers' own recipe
        replay_batch: images per replay step
        replay_capacity: paid images kept for replay, first in, first out
        average: decay of the moving average of weights that is delivered; 0 delivers the last weights
    """

    arch: str = "auto"
    optimizer: Literal["sgd", "adam"] = "sgd"
    loss: Literal["auto", "l1", "kl", "cross_entropy"] = "auto"
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    replay_steps: int = 0
    replay_batch: int = 256
    replay_capacity: int = 1_000_000
    average: float = 0.0


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
class BenchConfig:
    """How long the framework's own loop takes beside the bare kernels of the same work.

    Args:
        cases: what to time: digits (cnn_small on 1x8x8, four replay steps a batch), digits_paper (the same without
            replay) and resnet (ResNet-34-8x to ResNet-18-8x on 3x32x32, without replay); http: the digits
            run through a served teacher beside the same one in process, and our client beside bare httpx2
        rounds: pairs of timings; the median of the ratios is reported
        seconds: about how long one timing takes
        batch_size: images per batch; 0 is 256, or 16 for resnet on a CPU
        device: auto, cpu, cuda or cuda:N
        precision: of the student's training steps: fp32 or bf16
        channels_last: memory format of convolutions; auto picks it where it is faster
        compile: run student and generator through torch.compile
    """

    cases: tuple[str, ...] = ("digits", "digits_paper", "resnet")
    rounds: int = 5
    seconds: float = 5.0
    batch_size: int = 0
    device: str = "auto"
    precision: Literal["fp32", "bf16"] = "fp32"
    channels_last: Literal["auto", "yes", "no"] = "auto"
    compile: bool = False


@dataclass(frozen=True)
class ServeConfig:
    """Serving a teacher over the Open Inference Protocol v2.

    Args:
        host: address to listen at; any but this machine's own lets others in
        port: port to listen at; 0: a free one, which is printed
        model: the model's name in URLs; by default that of the teacher's file or class
        max_batch: most images in one request; none: the teacher's own limit
        api_key_env: name of the environment variable with the key that clients must send; none: no key
        images_per_second: most images served per second; more is refused with 429
        requests_per_second: most requests served per second; more is refused with 429
        device: auto, cpu, cuda or cuda:N; where a teacher of kind torch runs
        threads: CPU threads of the model; 0: as many as torch uses
    """

    host: str = "127.0.0.1"
    port: int = 8080
    model: str | None = None
    max_batch: int | None = None
    api_key_env: str | None = None
    images_per_second: float | None = None
    requests_per_second: float | None = None
    device: str = "auto"
    threads: int = 0


@dataclass(frozen=True)
class Job:
    """Everything that decides a run. ``teacher_options`` are the own arguments of the teacher's kind.

    ``estimator`` is of no effect, and in no document, where the method estimates no gradient.
    """

    config: ExtractConfig
    teacher: TeacherConfig
    teacher_options: dict[str, Any]
    method: str
    method_config: Any
    estimator: EstimatorConfig = field(default_factory=EstimatorConfig)
