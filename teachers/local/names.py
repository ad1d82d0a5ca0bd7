"""Names in a state dict: what wrappers and counters left in them, and which are the network's.

Training wraps a network again and again (DataParallel, torch.compile, FSDP, a LightningModule, a
moving average), and each wrapper puts a word before the names of the weights. These words are
removed here. Nothing that could change an answer is dropped silently: weights that remain are named
in an error, and the user says which part to take.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dfme.data.class_names import listed
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
"""Words that only wrappers put into a name."""

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
NAMED = 5  # names in a message


@dataclass(frozen=True)
class NamedPart:
    """Weights of a state dict whose names all begin with ``prefix``, without it."""

    prefix: str
    state: State


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


def parts_of(state: State) -> Iterator[NamedPart]:
    """The whole state dict, and its parts by first words, the largest and least deep first."""
    waiting = [NamedPart("", state)]
    for _ in range(MAX_CANDIDATES):
        if not waiting:
            return
        part = waiting.pop(0)
        yield part
        if part.prefix.count(".") < MAX_DEPTH:
            smaller: dict[str, State] = {}
            for name, value in part.state.items():
                first, dot, rest = name.partition(".")
                if dot:
                    smaller.setdefault(f"{part.prefix}{first}.", {})[rest] = value
            largest_first = sorted(smaller.items(), key=lambda item: -len(item[1]))
            waiting += [NamedPart(prefix, weights) for prefix, weights in largest_first]


def network_part(state: State, fits: Callable[[State], bool]) -> tuple[State | None, str]:
    """The part of a state dict that is the network, and a line for people if others fit as well.

    ``fits`` is called with the whole and then with each part. None where no part fits. UserError
    where several fit and none is plainly the network, and where weights of unknown use remain.
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
    prefix = chosen([part.prefix for part in fitting])
    if prefix is None:
        several = ", ".join(part.prefix[:-1][:60] for part in fitting)
        raise UserError(
            say(
                "it holds the network {} times, under {}; say {teacher.entry} with one of them",
                len(fitting),
                several,
            )
        )
    others = tuple(part.prefix for part in fitting if part.prefix != prefix)
    unclear = [
        name
        for name in state
        if not name.startswith((prefix, *others)) and name.partition(".")[0] not in LOSSES
    ]
    entry = prefix[:-1]
    if unclear:
        raise UserError(
            say(
                "the network fits the names under {}, and beside them are {}, which may change "
                "its answers (a normalisation?); if they do not, say {teacher.entry} {}",
                entry,
                some(unclear),
                entry,
            )
        )
    weights = next(part.state for part in fitting if part.prefix == prefix)
    return weights, which_was_taken(entry, ", ".join(o[:-1] for o in others)) if others else ""


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
    return listed(names, NAMED)
