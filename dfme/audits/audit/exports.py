"""Files that other tools read, from an audit.json alone: SARIF 2.1.0, JUnit XML, CycloneDX 1.6."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import quote
from xml.etree import ElementTree

from dfme.audits.audit.ladder import not_tried
from dfme.audits.audit.options import APPENDIX, LIMITS, OPTIONS, PAGE
from dfme.audits.audit.page import write_page
from dfme.audits.audit.parts import CellResult
from dfme.audits.audit.prices import seeds_text
from dfme.audits.audit.result import AuditResult, LimitVerdict, document
from dfme.config.messages import printable
from dfme.files import write_text
from dfme.report.run_files import Beside

SARIF = "audit.sarif"
JUNIT = "audit.junit.xml"
BOM = "audit.cdx.json"
SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
NAMES = ("MITRE ATLAS AML.T0024.002", "OWASP ML05", "OWASP AITG-APP-09", "AISVS 11.2.2")
TAGS = {"properties": {"tags": ["security", *NAMES]}}
ASKED = {
    "copy-90": "What does a copy cost that agrees with the model on 90 %?",
    "labels-only": "Does it raise that price to answer labels alone?",
    "no-alarm": "Would an attack go unnoticed?",
    "output-detail": "Do less detailed or defended scores raise the price of a copy?",
}


Json = dict[str, Any]


def write_all(audit: AuditResult, out: Path) -> list[Path]:
    """Write the page and the files into ``out``; their paths."""
    page = write_page(audit, out / PAGE)
    digest = hashlib.sha256(page.read_bytes()).hexdigest()
    texts = {
        SARIF: json.dumps(sarif(audit), indent=1),
        JUNIT: junit(audit),
        BOM: json.dumps(bom(audit, digest), indent=1),
    }
    for name, text in texts.items():
        write_text(out / name, f"{text}\n")
    return [page, *(out / name for name in (APPENDIX, *texts))]


def sarif(audit: AuditResult) -> Json:
    """A result per question: error if a limit fails, warning if a switch would help, else note."""
    place = audit.target.place
    uri = quote(OPTIONS if PurePosixPath(place).is_absolute() else place)
    where = {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": {"startLine": 1}}}
    failed = [
        f"Your limit fails: {verdict.text}" for verdict in audit.verdicts if verdict.holds is False
    ]
    rules = [
        TAGS | {"id": rule, "shortDescription": {"text": text}} for rule, text in ASKED.items()
    ]
    results = []
    for number, (rule, answer) in enumerate(_answers(audit).items()):
        fails = failed if rule == "copy-90" else []
        level = "warning" if answer.advice else "note"
        results.append(
            {
                "ruleId": rule,
                "ruleIndex": number,
                "level": "error" if fails else level,
                "message": {
                    "text": " ".join([*answer.facts, *fails, *answer.advice]) or ASKED[rule]
                },
                "locations": [where],
                "properties": answer.figures,
            }
        )
    driver = {"name": "dfme", "version": audit.tool.dfme, "rules": rules}
    ran = {"executionSuccessful": audit.made.finished, "commandLine": audit.made.command}
    run = {"tool": {"driver": driver}, "invocations": [ran], "results": results}
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


@dataclass
class _RuleAnswer:
    """What is known of a question, the advice that answers it, and the figures."""

    facts: Sequence[str]
    figures: Json
    advice: list[str] = field(default_factory=list)


def _answers(audit: AuditResult) -> dict[str, _RuleAnswer]:
    """By the questions that are ``ASKED``; advice on a quota answers the first."""
    content = document(audit)
    headline = content["headline"]
    names = audit.cells_of(audit.headline.mode)
    alarms = {cell.name: cell.alarms for cell in audit.cells if cell.name in names}
    silent = [all(at is None for at in first.values()) for first in alarms.values() if first]
    watched = "Nobody watched."
    if silent:
        watched = f"{sum(silent)} of {len(silent)} attacks raised no alarm."
    best = dict[str, float]()
    for line in audit.price:
        if line.mean is not None:
            best[line.mode] = max(line.mean, best.get(line.mode, 0.0))
    constant = audit.games.constant
    beside = "" if constant is None else f" (one constant answer: {constant:.1%})"
    detail = [
        f"Of {mode} the best copy agrees on {share:.1%}{beside}." for mode, share in best.items()
    ]
    price = ("attacker", "has", "mode", "queries", "median", "cost", "hours", "best_agreement")
    figures = {key: headline[key] for key in price} | {"limits": content["verdicts"]}
    sentences = list(audit.headline.sentences)
    labels = sentences[-1:]
    missed = not_tried(audit.untried)
    if None in (audit.headline.labels.queries if audit.headline.labels else ()):
        labels += [] if missed in labels[0] else [missed]
    for part in ("fidelity_test", "public_backbone"):
        if content[part] is not None:
            figures[part] = content[part]
    sentences += audit.findings
    answers = {
        "copy-90": _RuleAnswer(sentences, figures),
        "labels-only": _RuleAnswer(labels, headline["labels"] or {}),
        "no-alarm": _RuleAnswer([watched], {"first_alarms": alarms}),
        "output-detail": _RuleAnswer(detail, {"agreement": best, "switches": content["pareto"]}),
    }
    for advice in audit.advice:
        if advice.effect != "none":
            answers[_question(audit, advice.place)].advice.append(advice.text)
    on_quotas = answers["copy-90"].advice
    on_answers = answers["labels-only"].advice + answers["output-detail"].advice
    answers["copy-90"].advice = [*on_answers, *on_quotas]
    return answers


def _question(audit: AuditResult, place: str) -> str:
    """The question that advice with a place in the audit answers."""
    part, _, row = place.partition(".")
    if part == "detection":
        return "no-alarm"
    if part == "price" and audit.price[int(row)].mode == "label":
        return "labels-only"
    if part == "defences" and audit.defences[int(row)].defence.startswith("quota"):
        return "copy-90"
    return "output-detail"


class _Case(NamedTuple):
    """A test case. ``kind``: failure, error or skipped; nothing where it passes, and ``why`` is a
    remark then.
    """

    group: str
    name: str
    kind: str
    why: str


def junit(audit: AuditResult) -> str:
    """A test case per stated limit and seed, per cell that failed, and per part that was not
    run.
    """
    failed = {cell.name: cell.reason for cell in audit.cells if cell.state == "failed"}
    cases = [*_limits(audit), *(_Case("cells", name, "error", why) for name, why in failed.items())]
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
            kind, why = _judged(verdict, cells, beside)
            why = why if kind else not_tried(audit.untried)
            yield _Case(
                verdict.limit, f"{verdict.limit}={verdict.wanted:g}, seed {seed}", kind, why
            )


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
    return "skipped" if waiting or not cells else "", f"not finished: {', '.join(waiting)}"


def _metric(attack: str, kind: str, value: str) -> Json:
    return {"slice": attack, "type": kind, "value": value}


def bom(audit: AuditResult, page: str) -> Json:
    """A part of a bill of materials: the model and what its copies cost; ``page``: SHA-256 of the
    page.
    """
    metrics: list[Json] = []
    for line in (line for line in audit.price if line.mean is not None):
        attack = f"{line.row}, {line.mode}"
        after = f"agreement after {line.budget:,} queries"
        metrics.append(_metric(attack, after, f"{line.mean:.4f}"))
        if line.interval:
            metrics[-1]["confidenceInterval"] = {
                "lowerBound": f"{line.interval.low:.4f}",
                "upperBound": f"{line.interval.high:.4f}",
            }
        if line.balanced is not None:
            balanced = "the same, balanced over the model's classes"
            metrics.append(_metric(attack, balanced, f"{line.balanced:.4f}"))
        metrics.append(
            _metric(attack, "queries until 90 % agreement, each seed", ", ".join(seeds_text(line)))
        )
        if line.hours_to_90 is not None:
            hours = f"hours until 90 % agreement, with {audit.options.rate} images for a key"
            metrics.append(_metric(attack, hours, f"{line.hours_to_90:g}"))
    if (constant := audit.games.constant) is not None:
        after = "agreement after 0 queries"
        metrics.append(_metric("one constant answer", after, f"{constant:.4f}"))
    model = {
        "type": "machine-learning-model",
        "bom-ref": "model",
        "name": audit.target.name,
        "modelCard": {
            "quantitativeAnalysis": {"performanceMetrics": metrics},
            "considerations": {"technicalLimitations": [*audit.headline.sentences, *audit.limits]},
        },
        "externalReferences": [
            {
                "type": "adversary-model",
                "url": PAGE,
                "hashes": [{"alg": "SHA-256", "content": page}],
            }
        ],
    }
    tool = {"type": "application", "name": "dfme", "version": audit.tool.dfme}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"tools": {"components": [tool]}},
        "components": [model],
    }
