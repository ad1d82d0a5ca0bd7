"""What the figures are evidence for, in few rows: the controls of each figure, and those without
one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dfme.audits.audit.result import AuditResult
from dfme.audits.audit.sheet_parts import Control


@dataclass(frozen=True)
class EvidenceRow:
    """A figure, the ``controls`` that it is evidence for, and the directory that it comes from."""

    controls: str
    figure: str
    dir: str | None


def evidence(audit: AuditResult) -> list[EvidenceRow]:
    """A row for each figure, in the order of the controls; what the page says in full elsewhere is
    named by its place.
    """
    places = _said(audit)
    rows = dict[tuple[str, str | None], list[Control]]()
    for control in audit.controls:
        if control.figure is not None:
            rows.setdefault((control.figure, control.dir), []).append(control)
    return [
        EvidenceRow(_names(same), places.get(figure, figure), place)
        for (figure, place), same in rows.items()
    ]


def _said(audit: AuditResult) -> dict[str, str]:
    """Figures that stand elsewhere on the page, and where."""
    sentences = audit.headline.sentences
    places = {
        " ".join(sentences[-1:]): "The price from labels alone, at the head of this page.",
        " ".join(sentences[:-1] or sentences): "The price of a copy, at the head of this page.",
    }
    if audit.quota is not None:
        places[" ".join(audit.quota.text[:2])] = "The quota, under A limit on queries."
    return places


def unmeasured(controls: Sequence[Control]) -> str:
    """The controls without a figure; empty where all have one."""
    return _names([control for control in controls if control.figure is None])


def _names(controls: Sequence[Control]) -> str:
    """Controls with their sources, each source once."""
    sources = dict[str, list[str]]()
    for control in controls:
        sources.setdefault(control.source, []).append(control.control)
    return "; ".join(f"{source} {', '.join(names)}" for source, names in sources.items())
