"""Checkpoints with a right checksum and a wrong content: one line, no traceback, and no process
dies.
"""

import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from damage import only_ours, saved, sealed
from known_teachers import Counting
from small_runs import Metered, clone, ctrl_c
from tables import all_hold, exhaustive_rows
from torch import Tensor

from dfme.errors import RunError
from dfme.run.checkpoint import load_checkpoint, require_paid
from dfme.spec import ImageSpec, LabelMode

State = dict[str, Any]
Way = tuple[Any, ...]


class Labels(Metered):
    def __call__(self, images: Tensor) -> Tensor:
        return super().__call__(images).argmax(dim=1)


def method(name: str, **options: Any) -> State:
    return {"method": name, "method_options": {"batch_size": 20, "latent_size": 8, **options}}


SCORED = {"evaluation": {"dataset": "digits", "limit": 10}}
ON_DISK = {"student": {"replay_steps": 1, "replay_batch": 8, "replay_store": "disk"}}
SETUPS: dict[str, tuple[Any, State]] = {
    "static": (Metered, {}),
    "dfme": (Metered, {**method("dfme"), **SCORED, "student": {}}),
    "adam": (Metered, {"student": {"optimizer": "adam", "replay_steps": 0}}),
    "maze": (Metered, method("maze", partial_data="procedural", seed_images=30)),
    "disguide": (Metered, method("disguide")),
    "disk": (Metered, ON_DISK),
    "synthetic": (Metered, {**method("dfme"), "estimator": {"kind": "synthetic", "every": 2}}),
    "auto": (Metered, {**method("dfme"), "estimator": {"kind": "auto"}, "budget": 1_200}),
    "dfms": (Metered, method("dfms", gan_steps=2, proxy="digits")),
    "knockoff": (
        Metered,
        {"method": "knockoff", "method_options": {"batch_size": 20, "pool": "digits"}},
    ),
    "labels": (Labels, {"label_mode": "label"}),
    "defended": (Counting, {**SCORED, "until_agreement": 0.2}),
}

WRONG: dict[str, Callable[[Any], Any]] = {
    "one element": lambda leaf: torch.zeros(1),
    "empty": lambda leaf: leaf[:0],
    "float64": lambda leaf: torch.zeros(leaf.shape, dtype=torch.float64),
    "sparse": lambda leaf: leaf.to_sparse(),
    "expanded": lambda leaf: torch.zeros((), dtype=leaf.dtype).expand(leaf.shape),
    "not a number": lambda leaf: torch.full_like(leaf, torch.nan),
    "negative": lambda leaf: -3,
    "huge": lambda leaf: 10**30,
    "nan": lambda leaf: float("nan"),
    "none": lambda leaf: None,
    "text": lambda leaf: "x",
    "dict": lambda leaf: {"x": torch.zeros(1)},
}


def begin(setup: str, out: Path) -> State:
    """Begin such a run, stop it with a checkpoint and answers beyond it in the journal."""
    teacher, changes = SETUPS[setup]
    stop = {"dfme": 5, "auto": 15}.get(setup, 4)  # of auto the first 12 are the check's
    assert not clone(out, teacher({stop: ctrl_c}), **changes).finished
    return load_checkpoint(out / "checkpoint.pt")


def leaves(value: Any, path: Way = ()) -> Iterator[tuple[Way, Any]]:
    """Every entry that holds no others, and the way to it."""
    if isinstance(value, dict | list | tuple) and value:
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(item, (*path, key))
    else:
        yield path, value


def replaced(value: Any, path: Way, leaf: Any) -> Any:
    """The state with this entry in the place of the one at ``path``."""
    if not path:
        return leaf
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    changed = {
        key: replaced(each, path[1:], leaf) if key == path[0] else each for key, each in pairs
    }
    return changed if isinstance(value, dict) else [*changed.values()]


def crafted(state: State) -> Iterator[tuple[str, Any]]:
    """States with one wrong entry of each kind; names that differ in numbers and layers are of one
    kind.
    """
    kinds = {
        tuple(re.sub(r"\d+|^.*\.(?=\w+$)", "", str(key)) for key in path): path
        for path, _ in leaves(state)
    }
    for path, leaf in leaves(state):
        for name, make in WRONG.items() if path in kinds.values() else ():
            try:
                yield f"{path} {name}", replaced(state, path, make(leaf))
            except (AttributeError, RuntimeError, TypeError, NotImplementedError, LookupError):
                continue  # it needs a tensor, or one of floats
    for path in [(key,) for key in state] + [("oracle", key) for key in state["oracle"]]:
        yield f"{path} empty", replaced(state, path, {})
    yield "a list", [state]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("setup", "cases"),
    [("dfme", 12), ("labels", 12), *exhaustive_rows((setup, 30) for setup in SETUPS)],
)
def test_no_crafted_checkpoint_ends_in_a_traceback(setup: str, cases: int, tmp_path: Path) -> None:
    """The run is refused in one line before anything is asked, or the entry was one that may be
    so.
    """
    out = tmp_path / "run"
    found = list(crafted(begin(setup, out)))
    teacher, changes = SETUPS[setup]

    def holds(name: str, state: Any) -> None:
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(out, copy)
        (copy / "checkpoint.pt").write_bytes(sealed(saved(state, zipped=True)))
        asked = teacher()
        error = only_ours(lambda: clone(copy, asked, resume=True, **changes))
        if error is not None:
            assert (error.exit_code, asked.calls) == (2, 0)
            assert "\n" not in str(error)

    all_hold(holds, random.Random(0).sample(found, min(cases, len(found))))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("trainer", "replay", "items", "answers"), 10, "expected labels from 0 to 9"),
        (("examination", "seen"), -1, "seen: expected int"),
        (("trainer", "optimizer"), {}, "expected entries state, got"),
        (("streams", "global"), torch.zeros(1), "expected finite torch.uint8"),
    ],
)
def test_a_wrong_entry_is_named(path: Way, value: Any, message: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    state = begin("labels", out)
    if path[-1] == "answers":
        value = torch.full_like(state["trainer"]["replay"]["items"]["answers"], value)
    (out / "checkpoint.pt").write_bytes(sealed(saved(replaced(state, path, value), zipped=True)))
    with pytest.raises(RunError, match=message):
        clone(out, Labels(), resume=True, label_mode="label")


def test_kept_answers_are_those_that_the_teacher_can_have_given() -> None:
    spec, images, nan = ImageSpec((1, 2, 2)), torch.zeros(3, 1, 2, 2), torch.nan
    labels, scores = torch.tensor([0, 1, 4]), torch.full((3, 5), 0.2)
    hidden = torch.tensor([[0.2, nan, nan, nan, nan]] * 3)
    for mode, answers in [
        ("label", labels),
        ("probabilities:4", scores),
        ("logits", scores),
        ("top_k:1", hidden),
    ]:
        require_paid([(images, answers)] * 2, spec, 5, LabelMode.parse(mode))
    others = [
        (images, each)
        for each in (labels.int(), labels + 1, labels - 1, scores.double(), scores[:, :4])
    ]
    others += [(images[:0], scores[:0]), (images.double(), scores), (images[:, :, :1], scores)]
    others += [(images + nan, scores), (images, scores + torch.inf), (images, hidden)]

    def is_refused(mode: str, images: Tensor, answers: Tensor) -> None:
        with pytest.raises(ValueError, match=r"^expected "):
            require_paid([(images, answers)], spec, 5, LabelMode.parse(mode))

    all_hold(
        is_refused,
        ((mode, *pair) for mode in ("label", "probabilities", "logits") for pair in others),
    )
