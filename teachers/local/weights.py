"""Weights on disk: safetensors, and PyTorch state dicts without ever running a pickle's code."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError
from torch import Tensor, nn

from dfme.errors import UserError, flag, say
from dfme.nets import check_net
from dfme.nets.files import state_dict_problems
from dfme.nets.torchvision_nets import TIMM
from dfme.teachers.local.names import (
    State,
    chosen,
    first_words,
    part_under,
    plain_state,
    some,
    which_was_taken,
)
from dfme.teachers.local.safetensors_file import is_safetensors, read_safetensors

LARGEST = 1e30  # above any pixel value, mean or deviation of a network in single precision

CardCount = Annotated[int, Field(gt=0, lt=2**31)]
Number = Annotated[float, Field(gt=-LARGEST, lt=LARGEST)]
Numbers = tuple[Number, ...]
TEXTS = ("arch", "dataset")  # stored as they are
SCALING = ("mean", "std", "bounds")  # what changes the pixels that a network gets


@dataclass(frozen=True)
class Card:
    """Facts that a weights file states, in the safetensors metadata; None where it states nothing.

    Texts are stored as they are, everything else as JSON. ``shape`` is C, H, W; ``bounds`` the
    pixel range the API takes; ``mean`` and ``std`` are per channel, within those bounds;
    ``accuracy`` a share of 1. The file may come from anywhere, so each type is checked.
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
        """The fields that are stated, as the strings that safetensors stores."""
        return {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in vars(self).items()
            if value is not None
        }

    @classmethod
    def read(cls, metadata: Mapping[str, str], path: Path) -> tuple[Card, tuple[str, ...]]:
        """The card in a file's metadata, and the names of a card that are not used.

        UserError for a value that dfme wrote and that cannot be read. Of metadata of others, the
        architecture has no meaning here, and neither have ``bounds``, ``mean`` and ``std``: it is
        unknown whether the network gets pixels scaled by them.
        """
        ours = "arch" in metadata and _is_ours(metadata["arch"])
        values: dict[str, Any] = {}
        for name, kind in get_type_hints(cls, include_extras=True).items():
            text = metadata.get(name)
            if text is None or (name in (*SCALING, "arch") and not ours):
                continue
            if name in TEXTS:
                values[name] = text
                continue
            try:
                values[name] = TypeAdapter(kind).validate_json(text, strict=True)
            except ValidationError as error:
                if ours:
                    problem = f"{error.errors()[0]['msg']}, but it is {text[:80]!r}"
                    raise UserError(f"{path}: its metadata {name}: {problem}") from None
        unused = metadata.keys() - values
        return cls(**values), tuple(f.name for f in fields(cls) if f.name in unused)


def _is_ours(arch: str) -> bool:
    """True if dfme wrote a card with this architecture."""
    try:
        check_net(arch)
    except UserError:
        # a network of timm is ours where timm is not installed, too
        return arch.startswith(TIMM)
    return True


# keys under which training scripts keep a state dict among other things, the most specific first
WRAPPINGS = (
    "state_dict",
    "model_state_dict",
    "model",
    "net",
    "network",
    "weights",
    "module",
    "params",
)

SMALL_NETWORK = 1_000_000  # numbers in a network whose memory does not matter
MAX_TABLES = 20_000_000  # numbers in a network besides its weights
MAX_NESTED = 5  # keys that lead to a state dict


@dataclass(frozen=True)
class Weights:
    """What a file holds: a state dict, what it says about itself, and a line if it has several.

    ``unused`` names what others wrote into its metadata under names of a card, and is left out.
    """

    state: State
    card: Card
    note: str = ""
    unused: tuple[str, ...] = ()


def read_checkpoint(path: str | Path, entry: str | None = None) -> Weights:
    """Read a state dict, unwrapped and under plain names, and what the file says about itself.

    Wrappings such as {"state_dict": ...} are opened. ``entry`` names one of several state dicts:
    its key, or what its names begin with. UserError for anything that is not weights.
    """
    path = Path(path).expanduser()
    head = _head(path)
    note = ""
    metadata: Mapping[str, str] = {}
    inner = entry or ""
    if is_safetensors(head):
        state, metadata = read_safetensors(path)
    elif head[:2] == b"PK" or head[:1] == b"\x80":
        value, inner = _at(_read_pickle(path), inner)
        state, note = _unwrap(value, path)
    else:
        raise UserError(
            f"{path}: {_looks_like(head, path)}; expected .safetensors or weights in .pt/.pth"
        )
    if not state:
        raise UserError(f"{path}: holds no tensors; expected the weights of a network")
    card, unused = Card.read(metadata, path)
    plain = plain_state(state)
    if not inner:
        return Weights(plain, card, note, unused)
    selected = part_under(inner, plain) or part_under(inner, state)
    if not selected:
        raise UserError(
            say(
                "{}: {teacher.entry}: expected a key of a state dict in it, or the first word of "
                "its names, got {}; its names begin with {}",
                path,
                inner[:80],
                some(first_words(plain)),
            )
        )
    return Weights(plain_state(selected), card, unused=unused)


def read_weights(path: str | Path) -> tuple[State, Card]:
    """The state dict of ``read_checkpoint``, and what the file says about itself."""
    weights = read_checkpoint(path)
    return weights.state, weights.card


def require_as_large(outline: nn.Module, shapes: list[tuple[int, ...]], *, source: str) -> None:
    """UserError where a network would take memory for numbers that its files do not hold.

    ``outline`` has names and shapes alone. A part that lacks weights is named when they are loaded,
    so the network may be twice as large as they are. What it computes for itself may be
    ``MAX_TABLES``.
    """
    stored = sum(map(math.prod, shapes))
    described = sum(parameter.numel() for parameter in outline.parameters())
    tables = sum(buffer.numel() for buffer in outline.buffers())
    if described > 2 * stored + SMALL_NETWORK or tables > max(stored, MAX_TABLES):
        raise UserError(
            f"{source}: describes a network of {described + tables:,} numbers, but the weights "
            f"hold {stored:,}"
        )


def require_fit(module: nn.Module, state: State, *, source: str = "the weights") -> None:
    """UserError with the count and the first of the names and shapes that do not fit."""
    if problems := state_dict_problems(module, state):
        raise UserError(f"{source} do not fit the network: {problems}")


def load_into(module: nn.Module, state: State, *, source: str = "the weights") -> None:
    """Copy a state dict into a module. UserError with the count and the first of what does not fit.

    Batch counters (``num_batches_tracked``) may be missing, as in checkpoints of old PyTorch
    versions.
    """
    require_fit(module, state, source=source)
    broken = [
        name
        for name, value in state.items()
        if value.is_floating_point() and not value.isfinite().all()
    ]
    if broken:
        raise UserError(
            f"{source} hold NaN or infinite values in {len(broken)} tensors, first {broken[0]}"
        )
    # some networks refuse weights that do not say by which version of their code they were written
    versioned = OrderedDict(state)
    versioned._metadata = module.state_dict()._metadata  # type: ignore[attr-defined]
    module.load_state_dict(versioned, strict=False)


def _head(path: Path) -> bytes:
    """The first bytes of a file that exists, is a file and can be read."""
    if not path.exists():
        raise UserError(f"{path}: no such file; expected weights as .safetensors, .pt or .pth")
    if not path.is_file():
        raise UserError(
            f"{path}: is a directory, a pipe or a device; expected .safetensors, .pt or .pth"
        )
    try:
        with path.open("rb") as file:
            return file.read(64)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error


def _looks_like(head: bytes, path: Path) -> str:
    """What a file that holds no weights probably is, in a few words."""
    if not head:
        return "is empty"
    text = head.lstrip().lower()
    if text.startswith((b"<!doctype", b"<html")):
        return "is an HTML page, perhaps saved in place of a download"
    if text.startswith(b"version https://git-lfs"):
        return "is a Git LFS pointer; fetch the file itself with git lfs pull"
    if path.suffix == ".onnx":
        return f"is an ONNX model, for which say {flag('teacher', 'onnx')} {flag('teacher.model')}"
    if path.suffix == ".safetensors":
        return "is no safetensors file, or is cut short"
    is_text = all(byte in b"\t\r\n" or 32 <= byte < 127 for byte in head)
    return "is a text file" if is_text else "is no weights file"


def _read_pickle(path: Path) -> object:
    """Read what PyTorch saved; every failure becomes one line."""
    from dfme.nets.pickles import NotPlainError, load_plain

    try:
        return load_plain(path)
    except NotPlainError as error:
        if not error.imports:
            raise UserError(
                f"{path}: cannot be read as weights, perhaps cut short: {error}"
            ) from error
        raise UserError(
            f"{path}: not loaded, since it holds Python objects beside tensors, and loading them "
            f"can run any code: {some(error.imports)}; where you trust it, save "
            "model.state_dict() alone and give that file"
        ) from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error


def _at(value: object, entry: str) -> tuple[object, str]:
    """The value under keys joined by dots, and the rest of ``entry`` that is no key."""
    while entry and isinstance(value, Mapping):
        first, _, rest = entry.partition(".")
        key, rest = (entry, "") if isinstance(value.get(entry), Mapping) else (first, rest)
        if not isinstance(value.get(key), Mapping):
            break
        value = value[key]
        entry = rest
    return value, entry


def _unwrap(value: object, path: Path, depth: int = 0) -> tuple[State, str]:
    """The state dict in what a training script saved, and which one, where there are several."""
    if not isinstance(value, Mapping):
        raise UserError(
            f"{path}: holds a {type(value).__name__}; expected a state dict (name -> tensor)"
        )
    tensors = {str(name): entry for name, entry in value.items() if isinstance(entry, Tensor)}
    nested = {str(name): entry for name, entry in value.items() if _holds_weights(entry, depth)}
    usual = next((name for name in WRAPPINGS if name in nested), None)
    if tensors and usual is None and not any(len(nested[name]) > len(tensors) for name in nested):
        return tensors, ""
    if not nested:
        keys = ", ".join(str(key)[:40] for key in list(value)[:8]) or "none"
        raise UserError(
            f"{path}: holds no state dict: its keys are {keys}; "
            f"expected tensors, or a dict of them under {', '.join(WRAPPINGS)}"
        )
    key = usual or chosen(list(nested))
    if key is None:
        raise UserError(
            say(
                "{}: holds {} state dicts, under {}; say {teacher.entry} with one",
                path,
                len(nested),
                some(list(nested)),
            )
        )
    state, note = _unwrap(nested[key], path, depth + 1)
    others = [name for name in nested if name != key]
    return state, which_was_taken(key, some(others)) if others else note


def _holds_weights(value: object, depth: int) -> bool:
    """True for a dict of tensors, and for one that wraps such a dict."""
    if not isinstance(value, Mapping) or depth > MAX_NESTED:
        return False
    if any(isinstance(entry, Tensor) for entry in value.values()):
        return True
    return any(_holds_weights(value.get(name), depth + 1) for name in WRAPPINGS)
