"""What every defence states of its answers, and the options of a custom class. No torch."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from dfme.config.imports import blaming, find_target, own_model
from dfme.config.values import leaves
from dfme.errors import UserError

KeepsTop = Literal["yes", "no", "p_top>=1/2"]
Need = Literal["key", "surrogate", "network", "data"]
MAX_L1 = 2.0  # between two rows of probabilities


@dataclass(frozen=True)
class Facts:
    """Statements of a defence about its answers y to probabilities p, and what it works with.

    ``keeps_top``: whether argmax y = argmax p: yes, no, or where the top probability is at least
    1/2. ``l1``: the most that sum |y - p| can be; None: no bound below 2. ``stateful``: an answer
    may depend on what was asked before. ``random``: the same image may get another. ``needs``,
    besides options and answers.
    """

    keeps_top: KeepsTop = "yes"
    l1: float | None = None
    stateful: bool = False
    random: bool = False
    needs: tuple[Need, ...] = ()


class DefenceOptions(ABC):
    """Common options of defences; ``facts`` may depend on them and on the number of classes."""

    name: ClassVar[str]
    kind: ClassVar[Any] = None
    has_map: ClassVar[bool] = True

    @abstractmethod
    def facts(self, classes: int) -> Facts: ...

    @property
    def margin_kept(self) -> float | None:
        """Guaranteed margin of the top score over all others, if any; rounding may undo it."""
        return getattr(self, "margin", None) if getattr(self, "keep_top", True) else None

    def __str__(self) -> str:
        """The defence with all its options, as it is typed; equal for what is equal."""
        return ":".join(
            [self.name, *(f"{key}={_text(value)}" for key, value in leaves(self).items())]
        )


class OwnDefence(DefenceOptions):
    """Those of a custom class, ``kind``; ``has_map``: an attacker may know it."""

    def facts(self, classes: int) -> Facts:
        """What the class states of itself; by default nothing is promised."""
        return getattr(self.kind, "facts", Facts("no", stateful=True, random=True))

    def make(self) -> Any:
        """A new object. UserError for whatever it raises."""
        with blaming(f"defence {self.name}", UserError):
            return self.kind(**leaves(self))


def own_defence(name: str) -> type[OwnDefence]:
    """The options of ``module:Class``. UserError unless it is a class with ``answer``."""
    kind: Any = find_target(name, "defence")
    if not isinstance(kind, type) or not hasattr(kind, "answer"):
        expected = (
            "expected a class with a method answer(p_BK, images_BCHW), as docs/extending.md has one"
        )
        raise UserError(f"defence {name}: {expected}; got {kind!r:.80}")
    if problem := _problem_of_facts(getattr(kind, "facts", None)):
        expected = "expected facts to be a dfme.config.defences.Facts, such as Facts('yes', l1=0.4)"
        raise UserError(f"defence {name}: {expected}; {problem}")
    body = (("name", name), ("kind", kind), ("has_map", hasattr(kind, "map")))
    return own_model(OwnDefence, kind, body)  # type: ignore[no-any-return]


def _problem_of_facts(facts: object) -> str:
    """What is wrong with the statements of a custom class; empty where nothing is."""
    if facts is None:
        return ""
    if not isinstance(facts, Facts):
        return f"got {type(facts).__name__} {facts!r:.60}"
    # nothing holds a custom class to the types
    l1: Any = facts.l1
    needs: Any = facts.needs
    flags: tuple[Any, Any] = facts.stateful, facts.random
    if facts.keeps_top not in get_args(KeepsTop):
        return f"its keeps_top is none of {', '.join(get_args(KeepsTop))}: {facts.keeps_top!r:.60}"
    # NaN is within no range
    if l1 is not None and not (isinstance(l1, int | float) and 0 <= l1 <= MAX_L1):
        return f"its l1 is no distance from 0 to {MAX_L1:g}: {l1!r:.60}"
    if not all(isinstance(flag, bool) for flag in flags):
        return f"its stateful and random are no bools: {flags!r:.60}"
    if not isinstance(needs, tuple) or any(need not in get_args(Need) for need in needs):
        return f"its needs are no tuple of {', '.join(get_args(Need))}: {needs!r:.60}"
    return ""


def _text(value: object) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else f"{value}"
