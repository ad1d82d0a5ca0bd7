"""Names in a state dict: which are the network's.

Nothing that could change an answer is dropped silently: weights that remain are named in an error,
and the user says which part to take.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dfme.errors import UserError, say
from dfme.nets.state_files import State, chosen, some, which_was_taken

LOSSES = frozenset(("criterion", "loss", "loss_fn", "loss_func", "loss_function"))
"""First words of the weights of a loss, which takes no part in an answer."""

MAX_CANDIDATES = 64  # parts of a file that are held against the network
MAX_DEPTH = 8  # words before a name


@dataclass(frozen=True)
class NamedPart:
    """Weights of a state dict whose names all begin with ``prefix``, without it."""

    prefix: str
    state: State


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
