"""What the figures are evidence for, in few rows: the controls of each figure, and those without
one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dfme.audits.audit.sheet_parts import Control


@dataclass(frozen=True)
class EvidenceRow:
    """A figure, the ``controls`` that it is evidence for, and the directory that it comes from."""

    controls: str
    figure: str
    dir: str | None


def evidence(controls: Sequence[Control]) -> list[EvidenceRow]:
    """A row for each figure, in the order of the controls."""
    rows = dict[tuple[str, str | None], list[Control]]()
    for control in controls:
        if control.figure is not None:
            rows.setdefault((control.figure, control.dir), []).append(control)
    return [EvidenceRow(_names(same), *figure) for figure, same in rows.items()]


def unmeasured(controls: Sequence[Control]) -> str:
    """The controls without a figure; empty where all have one."""
    return _names([control for control in controls if control.figure is None])


def _names(controls: Sequence[Control]) -> str:
    """Controls with their sources, each source once."""
    sources = dict[str, list[str]]()
    for control in controls:
        sources.setdefault(control.source, []).append(control.control)
    return "; ".join(f"{source} {', '.join(names)}" for source, names in sources.items())
