"""What rules each other out among a choice of images and what they are chosen from. No torch."""

from collections.abc import Iterator

from dfme.config.sections import QueriesConfig
from dfme.errors import Problem, say
from dfme.queries.programs import PROCEDURAL


def choice_problems(queries: QueriesConfig, pool: str, in_rounds: bool) -> Iterator[Problem]:
    """A choice among all of a ``pool`` that has no end, or by students that learn in no rounds."""
    drawn = pool == PROCEDURAL
    if queries.pool > 1 and drawn and queries.choose == "kcenter":
        needed = say("expected {method.pool} as well, pictures that have an end; or give margin")
        yield Problem("queries.choose", needed, got="kcenter")
    if queries.pool > 1 and not drawn and not in_rounds:
        needed = say("expected {student.rounds} as well: as each begins, all of {method.pool} is")
        yield Problem("queries.pool", needed + " looked at", got=str(queries.pool))
