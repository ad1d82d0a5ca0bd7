"""What a defence states of its answers, also a class of the user's own."""

import dataclasses
from typing import Any, Literal

TOPS = ("yes", "no", "p_top>=1/2")
NEEDS = ("key", "surrogate", "network", "data")
MAX_L1 = 2.0  # between two rows of probabilities


@dataclasses.dataclass(frozen=True)
class Facts:
    """Statements of a defence about its answers y to probabilities p, and what it works with.

    ``keeps_top``: whether argmax y = argmax p: yes, no, or where the top probability is at least
    1/2. ``l1``: the most that sum |y - p| can be; None: no bound below 2. ``stateful``: an answer
    may depend on what was asked before. ``random``: the same image may get another. ``needs``,
    besides options and answers.
    """

    keeps_top: Literal["yes", "no", "p_top>=1/2"] = "yes"
    l1: float | None = None
    stateful: bool = False
    random: bool = False
    needs: tuple[Literal["key", "surrogate", "network", "data"], ...] = ()


def facts_problem(facts: object) -> str:
    """What is wrong with the statements of a class of the user's own; empty where nothing is."""
    if facts is None:
        return ""
    if not isinstance(facts, Facts):
        return f"got {type(facts).__name__} {facts!r:.60}"
    # nothing holds a class of the user's own to the types
    l1: Any = facts.l1
    flags: tuple[Any, Any] = facts.stateful, facts.random
    needs: Any = facts.needs
    if facts.keeps_top not in TOPS:
        return f"its keeps_top is none of {', '.join(TOPS)}: {facts.keeps_top!r:.60}"
    # NaN is within no range
    if l1 is not None and not (isinstance(l1, int | float) and 0 <= l1 <= MAX_L1):
        return f"its l1 is no distance from 0 to {MAX_L1:g}: {l1!r:.60}"
    if not all(isinstance(flag, bool) for flag in flags):
        return f"its stateful and random are no bools: {flags!r:.60}"
    if not isinstance(needs, tuple) or any(need not in NEEDS for need in needs):
        return f"its needs are no tuple of {', '.join(NEEDS)}: {needs!r:.60}"
    return ""
