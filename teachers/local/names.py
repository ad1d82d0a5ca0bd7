"""Names in a state dict: what wrappers and counters left in them, and which are the network's.

Training wraps a network again and again (DataParallel, torch.compile, FSDP, a LightningModule, a
moving average), and each wrapper puts a word before the names of the weights. What all weights
have, and what only a wrapper writes, is taken off here. Nothing that could change an answer is
dropped without a word: what is left over is named, and the user says which part to take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dfme.errors import UserError, flag, say

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
"""Words that nobody but a wrapper puts into a name."""

PARALLEL = "module"
"""The word of DataParallel, DistributedDataParallel, DeepSpeed and AveragedModel."""

COUNTERS = frozenset(("total_ops", "total_params", "n_averaged", "initted", "step"))
"""Last words of single numbers that thop.profile and moving averages count in."""

LOSSES = frozenset(("criterion", "loss", "loss_fn", "loss_func", "loss_function"))
"""First words of the weights of a loss, which takes no part in an answer."""

AVERAGES = ("ema", "swa", "averag", "shadow", "polyak")
"""Parts of the names under which training keeps averages of a network beside it."""

MAX_CANDIDATES = 64  # parts of a file that are held against the network
MAX_DEPTH = 8  # words before a name
SHOWN = 5  # names in a message


@dataclass(frozen=True)
class NamedPart:
    """Weights of a state dict whose names all begin with ``prefix``, without it."""

    prefix: str
    state: State


def plain_state(state: Mapping[str, Tensor]) -> State:
    """The weights under the names that they have without wrappers, and without counters.

    The word ``module`` is a wrapper's where nothing stands beside it, as in ``features.module.0``.
    """
    weights = {name: value for name, value in state.items() if not _is_counter(name, value)}
    words = {name: [word for word in name.split(".") if word not in WRAPPERS] for name in weights}
    tree: dict[str, Any] = {}
    for path in words.values():
        node = tree
        for word in path:
            node = node.setdefault(word, {})
    plain = {".".join(_unwrapped(path, tree)): weights[name] for name, path in words.items()}
    return plain if len(plain) == len(weights) else weights


def _is_counter(name: str, value: Tensor) -> bool:
    return name.rpartition(".")[2] in COUNTERS and value.numel() == 1


def _unwrapped(path: list[str], tree: dict[str, Any]) -> Iterator[str]:
    """The words of a name, without ``module`` where it is the only child and has children."""
    node = tree
    for word in path:
        only_child = word == PARALLEL and len(node) == 1 and bool(node[word])
        node = node[word]
        if not only_child:
            yield word


def parts_of(state: State) -> Iterator[NamedPart]:
    """The whole state dict, and its parts by first words, the largest and least deep first."""
    waiting = [NamedPart("", state)]
    for _ in range(MAX_CANDIDATES):
        if not waiting:
            return
        part = waiting.pop(0)
        yield part
        if part.prefix.count(".") < MAX_DEPTH:
            inner = _by_first_word(part.state).items()
            smaller = [NamedPart(f"{part.prefix}{word}.", weights) for word, weights in inner]
            waiting += sorted(smaller, key=lambda item: -len(item.state))


def _by_first_word(state: State) -> dict[str, State]:
    """The weights under each first word, without it."""
    groups: dict[str, State] = {}
    for name, value in state.items():
        first, dot, rest = name.partition(".")
        if dot:
            groups.setdefault(first, {})[rest] = value
    return groups


def network_part(state: State, fits: Callable[[State], bool]) -> tuple[State | None, str]:
    """The part of a state dict that is the network, and a line for people if others were left.

    ``fits`` is asked of the whole and then of each part. None where no part fits. UserError where
    several fit, none of which is plainly the network, and where weights of unknown use are left.
    """
    fitting = list[NamedPart]()
    for part in parts_of(state):
        inside = any(part.prefix.startswith(outer.prefix) for outer in fitting)
        if not inside and fits(part.state):
            fitting.append(part)
            if not part.prefix:
                return state, ""
    if not fitting:
        return None, ""
    taken = chosen([part.prefix for part in fitting])
    if taken is None:
        several = ", ".join(part.prefix[:-1][:60] for part in fitting)
        raise UserError(
            say(
                "it holds the network {} times, under {}; say {teacher.entry} with one of them",
                len(fitting),
                several,
            )
        )
    others = tuple(part.prefix for part in fitting if part.prefix != taken)
    left = [name for name in state if not name.startswith((taken, *others)) and not _is_loss(name)]
    if left:
        raise UserError(
            say(
                "the network fits the names under {}, and beside them are {}, which may change "
                "its answers (a normalisation?); if they do not, say {teacher.entry} {}",
                taken[:-1],
                some(left),
                taken[:-1],
            )
        )
    weights = next(part.state for part in fitting if part.prefix == taken)
    said = ", ".join(prefix[:-1] for prefix in others)
    return weights, which_was_taken(taken[:-1], said) if said else ""


def _is_loss(name: str) -> bool:
    return name.partition(".")[0] in LOSSES


def chosen(names: list[str]) -> str | None:
    """The only name, or the only one that is no average of another; None for any other list."""
    plain = [name for name in names if not any(word in name.lower() for word in AVERAGES)]
    if len(plain) == 1:
        return plain[0]
    return names[0] if len(names) == 1 else None


def which_was_taken(taken: str, others: str) -> str:
    """The line that says which of several sets of weights was taken."""
    return f"takes the weights under {taken}, not those under {others} ({flag('teacher.entry')})"


def select(state: State, entry: str) -> State | None:
    """The weights whose names begin with ``entry``, without it; None where there are none."""
    prefix = f"{entry}."
    inside = {
        name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)
    }
    return inside or None


def first_words(state: State) -> list[str]:
    """What its names begin with, each once."""
    return list(dict.fromkeys(name.partition(".")[0] for name in state))


def some(names: list[str]) -> str:
    """The first of a list of names, and how many more there are."""
    more = f" and {len(names) - SHOWN:,} more" if names[SHOWN:] else ""
    return ", ".join(name[:80] for name in names[:SHOWN]) + more
