"""Backbones that a teacher may be made of, as the command line names them. No torch."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dfme.errors import Problem, UserError
from dfme.nets.public import check_weights

SHARE = 1.3
"""Images asked for each feature of the widest candidate: 1.05 to solve, the others held back."""


@dataclass(frozen=True)
class BackboneSource:
    """Weights that anybody can download, as ``student.weights`` names them, and their
    architecture.
    """

    weights: str
    arch: str = "auto"


def candidates_of(texts: Sequence[str]) -> list[BackboneSource]:
    """The candidates that ``FILE``, ``FOLDER``, ``wheel`` or ``ARCH=FILE`` name."""
    return [_candidate(text) for text in texts]


def _candidate(text: str) -> BackboneSource:
    """A file may have ``=`` in its name; an architecture has no folder in its own."""
    arch, equals, weights = text.partition("=")
    if not equals or "/" in arch or os.path.exists(text):
        return BackboneSource(text)
    return BackboneSource(weights, arch)


def candidate_problems(key: str, candidates: Sequence[BackboneSource]) -> Iterator[Problem]:
    """Candidates that cannot be read, as far as can be seen without torch."""
    for candidate in candidates:
        try:
            check_weights(candidate.weights, candidate.arch)
        except UserError as error:
            yield Problem(key, error.message)
