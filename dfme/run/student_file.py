"""The student's file: weights with all that is needed to use them without the run that made
them.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from dfme.config.imports import find_target
from dfme.config.yaml_files import load_yaml
from dfme.errors import UserError
from dfme.nets import build_net, find_net, is_own
from dfme.nets.files import on_meta_device, save_module, state_dict_problems
from dfme.spec import ImageSpec

UNREADABLE = (  # what reading a file that is no student's can raise
    UserError,
    SafetensorError,
    OSError,
    LookupError,
    TypeError,
    ValueError,
    ArithmeticError,
    RecursionError,
)
NO_STUDENT = "expected the student.safetensors of a run, but it is not"


def save_student(path: Path, net: nn.Module, arch: str, spec: ImageSpec, num_classes: int) -> None:
    """Write weights as safetensors, whole or not at all, with architecture, image spec, classes."""
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


def student_facts(path: str | Path) -> tuple[str, ImageSpec, int]:
    """Architecture, images and classes of a student by its file or its run directory; no network is
    made.

    Raises UserError for a file that is missing, damaged, or not a student's.
    """
    path = _weights(path)
    if not path.is_file():
        raise UserError(f"{path}: no such file; expected the student.safetensors of a run")
    try:
        with safe_open(path, framework="pt") as file:
            facts = file.metadata() or {}
        shape, bounds = (tuple(json.loads(facts[name])) for name in ("shape", "bounds"))
        spec = ImageSpec(shape, bounds, json.loads(facts["levels"]))
        return facts["arch"], spec, int(facts["num_classes"])
    except UNREADABLE as error:
        raise UserError(f"{path}: {NO_STUDENT}: {error}") from error


def load_student(path: str | Path, arch: Callable[..., Any] | str | None = None) -> nn.Module:
    """A student from its file or run, in eval mode, on the CPU: images within bounds to logits.

    Its ``spec`` (ImageSpec), ``num_classes`` and ``arch`` are attributes. ``arch`` makes a custom
    network, or is its ``module:Net``: what the file alone names is not imported. Raises
    UserError for a file that is missing, damaged, or not a student's.
    """
    path, (name, spec, num_classes) = _weights(path), student_facts(path)
    if is_own(name) and arch is None:
        raise UserError(
            f"{path}: its network is {name}, and no file alone has a module imported: in Python, "
            "say "
            "dfme.load_student(path, arch=Net); to a command, the run's config.yaml beside the "
            "file says it"
        )
    try:
        with safe_open(path, framework="pt") as file:
            # no mapping
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        network = find_target(arch, "arch") if isinstance(arch, str) else arch
        build = partial(build_net, name, spec.shape, num_classes, network)
        if network is None and (outline := on_meta_device(build)) is not None:
            # no memory for the size that a file claims, before it is known to fit
            _require_fit(outline, name, state)
        with torch.random.fork_rng(devices=[]):
            net = build()
        _require_fit(net, name, state)
    except UNREADABLE as error:
        what = NO_STUDENT if arch is None else f"its network is {name}"
        raise UserError(f"{path}: {what}: {error}") from error
    net.load_state_dict(state, strict=False)
    net.spec = spec  # type: ignore[assignment]
    net.num_classes = num_classes  # type: ignore[assignment]
    net.arch = name  # type: ignore[assignment]
    return net.eval()


def load_student_of_run(weights: Path) -> nn.Module:
    """The student of a file; a user's network is the one named in config.yaml beside it."""
    config = weights.parent / "config.yaml"
    (name, _, _) = student_facts(weights)
    named = (
        load_yaml(config, own=True).get("student") if is_own(name) and config.is_file() else None
    )
    return load_student(
        weights, find_net(str(named.get("arch"))) if isinstance(named, dict) else None
    )


def _weights(path: str | Path) -> Path:
    return Path(path) / "student.safetensors" if Path(path).is_dir() else Path(path)


def _require_fit(net: nn.Module, arch: str, state: dict[str, Tensor]) -> None:
    if problems := state_dict_problems(net, state):
        raise UserError(f"its weights do not fit {arch}: {problems}")
