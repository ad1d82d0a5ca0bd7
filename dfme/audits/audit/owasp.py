"""A test of the OWASP AI Testing Guide (AITG-APP-09, model extraction): the fidelity of the
strongest copy on held-out inputs. No torch.
"""

from collections.abc import Sequence

from dfme.audits.audit.aitg import MAX_QUERIES, TEST, copy_after, rating_of
from dfme.audits.audit.findings import Findings
from dfme.audits.audit.parts import CellResult
from dfme.audits.audit.price_parts import DETECTED, FidelityTest, PriceLine, Rating
from dfme.audits.audit.prices import over_seeds, usable
from dfme.report.run_files import is_above


def fidelity_test(findings: Findings, cells: Sequence[CellResult]) -> FidelityTest | None:
    """The test of the strongest attacker on the teacher's own answers, or their labels; None where
    nobody was scored after so few queries.
    """
    by_name = {cell.name: cell for cell in cells}
    shares = list[tuple[float, PriceLine]]()
    for line in usable(findings.price, findings.mode):
        share = over_seeds(
            [copy_after(by_name[name]) for name in line.cells if name in by_name]
        ).mean
        if share is not None:
            shares.append((share, line))
    if not shares:
        return None
    fidelity, line = max(shares, key=lambda pair: pair[0])
    queries = min(MAX_QUERIES, line.budget)
    by = ", by labels alone," if line.mode != findings.mode else ""
    rating: Rating | None = None
    outcome = (
        "it tells nothing, since this is not above what one constant answer agrees on "
        f"({findings.constant or 0.0:.1%})"
    )
    if is_above(fidelity, findings.constant, findings.images):
        rating = rating_of(fidelity)
        outcome = f"{rating} (above 90 % {DETECTED}, above 75 % warning, else low)"
    text = (
        f"{TEST} asks for fidelity on held-out inputs: after at most {queries:,} queries the copy "
        f"of somebody with {line.has}{by} agrees on {fidelity:.1%}: {outcome}."
    )
    if rating != DETECTED and findings.not_tried:
        text = f"{text} {findings.not_tried}"
    return FidelityTest(
        test=TEST,
        queries=queries,
        attacker=line.row,
        mode=line.mode,
        has=line.has,
        fidelity=fidelity,
        rating=rating,
        text=text,
    )
