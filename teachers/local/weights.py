"""Weights on disk: safetensors, and PyTorch state dicts without ever running a pickle's code."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError
from torch import nn

from dfme.errors import UserError
from dfme.nets import check_net
from dfme.nets.files import state_dict_problems
from dfme.nets.state_files import State, read_state
from dfme.nets.torchvision_nets import TIMM

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
    file = read_state(path, entry or "")
    card, unused = Card.read(file.metadata, path)
    return Weights(file.state, card, file.note, unused)


def read_weights(path: str | Path) -> tuple[State, Card]:
    """The state dict of ``read_checkpoint``, and what the file says about itself."""
    weights = read_checkpoint(path)
    return weights.state, weights.card


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
