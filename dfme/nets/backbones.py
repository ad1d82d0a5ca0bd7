"""Backbones of timm, torchvision and transformers: nets from images to what their last layer sees.

A backbone takes normalised images (B, 3, H, W) and gives features (B, d). Nothing is fetched.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from dfme.config.imports import blaming
from dfme.errors import UserError
from dfme.nets import check_net, transformers_nets
from dfme.nets.files import differences, of_bounded_size
from dfme.nets.input_form import IMAGENET_MEAN, IMAGENET_STD, USUAL_SIDE, InputForm, Size, Sizes
from dfme.nets.model_folders import numbers, positive, sized
from dfme.nets.sources import TRANSFORMERS, import_theirs
from dfme.nets.state_files import State
from dfme.nets.torchvision_nets import TIMM, TRANSFORMING, current_names, import_torchvision


@dataclass(frozen=True)
class Blueprint:
    """What builds a backbone: its architecture, and ``config``, JSON of its own arguments or ""."""

    arch: str
    config: str = ""

    def build(self, size: Size) -> nn.Module:
        """The backbone for images of this size, with fresh weights; global random state moves."""
        what = f"{self.arch} cannot be built for images of {size[0]}x{size[1]}"
        with blaming(what, UserError, _line), of_bounded_size():
            if self.arch == TRANSFORMERS:
                return transformers_nets.build(self.arguments, size)
            check_net(self.arch)  # other names can fetch, such as those of torchvision's detectors
            if self.arch.startswith(TIMM):
                return _timm(self.arch, self.arguments, size)
            return _torchvision(self.arch, size)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments in ``config``. UserError where it is no JSON object of plain sizes."""
        if not self.config:
            return {}
        try:
            values = json.loads(self.config, parse_int=sized)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{self.arch}: its arguments are no JSON: {_line(error)}") from error
        if not isinstance(values, dict):
            raise UserError(f"{self.arch}: expected arguments in a JSON object")
        return values

    def published(self) -> InputForm:
        """The form of images that the architecture's own weights were published with."""
        if self.arch.startswith(TIMM):
            return form_of_timm(vars(_timm_config(self.arch)), self.arch)
        # these two scale images from ImageNet's mean and deviation to these by themselves
        half = (0.5, 0.5, 0.5)
        if self.arch in TRANSFORMING:
            return InputForm((USUAL_SIDE, USUAL_SIDE), half, half)
        return InputForm((USUAL_SIDE, USUAL_SIDE))

    def sizes(self, backbone: nn.Module) -> Sizes:
        """The sizes of images that a net of this architecture takes."""
        if self.arch == TRANSFORMERS:
            return transformers_nets.sizes(self.arguments, backbone)
        if not self.arch.startswith(TIMM):
            fixed = self.arch.startswith(("vit_", "maxvit", "swin"))
            return Sizes("one" if fixed else "any")
        if not _timm_config(self.arch).fixed_input_size:
            return Sizes("any")
        patch = getattr(getattr(backbone, "patch_embed", None), "patch_size", None)
        if isinstance(getattr(backbone, "pos_embed", None), nn.Parameter) and patch is not None:
            return Sizes("patches", (patch, patch) if isinstance(patch, int) else tuple(patch))
        return Sizes("one")

    def fitted(self, state: State, backbone: nn.Module, size: Size) -> State:
        """A published state dict under the backbone's names, for its size, without its last
        layer.
        """
        if self.arch == TRANSFORMERS:
            patch = self.sizes(backbone).patch
            return transformers_nets.fitted(state, backbone, patch, size)
        if self.arch.startswith(TIMM):
            return _fitted_to_timm(self.arch, state, backbone)
        outputs = _outputs_of(backbone)
        state = current_names(self.arch, state)
        return {name: value for name, value in state.items() if not name.startswith(outputs)}


def form_of_timm(config: Mapping[str, Any], source: str) -> InputForm:
    """Size, mean and deviation in a pretrained_cfg of timm; ImageNet's where it has none."""
    size = config.get("input_size")
    sides = list(map(positive, size[1:])) if isinstance(size, list | tuple) else []
    side = (sides[0], sides[1]) if len(sides) == 2 and all(sides) else None
    stated = [
        numbers(list(value), f"{source}: {name}")
        for name in ("mean", "std")
        if isinstance(value := config.get(name), list | tuple)
    ]
    mean, std = stated if len(stated) == 2 else (IMAGENET_MEAN, IMAGENET_STD)
    square = (USUAL_SIDE, USUAL_SIDE)
    return InputForm((side[0] or 0, side[1] or 0) if side else square, mean, std)


def _timm_config(arch: str) -> Any:
    config = import_theirs("timm").get_pretrained_cfg(arch.removeprefix(TIMM))
    if config is None:
        raise UserError(f"{arch}: timm has no such architecture")
    return config


def _timm(arch: str, arguments: Mapping[str, Any], size: Size) -> nn.Module:
    timm = import_theirs("timm")
    reserved = inspect.signature(timm.create_model).parameters
    foreign = [name for name in arguments if name in reserved or name.startswith("pretrained")]
    if foreign:
        raise UserError(f"{arch}: its arguments may not say where weights are: {foreign[0][:80]}")
    fixed = {"img_size": size} if _timm_config(arch).fixed_input_size else {}
    plain = arch.removeprefix(TIMM)
    net: nn.Module = timm.create_model(plain, False, num_classes=0, **{**arguments, **fixed})
    return net


def _torchvision(arch: str, size: Size) -> nn.Module:
    get_model = import_torchvision("models").get_model
    arguments: dict[str, Any] = {}
    if arch.startswith("maxvit"):
        arguments["input_size"] = size
    if arch in TRANSFORMING:
        arguments["aux_logits"] = False
        arguments["init_weights"] = True
    net: nn.Module = get_model(arch, weights=None, **arguments)
    name = [name for name, layer in net.named_modules() if isinstance(layer, nn.Linear)][-1]
    parent, _, child = name.rpartition(".")
    setattr(net.get_submodule(parent), child, nn.Identity())
    net.last_layer = name
    return net


def _outputs_of(backbone: nn.Module) -> str:
    return f"{backbone.last_layer}."


def _fitted_to_timm(arch: str, state: State, backbone: nn.Module) -> State:
    """As timm itself reads weights: other names, and position embeddings of another size."""
    config = _timm_config(arch)
    names = config.classifier or ()
    last = tuple(f"{name}." for name in ((names,) if isinstance(names, str) else names))
    state = {name: value for name, value in state.items() if not name.startswith(last)}
    entrypoint = import_theirs("timm.models").model_entrypoint(arch.removeprefix(TIMM))
    convert = getattr(sys.modules[entrypoint.__module__], "checkpoint_filter_fn", None)
    if convert is None or not differences(backbone.state_dict(), state):
        return state
    with blaming(f"its weights do not fit {arch}", UserError, _line):
        converted = convert(dict(state), backbone)
    return {
        name: value
        for name, value in converted.items()
        if isinstance(value, Tensor) and not name.startswith(last)
    }


def _line(error: BaseException) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:300]
