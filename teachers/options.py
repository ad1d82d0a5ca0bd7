"""Options of each built-in kind of teacher, and of training or serving one, with help.

No torch here: the command line reads this before anything heavy loads.
"""

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from dfme.config.defences import OnAlarm, WatchText
from dfme.config.settings import TeacherConfig
from dfme.config.values import (
    CONFIG,
    Basic,
    Count,
    Device,
    Expected,
    Natural,
    NotNegative,
    Positive,
    Rate,
    ShareBelowOne,
    accepted_by,
)
from dfme.errors import Ref, UserError, say
from dfme.spec import RequestPolicy

Name = Annotated[
    str, Field(pattern="^[A-Za-z0-9_.-]+$"), Expected("letters, digits, dots, - and _ alone")
]


TeacherPrecision = Literal["auto", "ieee", "tf32", "bf16"]

Answers = Literal["auto", "logits", "probabilities", "percentages", "sigmoids", "log-probabilities"]


@dataclass(frozen=True, kw_only=True, config=CONFIG)
class LocalOptions:
    """Options of every kind that PyTorch runs in this process."""

    precision: TeacherPrecision = "auto"
    """what it multiplies in: auto (as whoever asks: IEEE fp32 in finite differences), or always
    ieee (fp32), tf32 (a GPU's) or bf16 (autocast), of which a large network's finite differences
    are mostly noise"""


@dataclass(frozen=True, config=CONFIG)
class TorchOptions(LocalOptions):
    """A PyTorch classifier on this machine, from its weights."""

    checkpoint: Basic[str]
    """weights as .safetensors, or a state dict in .pt or .pth"""
    arch: str | None = None
    """a name from dfme.nets or a torchvision classifier; inferred from the weights where it can be
    """
    entry: str | None = None
    """which of several state dicts in the file: its key or the first word of its names, as
    model_ema
    """
    transform_input: bool | None = None
    """for googlenet and inception_v3, whose weights do not tell: true if the network was made from
    torchvision's weights, with which it scales its input again (from ImageNet's mean to 0.5)"""


@dataclass(frozen=True, config=CONFIG)
class OnnxOptions:
    """An ONNX classifier on this machine, run by onnxruntime."""

    model: Basic[str]
    """the .onnx file"""
    input: str | None = None
    """name of the input; none: the model's only one"""
    output: str | None = None
    """name of the output with the scores; none: the only one that can be meant"""
    layout: Literal["auto", "nchw", "nhwc"] = "auto"
    """order of an image's axes: nchw, nhwc, or auto (as the model's input has it; nchw where both
    fit)
    """
    answers: Basic[Answers] = "auto"
    """what the model answers: logits, probabilities (of a softmax or a lone sigmoid), percentages,
    sigmoids (one for each of several classes), log-probabilities, or auto (its end and its values
    tell)"""


@dataclass(frozen=True, config=CONFIG)
class Pt2Options(LocalOptions):
    """A program saved by torch.export (.pt2) on this machine."""

    program: Basic[str]
    """the file: a .pt2, or a TorchScript archive (.pt, .ts)"""
    trust: Basic[bool] = False
    """loading it runs code that is in it, which may write files; say true for a file whose maker
    you trust; it counts from the command line alone, not from a file of options"""
    output: str | None = None
    """name or place of the output with the scores; none: the only one that can be meant"""
    answers: Basic[Answers] = "auto"
    """what the program answers: logits, probabilities (of a softmax or a lone sigmoid),
    percentages, sigmoids (one for each of several classes), log-probabilities, or auto (its end and
    its values tell)"""


@dataclass(frozen=True, config=CONFIG)
class TorchScriptOptions(Pt2Options):
    """A TorchScript archive on this machine; PyTorch has deprecated the format in favour of
    torch.export.
    """


@dataclass(frozen=True, config=CONFIG)
class HuggingFaceOptions(LocalOptions):
    """An image-classification model in the folder layout of Hugging Face's transformers, local
    files only.
    """

    folder: Basic[str]
    """the folder with config.json, model.safetensors and preprocessor_config.json"""


@dataclass(frozen=True, config=CONFIG)
class TimmOptions(LocalOptions):
    """A timm model in a folder with config.json and model.safetensors, local files only."""

    folder: Basic[str]
    """the folder"""


RESERVED = (
    "user-agent",
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "expect",
    "te",
    "trailer",
    "upgrade",
)
"""Headers in lower case that neither an adapter nor an option may set."""


def require_free(header: str) -> None:
    """UserError for a header that HTTP itself needs, or by which a service tells who asks."""
    name = header.strip().lower().replace("_", "-")  # some servers take one for the other
    if name in RESERVED or name.startswith("proxy-"):
        raise UserError(
            f"expected another header than {header}, which dfme sets itself or never sends"
        )


@dataclass(frozen=True, kw_only=True, config=CONFIG)
class ServiceOptions:
    """Options of every teacher behind HTTP."""

    url: Basic[str]
    """where the service is, such as http://127.0.0.1:8080"""
    authorised_by: Basic[str | None] = None
    """who allowed these queries and why; needed for a host that is not this machine, and kept in
    the run's records; counts as a flag or as the environment variable DFME_AUTHORISED_BY, not from
    a file"""
    api_key_env: Basic[str | None] = None
    """name of the environment variable that holds the key, which is written nowhere; one that a
    file names is read only if allow_env has it"""
    allow_env: Basic[tuple[str, ...] | None] = None
    """names of the environment variables that files may have sent to the service, as api_key_env or
    as ${NAME} in an adapter; counts as a flag, not from a file"""
    api_key_header: Annotated[str, accepted_by(require_free)] = "Authorization"
    """header that carries the key; with Authorization it is sent as a Bearer token"""
    ca_file: str | None = None
    """certificates (PEM) to trust besides the system's, for a service with an authority of its own
    """
    in_flight: Annotated[int, Field(ge=1, le=64)] = 4
    """requests at once"""
    timeout: Positive = 30.0
    """seconds for one request in all"""
    attempts: Count = RequestPolicy.attempts
    """most sends of one request that may have been served; each is charged"""
    patience: Positive = RequestPolicy.patience
    """seconds for one request with all its attempts and waits"""
    images_per_second: Rate | None = None
    """most images per second that are sent; none: no limit"""
    requests_per_second: Rate | None = None
    """most requests per second that are sent; none: no limit"""


@dataclass(frozen=True, kw_only=True, config=CONFIG)
class V2Options(ServiceOptions):
    """A model behind the Open Inference Protocol v2: KServe, Triton, MLServer, or run.py serve."""

    model: Basic[str]
    """name of the model"""
    version: str | None = None
    """version of the model; none: the one the server picks"""
    encoding: Literal["auto", "binary", "json"] = "auto"
    """of tensors: binary (an extension), json, or auto (binary where the server has it)"""
    input: str | None = None
    """name of the input tensor; none: the model's only one"""
    output: str | None = None
    """name of the output tensor; none: the model's only one"""
    layout: Literal["auto", "nchw", "nhwc"] = "auto"
    """order of an image's axes: nchw, nhwc, or auto (as the model's metadata have it)"""


@dataclass(frozen=True, kw_only=True, config=CONFIG)
class JsonOptions(ServiceOptions):
    """Any HTTP API with JSON answers, described in a YAML file (see configs/adapters)."""

    adapter: Basic[str]
    """the YAML file: URL, headers, how an image is encoded, where the scores are in the answer"""
    url: Basic[str] = ""
    """in place of the file's url"""
    classes: Basic[tuple[str, ...] | str | None] = None
    """in place of the file's answer.classes: the labels in the order of the student's classes, or a
    text file with one label a line"""


@dataclass(frozen=True, kw_only=True, config=CONFIG)
class TfServingOptions(JsonOptions):
    """A model behind TensorFlow Serving's REST predict: kind json with an adapter that ships with
    dfme.
    """

    adapter: str = "configs/adapters/tf_serving.yaml"


@dataclass(frozen=True, kw_only=True, config=CONFIG)
class HfApiOptions(JsonOptions):
    """A service like Hugging Face's image classification: kind json with an adapter that ships with
    dfme.
    """

    adapter: str = "configs/adapters/hf_api.yaml"


@dataclass(frozen=True, config=CONFIG)
class TrainDataConfig:
    """Data that a teacher is trained and scored on."""

    name: str = "digits"
    """digits, shapes, letters, mnist, fashion_mnist, cifar10, cifar100, svhn, or a FOLDER of class
    folders
    """
    root: str = "datasets"
    """where torchvision's data sets lie"""
    download: bool = False
    """let torchvision fetch a missing data set"""
    shape: tuple[int, int, int] | None = None
    """images as C,H,W, for shapes, letters and folders; the other sets have their own"""


@dataclass(frozen=True, config=CONFIG)
class TrainTeacherConfig:
    """Options of training a teacher: the fields of the recipes in configs/teachers."""

    data: TrainDataConfig = field(default_factory=TrainDataConfig)
    """what it is trained and scored on"""
    arch: str = "auto"
    """a name from dfme.nets, a torchvision classifier, or auto (by the size of the image)"""
    epochs: Count = 30
    """passes over the training images"""
    batch_size: Count = 128
    """images per step"""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """sgd (with Nesterov's momentum) or adam"""
    lr: Positive = 0.1
    """learning rate at the start"""
    momentum: ShareBelowOne = 0.9
    """of sgd"""
    weight_decay: NotNegative = 5e-4
    """of the optimiser"""
    schedule: Literal["cosine", "constant"] = "cosine"
    """of the learning rate: cosine (to zero at the end) or constant"""
    augmentation: Literal["none", "shift", "crop_flip"] = "none"
    """none, shift (each image moves by up to padding pixels) or crop_flip (shift and mirror)"""
    padding: Natural = 4
    """most pixels by which an augmented image moves; what is uncovered is black"""
    label_smoothing: ShareBelowOne = 0.0
    """share of the target spread over all classes"""
    precision: Literal["fp32", "bf16"] = "fp32"
    """of the training steps: fp32, or bf16 (autocast)"""
    mean: tuple[float, ...] | None = None
    """per-channel mean the network subtracts; none: that of the training images"""
    std: tuple[float, ...] | None = None
    """per-channel deviation the network divides by; none: that of the training images"""
    seed: Natural = 0
    """seed of the weights, the order of the images and their augmentation"""
    device: Device = "auto"
    """auto, cpu, cuda or cuda:N"""
    threads: Natural = 0
    """CPU threads of the training, part of what decides the last bits; 0: as many as torch uses"""
    evaluate_every: Natural = 10
    """epochs between two scores on the test part, shown only; 0: none but the last"""
    out: str | None = None
    """the weights written; by default runs/teachers/NAME.safetensors"""

    @property
    def path(self) -> Path:
        """Where the weights go."""
        return Path(self.out or f"runs/teachers/{Path(self.data.name).name}.safetensors")


@dataclass(frozen=True, config=CONFIG)
class ServeConfig:
    """Serving a teacher over the Open Inference Protocol v2."""

    host: str = "127.0.0.1"
    """address to listen at; any but this machine's own lets others in"""
    port: Annotated[
        int, Field(ge=0, lt=65_536), Expected("a port from 0 (a free one) to 65535")
    ] = 8080
    """port to listen at; 0: a free one, which is printed"""
    model: Name | None = None
    """the model's name in URLs; by default that of the teacher's file or class"""
    max_batch: Count | None = None
    """most images in one request; none: the teacher's own limit"""
    api_key_env: str | None = None
    """environment variable with the key that clients must send, or several, comma-joined: one per
    account
    """
    images_per_second: Rate | None = None
    """most images served per second; more is refused with 429"""
    requests_per_second: Rate | None = None
    """most requests served per second; more is refused with 429"""
    device: Device = "auto"
    """auto, cpu, cuda or cuda:N; where a teacher of kind torch runs"""
    threads: Annotated[int, Field(ge=0, le=1_024)] = 0
    """CPU threads of the model; 0: as many as torch uses"""
    watch: WatchText = ()
    """detectors that see what every account asks, such as pairs,sequential (docs/watch.md)"""
    benign: str | None = None
    """held-out labelled images of the owner on which they are calibrated: a data set's name, or
    FOLDER
    """
    on_alarm: OnAlarm = "log"
    """what follows an alarm for that account: log (answers stay), refuse, or label (the top class
    alone)
    """
    alarm_file: str | None = None
    """file to which each alarm is appended as JSON: time, account, detector, statistic, threshold,
    image
    """
    record: str | None = None
    """folder in which a line is kept for every image looked at: account, time, digests, top class,
    score
    """
    retain_days: Annotated[int, Field(ge=1, le=36_500)] | None = None
    """days after which what is recorded is deleted; to be given with --record, since it is personal
    data
    """
    record_images: bool = False
    """record the images themselves, too"""
    record_max_mb: Annotated[float, Field(gt=0, le=1e9)] = 100.0
    """megabytes of recorded images beyond which no more are kept"""

    @property
    def key_names(self) -> list[str]:
        """The environment variables with the keys."""
        return [name.strip() for name in (self.api_key_env or "").split(",") if name.strip()]


def check_training(config: TrainTeacherConfig) -> None:
    """Raise one UserError that names the settings that rule each other out."""
    problems = []
    if (config.mean is None) != (config.std is None):
        problems.append(say("{mean} and {std}: expected both or neither"))
    if config.path.suffix != ".safetensors":
        problems.append(
            say("{out}: {}", f"expected a file name ending in .safetensors, got {config.path}")
        )
    if problems:
        raise UserError(*problems)


def require_trust(config: TeacherConfig, options: Mapping[str, Any]) -> None:
    """UserError for a program that may do anything, unless its maker is trusted."""
    if not options.get("trust"):
        raise UserError(
            "expected true, as a flag and not in a file, where you trust the maker of the program: "
            "loading it runs its code",
            about=Ref("teacher.trust"),
        )
