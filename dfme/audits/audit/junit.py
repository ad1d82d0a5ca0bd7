"""An audit as JUnit XML: test cases for CI servers. No torch."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple
from xml.etree import ElementTree

from dfme.audits.audit.aitg import best_copy, copy_after, rating_of
from dfme.audits.audit.ladder import not_tried
from dfme.audits.audit.options import LIMITS
from dfme.audits.audit.parts import CellResult
from dfme.audits.audit.price_parts import DETECTED
from dfme.audits.audit.result import AITG, AuditResult, LimitVerdict
from dfme.config.messages import printable
from dfme.report.run_files import Beside


class _Case(NamedTuple):
    """A test case. ``kind``: failure, error or skipped; nothing where it passes, and ``why`` is a
    remark then.
    """

    group: str
    name: str
    kind: str
    why: str


def junit(audit: AuditResult) -> str:
    """A test case per stated limit and seed, per price beside that of the audit before, per cell
    that failed, and per part that was not run.
    """
    failed = {cell.name: cell.reason for cell in audit.cells if cell.state == "failed"}
    cases = [*_limits(audit), *_prices(audit)]
    cases += [_Case("cells", name, "error", why) for name, why in failed.items()]
    missing = [part for part in audit.not_run if part.why not in failed.values()]
    cases += [_Case("not_run", part.what, "skipped", part.why) for part in missing]
    kinds = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    counts = {"tests": str(len(cases))}
    for name, kind in kinds.items():
        counts[name] = str(sum(case.kind == kind for case in cases))
    # the schema knows no more here
    root = ElementTree.Element(
        "testsuites", {name: counts[name] for name in ("tests", "failures", "errors")}
    )
    suite = ElementTree.SubElement(root, "testsuite", {"name": "dfme audit", **counts})
    for case in cases:
        named = {
            "classname": printable(f"dfme.audit.{case.group}"),
            "name": printable(case.name),
        }
        element = ElementTree.SubElement(suite, "testcase", named)
        if case.kind:
            ElementTree.SubElement(element, case.kind, message=printable(case.why))
        elif case.why:
            ElementTree.SubElement(element, "system-out").text = printable(case.why)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True)


def _limits(audit: AuditResult) -> Iterator[_Case]:
    """A case of each limit and seed: the worst attacker counts."""
    # whoever gets scores may learn labels
    names = audit.cells_of(audit.target.label_mode, "label")
    beside = Beside(audit.games.constant, None, audit.target.evaluation.images or 0)
    for verdict in audit.verdicts:
        for seed in audit.options.seeds:
            cells = [cell for cell in audit.cells if cell.name in names and cell.seed == seed]
            judge = _tested if verdict.limit == AITG else _judged
            kind, why = judge(verdict, cells, beside)
            if not kind:
                why = " ".join(filter(None, (why, not_tried(audit.untried))))
            yield _Case(verdict.limit, f"{verdict.stated}, seed {seed}", kind, why)


def _prices(audit: AuditResult) -> Iterator[_Case]:
    """A case of each price that is compared with the audit before."""
    for line in audit.history.lines if audit.history else ():
        kind = "failure" if line.change == "cheaper" else ""
        yield _Case("against", f"{line.row}, {line.mode}", kind, line.text)
    for part in audit.history.left_out if audit.history else ():
        yield _Case("against", part.what, "skipped", part.why)


def _tested(verdict: LimitVerdict, cells: Sequence[CellResult], beside: Beside) -> tuple[str, str]:
    """The kind of a seed's case of the catalogue's test, and why."""
    after = {cell.name: copy_after(cell) for cell in cells if cell.state == "finished"}
    best = best_copy([share for share in after.values() if share is not None], beside)
    waiting = [cell.name for cell in cells if after.get(cell.name) is None]
    if best is None:
        return "skipped", verdict.text
    rating = rating_of(best)
    text = f"{rating}: the best copy agrees on {best:.1%}"
    if rating == DETECTED:
        return "failure", text
    return ("skipped", f"not known: {', '.join(waiting)}") if waiting else ("", f"{text}.")


def _judged(verdict: LimitVerdict, cells: Sequence[CellResult], beside: Beside) -> tuple[str, str]:
    """The kind of a seed's case, and why."""
    level = LIMITS.get(verdict.limit)
    wanted = verdict.wanted
    waiting = [cell.name for cell in cells if cell.state != "finished"]
    # what a constant answer has without a query is no copy's
    if verdict.holds is None and not waiting and cells:
        return "skipped", verdict.text
    if level is None:
        worst = max([cell.agreement for cell in cells if cell.agreement is not None], default=0.0)
        exceeded = worst > wanted
    else:
        points = [point for cell in cells for point in cell.curve]
        worst = min([at for at, share in points if beside.reaches(share, level)], default=wanted)
        exceeded = worst < wanted
    if exceeded:
        return "failure", f"the worst attack: {worst:g}"
    if waiting or not cells:
        return "skipped", f"not finished: {', '.join(waiting)}"
    return "", ""
