"""An audit as SARIF 2.1.0, for code scanning. No torch."""

import hashlib
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from dfme.audits.audit.beside_parts import AuditHistory
from dfme.audits.audit.drills import drill_text, of_whom
from dfme.audits.audit.headline import OPENCRE
from dfme.audits.audit.ladder import not_tried
from dfme.audits.audit.options import OPTIONS
from dfme.audits.audit.price_parts import WARNING
from dfme.audits.audit.result import AuditResult, document

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
NAMES = (
    "MITRE ATLAS AML.T0024.002",
    "OWASP ML05",
    "OWASP AITG-APP-09",
    "AISVS 11.2.2",
    *(f"OpenCRE {number}" for number in OPENCRE),
)
TAGS = {"properties": {"tags": ["security", *NAMES]}}
CHANGED = "price-change"
ASKED = {
    "copy-90": "What does a copy cost that agrees with the model on 90 %?",
    "labels-only": "Does it raise that price to answer labels alone?",
    "no-alarm": "Would an attack go unnoticed?",
    "output-detail": "Do less detailed or defended scores raise the price of a copy?",
    CHANGED: "Did a copy become cheaper or dearer since the audit before?",
}
"""The rules. Of the last there is a result for each price that changed."""
FINGERPRINT = "dfmeAudit/v1"


Json = dict[str, Any]


def sarif(audit: AuditResult) -> Json:
    """A result per question: error if a limit fails, warning if a switch would help, else note; and
    one for each price that is not that of the audit before.
    """
    rules = [
        TAGS | {"id": rule, "shortDescription": {"text": text}} for rule, text in ASKED.items()
    ]
    driver = {"name": "dfme", "version": audit.tool.dfme, "rules": rules}
    ran = {"executionSuccessful": audit.made.finished, "commandLine": audit.made.command}
    run: Json = {
        "tool": {"driver": driver},
        "invocations": [ran],
        "automationDetails": {"guid": _guid(audit.made.started)},
        "results": [*_results(audit), *_changes(audit)],
    }
    if audit.history is not None:
        run["baselineGuid"] = _guid(audit.history.started)
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _guid(started: str) -> str:
    """Of an audit, by the time when it began."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"dfme:audit:{started}"))


def _result(audit: AuditResult, rule: str, level: str, text: str, *place: str) -> Json:
    """A result; ``place``: what tells it from others of its rule, in every release."""
    file = audit.target.place
    uri = quote(OPTIONS if PurePosixPath(file).is_absolute() else file)
    where = {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": {"startLine": 1}}}
    mark = "\0".join([rule, audit.target.name, *place]).encode("utf-8", "replace")
    return {
        "ruleId": rule,
        "ruleIndex": [*ASKED].index(rule),
        "level": level,
        "message": {"text": text},
        "locations": [where],
        "partialFingerprints": {FINGERPRINT: hashlib.sha256(mark).hexdigest()[:32]},
    }


def _results(audit: AuditResult) -> Iterator[Json]:
    """A result of each question but the last."""
    failed = [
        f"Your limit fails: {verdict.text}" for verdict in audit.verdicts if verdict.holds is False
    ]
    warned = any(verdict.rating == WARNING for verdict in audit.verdicts)
    for rule, answer in _answers(audit).items():
        is_first = rule == "copy-90"
        fails = failed if is_first else []
        level = "warning" if answer.advice or (is_first and warned) else "note"
        text = " ".join([*answer.facts, *fails, *answer.advice]) or ASKED[rule]
        result = _result(audit, rule, "error" if fails else level, text)
        result["properties"] = answer.figures
        if audit.history is not None and rule != "no-alarm":  # alarms are not compared
            result["baselineState"] = _state(audit.history, rule, audit.target.label_mode)
        yield result


def _state(history: AuditHistory, rule: str, own: str) -> str:
    """Whether what a question is about is what it was in the audit before."""
    modes = {line.mode for line in history.changed}
    about = {
        "copy-90": bool(modes & {own, "label"} or history.limits),
        "labels-only": "label" in modes,
        "output-detail": bool(modes - {"label"}),
    }
    return "updated" if about[rule] else "unchanged"


def _changes(audit: AuditResult) -> Iterator[Json]:
    """A result of each price that changed."""
    for line in audit.history.changed if audit.history else ():
        level = "note"
        if line.change == "cheaper":
            level = "error" if line.mode in (audit.target.label_mode, "label") else "warning"
        result = _result(audit, CHANGED, level, line.text, line.row, line.mode)
        result["baselineState"] = "new" if line.change == "cheaper" else "updated"
        result["properties"] = document(line)
        yield result


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
    watched = ["Nobody watched."]
    if silent:
        watched = [f"{sum(silent)} of {len(silent)} attacks raised no alarm."]
    if audit.drill is not None:
        watched += [drill_text(audit.drill), of_whom(audit.drill, audit.target.name)]
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
        "no-alarm": _RuleAnswer(watched, {"first_alarms": alarms}),
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
