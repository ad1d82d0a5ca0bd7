"""What rules each other out among a choice of images and what they are chosen from. No torch."""

from collections.abc import Callable, Iterator

from dfme.config.sections import QueriesConfig
from dfme.errors import Problem, Ref, say
from dfme.queries.programs import PROCEDURAL


def choice_problems(queries: QueriesConfig, pool: str, in_rounds: bool) -> Iterator[Problem]:
    """A choice among ``all`` where there is no ``pool`` with an end, or by students without rounds;
    centres among a few candidates.
    """
    if queries.pool != "all":
        if queries.candidates > 1 and queries.choose == "kcenter":
            needed = say("expected {queries.pool:all} with it, and {method.pool}; or give margin")
            yield Problem("queries.choose", needed, got="kcenter")
    elif pool == PROCEDURAL:
        needed = say("expected {method.pool} as well, of pictures; programs draw without an end")
        yield Problem("queries.pool", needed, got="all")
    elif not in_rounds:
        needed = say("expected {student.rounds} as well: all are looked at as each of them begins")
        yield Problem("queries.pool", needed, got="all")


def idle_choice(
    queries: QueriesConfig, pool: str, gives: Callable[[str], bool]
) -> Iterator[Problem]:
    """Options of a choice that the user gave and that change nothing: of candidates, where pictures
    of a pool are asked as they come, and of classes, where centres are chosen.
    """
    if queries.pool == "all":
        if queries.choose == "kcenter" and gives("queries.balance"):
            effective = "takes effect only with {queries.choose:entropy,margin,random}"
            yield Problem("queries.balance", say(effective))
        return
    if pool == PROCEDURAL:
        return
    if queries.pool != 1 and gives("queries.pool"):
        with_pool = say("expected all, or 1, with {}", Ref("method.pool", pool))
        yield Problem("queries.pool", with_pool, got=str(queries.pool))
    for key in ("queries.choose", "queries.balance"):
        if gives(key):
            needed = "takes effect on {} only with {queries.pool:all}"
            yield Problem(key, say(needed, Ref("method.pool", pool)))
