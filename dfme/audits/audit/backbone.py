"""Whether the audited model is a public backbone with a last layer of its own, as attackers who
have the backbone find out. No torch.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from dfme.audits.audit.findings import Findings
from dfme.audits.audit.price_parts import PublicBackbone

ALMOST_ALL = 0.99
"""The agreement from which on a copy counts as worked out (heuristic)."""

SOLVE = "solve"


def public_backbone(findings: Findings, frozen: float) -> PublicBackbone | None:
    """What the best solve of a last layer from the teacher's own answers says; None without one.

    ``frozen``: the residual up to which the backbone is the public one. Where several attackers
    solved it, the one with the least residual counts.
    """
    solves = [*_solves(findings)]
    if not solves:
        return None
    residual, weights, name = min(solves)
    is_head = residual < frozen
    text = (
        f"Linear equations do not give your model's last layer on what {weights} sees: they leave "
        f"{residual:.0%} of its answers unexplained. Either it is another backbone (see run.py "
        "check --backbone), its blocks were trained as well, or these answers are too few or too "
        "coarse."
    )
    queries = None
    if is_head:
        cell = next(cell for cell in findings.cells() if cell.name == name)
        reached = (point.queries for point in cell.curve if point.agreement >= ALMOST_ALL)
        queries = next(reached, None)
        after = "" if queries is None else f" after {queries:,} queries"
        text = (
            f"Your model is {weights} with a last layer of its own. Whoever has these weights "
            f"works this layer out by linear equations{after}, from full answers to images that "
            "need not be of your task."
        )
    return PublicBackbone(
        weights=weights, residual=residual, is_head=is_head, queries=queries, cell=name, text=text
    )


def _solves(findings: Findings) -> Iterator[tuple[float, str, str]]:
    """Residual, weights and cell of every solve from the teacher's own answers."""
    for line in findings.price:
        if line.weights is None or line.mode != findings.mode:
            continue
        for name in line.cells:
            stages: list[Mapping[str, Any]] = (
                findings.summaries.get(name, {}).get("student_stages") or []
            )
            for stage in stages:
                if stage["name"] == SOLVE and stage["residual"] is not None:
                    yield float(stage["residual"]), line.weights, name
