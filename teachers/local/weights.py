"""Weights on disk: safetensors, and PyTorch state dicts without ever running a pickle's code."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from dfme.errors import UserError
from dfme.nets.files import state_dict_problems
from dfme.nets.pickles import NotPlainError, load_plain
from dfme.teachers.local.checks import first_line

LARGEST = 1e30  # more than any pixel value, mean or deviation of a network in single precision

CardCount = Annotated[int, Field(gt=0, lt=2**31)]
Number = Annotated[float, Field(gt=-LARGEST, lt=LARGEST)]
Numbers = tuple[Number, ...]
TEXTS = ("arch", "dataset")  # stored as they are


@dataclass(frozen=True)
class Card:
    """Facts that a weights file states, in the safetensors metadata; None where it states nothing.

    Texts are stored as they are, everything else as JSON. ``shape`` is C, H, W; ``bounds`` the pixel range
    the API takes; ``mean`` and ``std`` are per channel, within those bounds; ``accuracy`` a share of 1.
    Anybody can have written it, so each type is checked.
    """

    arch: str | None = None
    shape: tuple[CardCount, CardCount, CardCount] | None = None
    num_classes: CardCount | None = None
    mean: Numbers | None = None
    std: Numbers | None = None
    bounds: tuple[Number, Number] | None = None
    class_names: tuple[str, ...] | None = None
    dataset: str | None = None
    accuracy: Number | None = None
    test_images: CardCount | None = None
    recipe: dict[str, Any] | None = None

    def to_metadata(self) -> dict[str, str]:
        """The fields that are known, as the strings safetensors stores."""
        known = {name: value for name, value in vars(self).items() if value is not None}
        return {name: value if isinstance(value, str) else json.dumps(value) for name, value in known.items()}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str], path: Path) -> Card:
        """Read the known keys and leave the others; UserError if one cannot be read."""
        values: dict[str, Any] = {}
        for name, kind in get_type_hints(cls, include_extras=True).items():
            if (text := metadata.get(name)) is not None:
                try:
                    read = TypeAdapter(kind).validate_json
                    values[name] = text if name in TEXTS else read(text, strict=True)
                except ValidationError as error:
                    said = f"{error.errors()[0]['msg']}, but it is {text[:80]!r}"
                    raise UserError(f"{path}: its metadata {name}: {said}") from None
        return cls(**values)


State = dict[str, Tensor]

# keys under which training scripts keep a state dict among other things, the most specific first
WRAPPINGS = ("state_dict", "model_state_dict", "model", "net", "weights")

SMALL_NETWORK = 1_000_000  # numbers in one that takes no memory to speak of
MAX_TABLES = 20_000_000  # numbers in a network beside its weights

MAX_HEADER = 100_000_000  # bytes of the longest header that the safetensors library reads


def read_weights(path: str | Path) -> tuple[State, Card]:
    """Read a state dict, unwrapped and with its prefixes stripped, and what the file says about itself.

    Wrappings such as {"state_dict": ...} are opened; the prefixes ``module.`` and ``_orig_mod.``, which
    DataParallel and torch.compile leave, are removed. UserError for anything that is not weights.
    """
    path = Path(path).expanduser()
    head = _head(path)
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < MAX_HEADER:
        state, card = _read_safetensors(path)
    elif head[:2] == b"PK" or head[:1] == b"\x80":
        state = _unwrap(_read_pickle(path), path)
        card = Card()
    else:
        raise UserError(f"{path}: {_looks_like(head, path)}; expected .safetensors or weights in .pt/.pth")
    if not state:
        raise UserError(f"{path}: holds no tensors; expected the weights of a network")
    state = {name.replace("_orig_mod.", ""): value for name, value in state.items()}
    # what all of them have
    prefix = min(len(name) - len(re.sub(r"^(module\.)+", "", name)) for name in state)
    return {name[prefix:]: value for name, value in state.items()}, card


def sizes_on_disk(folder: Path) -> list[tuple[int, ...]]:
    """The shapes of all tensors in a folder's safetensors files, by their headers. UserError for others."""
    shapes = list[tuple[int, ...]]()
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                shapes += [tuple(file.get_slice(name).get_shape()) for name in file.keys()]  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            problem = first_line(error).partition(". ")[0]
            raise UserError(f"{path}: cannot be read as safetensors, perhaps cut short: {problem}") from error
    return shapes


def require_as_large(outline: nn.Module, shapes: list[tuple[int, ...]], *, source: str) -> None:
    """UserError where a network would take memory for numbers that its files do not hold.

    ``outline`` has names and shapes alone. A part that lacks weights is named when they are loaded, so the
    network may be twice as large as they are. What it computes for itself may be ``MAX_TABLES``.
    """
    held = sum(map(math.prod, shapes))
    described = sum(parameter.numel() for parameter in outline.parameters())
    tables = sum(buffer.numel() for buffer in outline.buffers())
    if described > 2 * held + SMALL_NETWORK or tables > max(held, MAX_TABLES):
        raise UserError(
            f"{source}: describes a network of {described + tables:,} numbers, but the weights hold {held:,}"
        )


def require_fit(module: nn.Module, state: State, *, source: str = "the weights") -> None:
    """UserError with the count and the first of what does not fit the module, by names and shapes."""
    problems = state_dict_problems(module, state)
    if problems:
        raise UserError(f"{source} do not fit the network: {problems}")


def load_into(module: nn.Module, state: State, *, source: str = "the weights") -> None:
    """Copy a state dict into a module. UserError with the count and the first of what does not fit.

    Batch counters (``num_batches_tracked``) may be missing, as in checkpoints of old PyTorch versions.
    """
    require_fit(module, state, source=source)
    floats = {name: value for name, value in state.items() if value.is_floating_point()}
    broken = [name for name, value in floats.items() if not value.isfinite().all()]
    if broken:
        raise UserError(f"{source} hold NaN or infinite values in {len(broken)} tensors, first {broken[0]}")
    module.load_state_dict(state, strict=False)


def _head(path: Path) -> bytes:
    """The first bytes of a file that exists, is a file and can be read."""
    if not path.exists():
        raise UserError(f"{path}: no such file; expected weights as .safetensors, .pt or .pth")
    if not path.is_file():
        raise UserError(f"{path}: is a directory, a pipe or a device; expected .safetensors, .pt or .pth")
    try:
        with path.open("rb") as file:
            return file.read(64)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error


def _looks_like(head: bytes, path: Path) -> str:
    """Likely kind of a file that is no weights, in a few words."""
    if not head:
        return "is empty"
    text = head.lstrip().lower()
    if text.startswith((b"<!doctype", b"<html")):
        return "is an HTML page, perhaps saved in place of a download"
    if text.startswith(b"version https://git-lfs"):
        return "is a Git LFS pointer; fetch the file itself with git lfs pull"
    if path.suffix == ".onnx":
        return "is an ONNX model, for which say --teacher onnx --teacher.model"
    if path.suffix == ".safetensors":
        return "is no safetensors file, or is cut short"
    is_text = all(byte in b"\t\r\n" or 32 <= byte < 127 for byte in head)
    return "is a text file" if is_text else "is no weights file"


def _read_safetensors(path: Path) -> tuple[State, Card]:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (the handle is no dict)
    except (SafetensorError, OSError) as error:
        problem = first_line(error).partition(". ")[0]
        raise UserError(f"{path}: cannot be read as safetensors, perhaps cut short: {problem}") from error
    return state, Card.from_metadata(metadata, path)


def _read_pickle(path: Path) -> object:
    """Read what PyTorch saved; every failure becomes one line."""
    try:
        return load_plain(path)
    except NotPlainError as error:
        names = error.imports
        if not names:
            raise UserError(f"{path}: cannot be read as weights, perhaps cut short: {error}") from error
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if names[5:] else "")
        raise UserError(
            f"{path}: not loaded, since it holds Python objects beside tensors, and loading them can run "
            f"any code: {shown}; where you trust it, save model.state_dict() alone and give that file"
        ) from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error


def _unwrap(value: object, path: Path) -> State:
    """The state dict in what a training script saved."""
    if not isinstance(value, Mapping):
        raise UserError(f"{path}: holds a {type(value).__name__}; expected a state dict (name -> tensor)")
    if value and all(isinstance(entry, Tensor) for entry in value.values()):
        return {str(name): entry for name, entry in value.items()}
    for name in WRAPPINGS:
        if isinstance(value.get(name), Mapping):
            return _unwrap(value[name], path)
    raise UserError(
        f"{path}: holds no state dict: its keys are "
        f"{', '.join(str(key)[:40] for key in list(value)[:8]) or 'none'}; "
        f"expected tensors, or a dict of them under {', '.join(WRAPPINGS)}"
    )
