"""The options of each built-in kind of teacher, and of training one; the docstrings are the help texts.

No torch here: the command line reads this before anything heavy loads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from dfme.errors import UserError


@dataclass(frozen=True)
class TorchOptions:
    """A PyTorch classifier on this machine, from its weights.

    Args:
        checkpoint: weights as .safetensors, or a state dict in .pt or .pth
        arch: a name from dfme.nets or a torchvision classifier; inferred from the weights where it can be
    """

    checkpoint: str
    arch: str | None = None


@dataclass(frozen=True)
class OnnxOptions:
    """An ONNX classifier on this machine, run by onnxruntime.

    Args:
        model: the .onnx file
        input: name of the input; none: the model's only one
        output: name of the output; none: the model's first
        layout: order of an image's axes: nchw, nhwc, or auto (as the model's input has it; nchw where both fit)
        answers: what the model answers: logits, or probabilities where it ends in a softmax or a sigmoid
    """

    model: str
    input: str | None = None
    output: str | None = None
    layout: Literal["auto", "nchw", "nhwc"] = "auto"
    answers: Literal["logits", "probabilities"] = "logits"


@dataclass(frozen=True)
class Pt2Options:
    """A program saved by torch.export (.pt2) on this machine.

    Args:
        program: the .pt2 file
        trust: loading such a file runs code that is in it; say true for a file whose maker you trust
        answers: what the program answers: logits, or probabilities where it ends in a softmax or a sigmoid
    """

    program: str
    trust: bool = False
    answers: Literal["logits", "probabilities"] = "logits"


@dataclass(frozen=True)
class TorchScriptOptions:
    """A TorchScript archive on this machine; PyTorch has deprecated the format in favour of torch.export.

    Args:
        program: the archive, usually .pt or .ts; it is a program in a language of its own that loading may already
            run, so give one whose maker you trust
        answers: what the program answers: logits, or probabilities where it ends in a softmax or a sigmoid
    """

    program: str
    answers: Literal["logits", "probabilities"] = "logits"


@dataclass(frozen=True)
class HuggingFaceOptions:
    """An image-classification model in the folder layout of Hugging Face's transformers, local files only.

    Args:
        folder: the folder with config.json, model.safetensors and preprocessor_config.json
    """

    folder: str


@dataclass(frozen=True)
class TimmOptions:
    """A timm model in a folder with config.json and model.safetensors, local files only.

    Args:
        folder: the folder
    """

    folder: str


@dataclass(frozen=True)
class TrainDataConfig:
    """What a teacher is trained and scored on.

    Args:
        name: digits, shapes, mnist, fashion_mnist, cifar10, cifar100, svhn, or a FOLDER of class folders
        root: where torchvision's data sets lie
        download: let torchvision fetch a missing data set
        shape: images as C,H,W, for shapes and for folders; the other sets have their own
    """

    name: str = "digits"
    root: str = "datasets"
    download: bool = False
    shape: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class TrainTeacherConfig:
    """How a teacher is trained: the fields of the recipes in configs/teachers.

    Args:
        data: what it is trained and scored on
        arch: a name from dfme.nets, a torchvision classifier, or auto (by the size of the image)
        epochs: passes over the training images
        batch_size: images per step
        optimizer: sgd (with Nesterov's momentum) or adam
        lr: learning rate at the start
        momentum: of sgd
        weight_decay: of the optimiser
        schedule: of the learning rate: cosine (to zero at the end) or constant
        augmentation: none, shift (each image moves by up to padding pixels) or crop_flip (shift and mirror)
        padding: most pixels by which an augmented image moves; what is uncovered is black
        label_smoothing: share of the target spread over all classes
        precision: of the training steps: fp32, or bf16 (autocast)
        mean: per-channel mean the network subtracts; none: that of the training images
        std: per-channel deviation the network divides by; none: that of the training images
        seed: seed of the weights, the order of the images and their augmentation
        device: auto, cpu, cuda or cuda:N
        threads: CPU threads of the training, part of what decides the last bits; 0: as many as torch uses
        evaluate_every: epochs between two scores on the test part, shown only; 0: none but the last
        out: the weights written; by default runs/teachers/NAME.safetensors
    """

    data: TrainDataConfig = field(default_factory=TrainDataConfig)
    arch: str = "auto"
    epochs: int = 30
    batch_size: int = 128
    optimizer: Literal["sgd", "adam"] = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    schedule: Literal["cosine", "constant"] = "cosine"
    augmentation: Literal["none", "shift", "crop_flip"] = "none"
    padding: int = 4
    label_smoothing: float = 0.0
    precision: Literal["fp32", "bf16"] = "fp32"
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    seed: int = 0
    device: str = "auto"
    threads: int = 0
    evaluate_every: int = 10
    out: str | None = None

    @property
    def path(self) -> Path:
        """Where the weights go."""
        return Path(self.out or f"runs/teachers/{Path(self.data.name).name}.safetensors")


def check_training(config: TrainTeacherConfig) -> None:
    """Raise one UserError that names every setting with which no training can start."""
    at_least_one = ("epochs", "batch_size")
    not_negative = ("weight_decay", "padding", "threads", "evaluate_every", "seed")
    problems = [
        f"--{name.replace('_', '-')}: expected at least 1, got {getattr(config, name)}"
        for name in at_least_one
        if getattr(config, name) < 1
    ]
    problems += [
        f"--{name.replace('_', '-')}: expected 0 or more, got {getattr(config, name)}"
        for name in not_negative
        if getattr(config, name) < 0
    ]
    if config.lr <= 0:
        problems.append(f"--lr: expected a positive number, got {config.lr}")
    for name, value in (("momentum", config.momentum), ("label-smoothing", config.label_smoothing)):
        if not 0 <= value < 1:
            problems.append(f"--{name}: expected a number within 0 and 1, got {value}")
    if (config.mean is None) != (config.std is None):
        problems.append("--mean and --std: expected both or neither")
    if config.path.suffix != ".safetensors":
        problems.append(f"--out: expected a file name ending in .safetensors, got {config.path}")
    if problems:
        raise UserError("; ".join(problems))
