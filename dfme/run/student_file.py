"""The student's file: weights with all that is needed to use them without the run that made them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from dfme.errors import UserError
from dfme.nets import build_net, find_net
from dfme.nets.files import on_meta_device, save_module, state_dict_problems
from dfme.spec import ImageSpec

UNREADABLE = (UserError, SafetensorError, OSError, LookupError, TypeError, ValueError, ArithmeticError, RecursionError)
"""What reading a file that is no student's can raise."""


def save_student(path: Path, net: nn.Module, arch: str, spec: ImageSpec, num_classes: int) -> None:
    """Write the net's weights as safetensors, whole or not at all, with architecture, image spec and classes."""
    save_module(path, net, described(arch, spec, num_classes))


def described(arch: str, spec: ImageSpec, num_classes: int) -> dict[str, str]:
    """The metadata of a student's file."""
    return {
        "arch": arch,
        "shape": json.dumps(spec.shape),
        "bounds": json.dumps(spec.bounds),
        "levels": json.dumps(spec.levels),
        "num_classes": str(num_classes),
    }


def load_student(path: str | Path, arch: Callable[..., Any] | None = None) -> nn.Module:
    """A student by its file or its run directory, in eval mode, on the CPU: images within its bounds to logits.

    Its ``spec`` (ImageSpec), ``num_classes`` and ``arch`` are attributes. ``arch`` makes a network of one's own, which
    is otherwise imported by the ``module:Net`` that the file names. Raises UserError for a file that is missing,
    damaged, or not a student's.
    """
    path = Path(path)
    path = path / "student.safetensors" if path.is_dir() else path
    if not path.is_file():
        raise UserError(f"{path}: no such file; expected the student.safetensors of a run")
    expected = "expected the student.safetensors of a run, but it is not"
    try:
        with safe_open(path, framework="pt") as file:
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            facts = file.metadata() or {}
        bounds, levels = tuple(json.loads(facts["bounds"])), json.loads(facts["levels"])
        spec = ImageSpec(tuple(json.loads(facts["shape"])), bounds, levels)
        name, num_classes = facts["arch"], int(facts["num_classes"])
        if ":" in name or arch is not None:
            expected = f"its network is {name}: load it where that is a module, or by dfme.load_student(path, arch=...)"
        own = arch or find_net(name)
        build = partial(build_net, name, spec.shape, num_classes, own)
        if own is None and (outline := on_meta_device(build)) is not None:
            _require_fit(outline, name, state)  # no memory for the size that a file claims, before it is known to fit
        with torch.random.fork_rng(devices=[]):
            net = build()
        _require_fit(net, name, state)
    except UNREADABLE as error:
        raise UserError(f"{path}: {expected}: {error}") from error
    net.load_state_dict(state, strict=False)
    net.spec, net.num_classes, net.arch = spec, num_classes, name  # type: ignore[assignment]
    return net.eval()


def _require_fit(net: nn.Module, arch: str, state: dict[str, Tensor]) -> None:
    if problems := state_dict_problems(net, state):
        raise UserError(f"its weights do not fit {arch}: {problems}")
