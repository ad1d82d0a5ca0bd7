"""torchvision's and timm's classifiers by their own names; nothing heavy loads before its time."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dfme.errors import UserError
from dfme.spec import Shape

if TYPE_CHECKING:
    from torch import Tensor, nn

TRANSFORMING = ("googlenet", "inception_v3")
"""Networks that may scale their input again (``transform_input``), which no weight tells."""

AUXILIARY = re.compile(r"aux[12]\.|AuxLogits\.")
"""What names of their auxiliary heads begin with, which answer in training alone."""

OLD_NAMES = (
    # torchvision's own files of DenseNet and ViT still have the names of old versions
    (re.compile(r"(denselayer\d+\.(?:norm|conv))\.(?=[12]\.)"), r"\1"),
    (re.compile(r"\.mlp\.linear_1\."), ".mlp.0."),
    (re.compile(r"\.mlp\.linear_2\."), ".mlp.3."),
)

TIMM = "timm:"
"""What the name of one of timm's classifiers begins with."""


def import_torchvision(submodule: str) -> ModuleType:
    """``torchvision.<submodule>``; a UserError with a remedy where it is missing or broken."""
    try:
        return importlib.import_module(f"torchvision.{submodule}")
    except (ImportError, RuntimeError) as error:  # the latter of one built for another torch
        raise UserError(
            f"torchvision cannot be imported ({_line(error)}); install the build that matches this "
            "torch "
            "(the same release, CPU or CUDA alike). The sets digits and shapes and dfme's own nets "
            "do without"
        ) from error


@functools.cache
def registered_names(package: str) -> tuple[str, ...]:
    """Names of torchvision's or timm's classifiers, from the source files right under ``models``,
    if any.
    """
    spec = importlib.util.find_spec(package)
    folders = (spec and spec.submodule_search_locations) or ()
    texts = list[str]()
    for folder in folders:
        files = sorted(Path(folder, "models").glob("*.py"))
        texts += [file.read_text("utf-8") for file in files]
    registered = re.compile(r"^@register_model(?:\(\))?\n(?:(?!def ).*\n)*?def (\w+)\(", re.M)
    return tuple(sorted(name for text in texts for name in registered.findall(text)))


def timm_net(name: str, shape: Shape, num_classes: int) -> nn.Module:
    """A timm classifier without pretrained weights, sized to fit. UserError where it cannot be
    built.
    """
    plain = name.removeprefix(TIMM)
    with _building(f"arch {name}: cannot be built for images of {_text(shape)}"):
        timm = importlib.import_module("timm")
        fixed = getattr(timm.get_pretrained_cfg(plain), "fixed_input_size", False)
        sized = {"img_size": shape[1:]} if fixed else {}
        net: nn.Module = timm.create_model(
            plain, False, num_classes=num_classes, in_chans=shape[0], **sized
        )
    _check_size(name, shape, net)
    return net


def torchvision_net(name: str, shape: Shape, num_classes: int) -> nn.Module:
    """A torchvision classifier without pretrained weights. UserError for a size that it cannot
    take.
    """
    get_model = import_torchvision("models").get_model
    with _building(f"arch {name}: does not take images of {_text(shape)}"):
        net: nn.Module = get_model(
            name, weights=None, num_classes=num_classes, **_own_arguments(name, shape)
        )
    if shape[0] != 3:
        _replace_stem(net, shape[0])
    _check_size(name, shape, net)
    return net


def current_names(name: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a torchvision classifier under today's names, without auxiliary heads."""
    if name in TRANSFORMING:
        return {key: value for key, value in state.items() if not AUXILIARY.match(key)}
    if not name.startswith(("densenet", "vit_")):
        return state
    renamed = {}
    for key, value in state.items():
        for old, new in OLD_NAMES:
            key = old.sub(new, key)
        renamed[key] = value
    return renamed


def _own_arguments(name: str, shape: Shape) -> dict[str, Any]:
    """Arguments of a few families: the size of the image, or to answer with nothing but scores."""
    if name.startswith("vit_"):
        return {"image_size": shape[1]}
    if name.startswith("maxvit"):
        return {"input_size": shape[1:]}
    if name in ("googlenet", "inception_v3"):
        return {"aux_logits": False, "init_weights": True}
    return {}


def _replace_stem(net: nn.Module, channels: int) -> None:
    from torch.nn import Conv2d, Parameter

    stem = next(module for module in net.modules() if isinstance(module, Conv2d))
    stem.in_channels = channels
    stem.weight = Parameter(stem.weight.new_empty(stem.out_channels, channels, *stem.kernel_size))
    stem.reset_parameters()


def _check_size(name: str, shape: Shape, net: nn.Module) -> None:
    """Run the net once on meta tensors in place of its own: shapes only, no arithmetic."""
    import torch

    tensors = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    hollow = {key: torch.empty_like(tensor, device="meta") for key, tensor in tensors.items()}
    with torch.no_grad(), _building(f"arch {name}: does not take images of {_text(shape)}"):
        torch.func.functional_call(net.eval(), hollow, (torch.empty(2, *shape, device="meta"),))
    net.train()


@contextmanager
def _building(problem: str) -> Iterator[None]:
    """UserError for whatever a network of others raises, but that it needs real memory."""
    try:
        yield
    except (NotImplementedError, UserError):
        raise
    except Exception as error:  # a size that does not fit can raise anything
        raise UserError(f"{problem}: {_line(error)}") from error


def _text(shape: Shape) -> str:
    return "x".join(str(size) for size in shape)


def _line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
