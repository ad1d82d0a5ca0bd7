"""Checkpoints with a right checksum and one wrong entry: which runs they are of, and what is wrong with them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from counting_teacher import Counting
from fuzzing import saved, sealed
from small_runs import Metered, clone, ctrl_c
from torch import Tensor, nn

from dfme.run.checkpoint import load_checkpoint
from dfme.run.run import Run

State = dict[str, Any]
Way = tuple[Any, ...]


class Labels(Metered):
    def __call__(self, images: Tensor) -> Tensor:
        return super().__call__(images).argmax(dim=1)


def method(name: str, **options: Any) -> State:
    return {"method": name, "method_options": {"batch_size": 20, "latent_size": 8, **options}}


SETUPS: dict[str, State] = {
    "static, average, hold-out": {},
    "dfme, Adam and SGD, digits": {**method("dfme"), "evaluation": {"dataset": "digits", "limit": 10}, "student": {}},
    "Adam student": {"student": {"optimizer": "adam", "replay_steps": 0}},
    "maze, replay": method("maze"),
    "maze, critic and seeds": method("maze", partial_data="procedural", seed_images=30),
    "dual students": method("dual_students"),
    "disguide": method("disguide"),
    "replay on disk": {"student": {"replay_steps": 1, "replay_batch": 8, "replay_store": "disk"}},
    "synthetic gradients": {**method("dfme"), "estimator": {"kind": "synthetic", "every": 2}},
    "neighbours": {**method("dfme"), "estimator": {"kind": "prior_guided", "prior": "neighbours", "space": "image"}},
    "auto": {**method("dfme"), "estimator": {"kind": "auto"}, "budget": 1_200},
    "dfms": method("dfms", gan_steps=2, proxy="digits"),
    "knockoff": {"method": "knockoff", "method_options": {"batch_size": 20, "pool": "digits"}},
    "labels": {"label_mode": "label"},
    "goal, defended": {"evaluation": {"dataset": "digits", "limit": 10}, "until_agreement": 0.2},
}


def teacher_of(setup: str) -> type[Metered] | type[Counting]:
    return {"labels": Labels, "goal, defended": Counting}.get(setup, Metered)


def begin(setup: str, out: Path) -> State:
    """Begin such a run, stop it with a checkpoint and answers beyond it in the journal; the checkpoint's state."""
    stop = {"dfme, Adam and SGD, digits": 5, "auto": 15}.get(setup, 4)  # of auto the first 12 are the check's
    assert not clone(out, teacher_of(setup)({stop: ctrl_c}), **SETUPS[setup]).finished
    return load_checkpoint(out / "checkpoint.pt")


def go_on(setup: str, out: Path, state: State | None = None) -> None:
    """Resume the run, from this state where one is given."""
    if state is not None:
        (out / "checkpoint.pt").write_bytes(sealed(saved(state, zipped=True)))
    clone(out, teacher_of(setup)(), resume=True, **SETUPS[setup])


def opened(setup: str, out: Path) -> Run:
    """The run as it is before it takes its state up."""
    found: list[Run] = []

    def stop(run: Run, state: State) -> None:
        found.append(run)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "load_state_dict", stop)
        with pytest.raises(KeyboardInterrupt):
            go_on(setup, out)
    return found[0]


def leaves(value: Any, path: Way = ()) -> Iterator[tuple[Way, Any]]:
    """Every entry that holds no others, and the way to it."""
    if isinstance(value, dict | list | tuple) and value:
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(item, (*path, key))
    else:
        yield path, value


def one_of_each(found: Iterator[tuple[Way, Any]]) -> list[tuple[Way, Any]]:
    """Of entries whose names differ in numbers and in a net's layer alone, the last: it stands for all of them."""
    kinds = {}
    for path, value in found:
        kinds[tuple(re.sub(r"\d+|^.*\.(?=\w+$)", "", str(key)) for key in path)] = path, value
    return list(kinds.values())


def replaced(value: Any, path: Way, leaf: Any) -> Any:
    """The state with this entry in the place of the one at ``path``."""
    if not path:
        return leaf
    key, *rest = path
    if isinstance(value, dict):
        return {**value, key: replaced(value[key], tuple(rest), leaf)}
    return type(value)(replaced(each, tuple(rest), leaf) if n == key else each for n, each in enumerate(value))


def _overlapping(leaf: Tensor) -> Tensor:
    return torch.zeros(leaf.numel() + 1, dtype=leaf.dtype).as_strided(leaf.shape, [1] * leaf.ndim)


WRONG: dict[str, Callable[[Any], Any]] = {
    "one element": lambda leaf: torch.zeros(1),
    "empty": lambda leaf: torch.zeros(0),
    "float64": lambda leaf: torch.zeros(leaf.shape, dtype=torch.float64),
    "int32": lambda leaf: torch.zeros(leaf.shape, dtype=torch.int32),
    "one axis more": lambda leaf: leaf[None],
    "sparse": lambda leaf: leaf.to_sparse(),
    "meta": lambda leaf: leaf.to("meta"),
    "expanded": lambda leaf: torch.zeros((), dtype=leaf.dtype).expand(leaf.shape),
    "overlapping": _overlapping,
    "quantised": lambda leaf: torch.quantize_per_tensor(leaf.float(), 0.1, 0, torch.quint8),
    "parameter": lambda leaf: nn.Parameter(leaf.float()),
    "not a number": lambda leaf: torch.full_like(leaf, torch.nan),
    "number": lambda leaf: 3.5,
    "whole number": lambda leaf: 3,
    "negative": lambda leaf: -3,
    "huge": lambda leaf: 10**30,
    "nan": lambda leaf: float("nan"),
    "infinite": lambda leaf: float("inf"),
    "true": lambda leaf: True,
    "none": lambda leaf: None,
    "text": lambda leaf: "x",
    "bytes": lambda leaf: b"x",
    "list": lambda leaf: [1],
    "dict": lambda leaf: {"x": torch.zeros(1)},
}


def wrong_values(leaf: Any) -> Iterator[tuple[str, Any]]:
    """What may stand in this leaf's place: those of ``WRONG`` that can be made of it."""
    for name, make in WRONG.items():
        try:
            yield name, make(leaf)
        except (AttributeError, RuntimeError, TypeError, NotImplementedError, LookupError):
            continue  # it needs a tensor, or one of floats, or of more axes


def may_stand_for(found: Any, own: Any) -> bool:
    """Whether another value of the same form: nothing can tell it from the one that was saved."""
    if not isinstance(own, Tensor):
        same = type(found) is type(own) and isinstance(own, bool | int | float | str)
        return same and (isinstance(own, str) or 0 <= found < 2**63)
    if type(found) is not Tensor or (found.shape, found.dtype) != (own.shape, own.dtype) or found.is_meta:
        return False
    return found.layout == torch.strided and found.is_contiguous()


def same(one: Any, other: Any) -> bool:
    """Whether two states are equal, bit for bit."""
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return isinstance(other, list | tuple) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Tensor):
        if not isinstance(other, Tensor) or one.layout != other.layout or one.shape != other.shape:
            return False
        return torch.equal(one.nan_to_num(-7), other.nan_to_num(-7))
    return type(one) is type(other) and bool(one == other)
