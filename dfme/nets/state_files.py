"""The state dict in a file that a stranger may have written: unwrapped, and under plain names.

Both sides read weights: a teacher's, and those from which a student starts. Training wraps a
network again and again (DataParallel, torch.compile, FSDP, a LightningModule, a moving average),
and each wrapper puts a word before the names of the weights. These words are removed here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from dfme.config.messages import safe_name
from dfme.errors import Text, UserError, flag, say
from dfme.nets.safetensors_file import is_safetensors, read_safetensors

State = dict[str, Tensor]

WRAPPERS = frozenset(
    (
        "_orig_mod",  # torch.compile
        "_fsdp_wrapped_module",  # FullyShardedDataParallel
        "_fpw_module",  # the same, before PyTorch had it
        "_checkpoint_wrapped_module",  # activation checkpointing
        "_forward_module",  # Lightning Fabric
    )
)
"""Words that only wrappers put into a name."""

PARALLEL = "module"
"""The word of DataParallel, DistributedDataParallel, DeepSpeed and AveragedModel."""

COUNTERS = frozenset(("total_ops", "total_params", "n_averaged", "initted", "step"))
"""Last words of single numbers that thop.profile and moving averages count in."""

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

AVERAGES = ("ema", "swa", "averag", "shadow", "polyak")
"""Parts of the names under which training keeps averages of a network beside it."""

NAMED = 5  # names in a message
MAX_NESTED = 5  # keys that lead to a state dict
CHOICE = say("say {teacher.entry} with one")


@dataclass(frozen=True)
class StateFile:
    """A file's state dict under plain names, its metadata, and a line if it holds several."""

    state: State
    metadata: Mapping[str, str]
    note: str = ""


def read_state(path: Path, entry: str = "", choice: Text = CHOICE) -> StateFile:
    """The state dict in a file, unwrapped; its metadata are those of safetensors.

    Wrappings such as {"state_dict": ...} are opened. ``entry`` names one of several state dicts:
    its key, or what its names begin with; ``choice`` says to people how to choose one. UserError
    for anything that is not weights.
    """
    head = _head(path)
    note = ""
    metadata: Mapping[str, str] = {}
    if is_safetensors(head):
        state, metadata = read_safetensors(path)
    elif head[:2] == b"PK" or head[:1] == b"\x80":
        value, entry = _at(_read_pickle(path), entry)
        state, note = _unwrap(value, path, choice)
    else:
        raise UserError(
            f"{path}: {_looks_like(head, path)}; expected .safetensors or weights in .pt/.pth"
        )
    if not state:
        raise UserError(f"{path}: holds no tensors; expected the weights of a network")
    plain = plain_state(state)
    if not entry:
        return StateFile(plain, metadata, note)
    selected = part_under(entry, plain) or part_under(entry, state)
    if not selected:
        raise UserError(
            say(
                "{}: {teacher.entry}: expected a key of a state dict in it, or the first word of "
                "its names, got {}; its names begin with {}",
                path,
                entry[:80],
                some(first_words(plain)),
            )
        )
    return StateFile(plain_state(selected), metadata)


def plain_state(state: Mapping[str, Tensor]) -> State:
    """The weights without counters, under the names that they have without wrappers.

    The word ``module`` is a wrapper's where it has no sibling, as in ``features.module.0``.
    """
    weights = {
        name: value
        for name, value in state.items()
        if name.rpartition(".")[2] not in COUNTERS or value.numel() != 1
    }
    words = {name: [word for word in name.split(".") if word not in WRAPPERS] for name in weights}
    tree: dict[str, Any] = {}
    for path in words.values():
        node = tree
        for word in path:
            node = node.setdefault(word, {})
    plain = {".".join(_unwrapped(path, tree)): weights[name] for name, path in words.items()}
    return plain if len(plain) == len(weights) else weights


def _unwrapped(path: list[str], tree: dict[str, Any]) -> Iterator[str]:
    """The words of a name, without ``module`` where it is the only child and has children."""
    node = tree
    for word in path:
        only_child = word == PARALLEL and len(node) == 1 and bool(node[word])
        node = node[word]
        if not only_child:
            yield word


def chosen(names: list[str]) -> str | None:
    """The only name, or the only one that is no average; None for any other list."""
    plain = [name for name in names if not any(word in name.lower() for word in AVERAGES)]
    if len(plain) == 1:
        return plain[0]
    return names[0] if len(names) == 1 else None


def which_was_taken(entry: str, others: str) -> str:
    """The line that says which of several sets of weights was taken."""
    return f"takes the weights under {entry}, not those under {others} ({flag('teacher.entry')})"


def part_under(entry: str, state: State) -> State:
    """The weights whose names begin with ``entry``, without it; empty where there are none."""
    prefix = f"{entry}."
    return {
        name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)
    }


def first_words(state: State) -> list[str]:
    """What its names begin with, each once."""
    return list(dict.fromkeys(name.partition(".")[0] for name in state))


def some(names: list[str]) -> str:
    """The first of a list of names, and how many more there are."""
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return ", ".join(map(safe_name, names[:NAMED])) + more


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
        if path.suffix == ".pt2":
            program = f"{flag('teacher', 'pt2')} {flag('teacher.program')}"
            raise UserError(
                f"{path}: is a program of torch.export, for which say {program}"
            ) from error
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


def _unwrap(value: object, path: Path, choice: Text, depth: int = 0) -> tuple[State, str]:
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
                "{}: holds {} state dicts, under {}; {}",
                path,
                len(nested),
                some(list(nested)),
                choice,
            )
        )
    state, note = _unwrap(nested[key], path, choice, depth + 1)
    others = [name for name in nested if name != key]
    return state, which_was_taken(key, some(others)) if others else note


def _holds_weights(value: object, depth: int) -> bool:
    """True for a dict of tensors, and for one that wraps such a dict."""
    if not isinstance(value, Mapping) or depth > MAX_NESTED:
        return False
    if any(isinstance(entry, Tensor) for entry in value.values()):
        return True
    return any(_holds_weights(value.get(name), depth + 1) for name in WRAPPINGS)
