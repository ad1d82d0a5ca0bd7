"""Files that other tools read, from an audit.json alone: SARIF 2.1.0, JUnit XML, CycloneDX 1.6."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from urllib.parse import quote
from xml.etree import ElementTree

from dfme.audits.audit.headline import seeds_text
from dfme.audits.audit.model import Entry, cells_in
from dfme.audits.audit.options import APPENDIX, LIMITS, OPTIONS, PAGE
from dfme.audits.audit.page import write_page
from dfme.config.messages import printable
from dfme.files import write_text
from dfme.report.facts import Beside

SARIF = "audit.sarif"
JUNIT = "audit.junit.xml"
BOM = "audit.cdx.json"
SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
TAGS = {
    "properties": {"tags": ["security", "MITRE ATLAS AML.T0024.002", "OWASP ML05", "AISVS 11.2.2"]}
}
ASKED = {
    "copy-90": "What does a copy cost that agrees with the model on 90 %?",
    "labels-only": "Does it raise that price to answer labels alone?",
    "no-alarm": "Would an attack go unnoticed?",
    "output-detail": "Do less detailed or defended scores raise the price of a copy?",
}


def write_all(audit: Entry, out: Path) -> list[Path]:
    """Write the page and the files into ``out``; their paths. RunError for what is no audit of this
    form.
    """
    page = write_page(audit, out / PAGE)
    texts = {SARIF: json.dumps(sarif(audit), indent=1), JUNIT: junit(audit)}
    texts[BOM] = json.dumps(bom(audit, hashlib.sha256(page.read_bytes()).hexdigest()), indent=1)
    for name, text in texts.items():
        write_text(out / name, f"{text}\n")
    return [page, *(out / name for name in (APPENDIX, *texts))]


def sarif(audit: Entry) -> Entry:
    """A result per question: error if a limit fails, warning if a switch would help, else note."""
    place = audit["target"]["place"]
    uri = quote(OPTIONS if PurePosixPath(place).is_absolute() else place)
    where = {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": {"startLine": 1}}}
    failed = [
        f"Your limit fails: {each['text']}" for each in audit["verdicts"] if each["pass"] is False
    ]
    rules = [
        TAGS | {"id": rule, "shortDescription": {"text": text}} for rule, text in ASKED.items()
    ]
    results = []
    for number, (rule, (known, helping, figures)) in enumerate(_answers(audit).items()):
        fails = failed if rule == "copy-90" else []
        level = "warning" if helping else "note"
        results.append(
            {
                "ruleId": rule,
                "ruleIndex": number,
                "level": "error" if fails else level,
                "message": {"text": " ".join([*known, *fails, *helping]) or ASKED[rule]},
                "locations": [where],
                "properties": figures,
            }
        )
    driver = {"name": "dfme", "version": audit["tool"]["dfme"], "rules": rules}
    ran = {
        "executionSuccessful": audit["made"]["finished"],
        "commandLine": audit["made"]["command"],
    }
    run = {"tool": {"driver": driver}, "invocations": [ran], "results": results}
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _answers(audit: Entry) -> dict[str, tuple[list[str], list[str], Entry]]:
    """What is known of each question, the advice that answers it, and the figures."""
    head = audit["headline"]
    names = cells_in(audit, head["mode"])
    alarms = {cell["name"]: cell["alarms"] for cell in audit["cells"] if cell["name"] in names}
    silent = [all(at is None for at in first.values()) for first in alarms.values() if first]
    watched = (
        f"{sum(silent)} of {len(silent)} attacks raised no alarm." if silent else "Nobody watched."
    )
    shares = [(line["mode"], line["mean"]) for line in audit["price"] if line["mean"] is not None]
    best = {mode: max(share for of, share in shares if of == mode) for mode, _ in shares}
    constant = audit["games"]["constant"]
    beside = "" if constant is None else f" (one constant answer: {constant:.1%})"
    detail = [
        f"Of {mode} the best copy agrees on {share:.1%}{beside}." for mode, share in best.items()
    ]
    helping = _helping(audit)
    known = {
        key: head[key]
        for key in ("attacker", "mode", "queries", "median", "cost", "best_agreement")
    }
    switches = [
        text for rule in ("labels-only", "output-detail", "copy-90") for text in helping[rule]
    ]
    return {
        "copy-90": (head["sentences"], switches, known | {"limits": audit["verdicts"]}),
        "labels-only": (head["sentences"][-1:], helping["labels-only"], head["labels"] or {}),
        "no-alarm": ([watched], helping["no-alarm"], {"first_alarms": alarms}),
        "output-detail": (
            detail,
            helping["output-detail"],
            {"agreement": best, "switches": audit["pareto"]},
        ),
    }


def _helping(audit: Entry) -> dict[str, list[str]]:
    """Advice by the question that it answers, a quota by the first."""
    rows = dict[str, Entry]()
    for part in ("price", "defences"):
        for at, row in enumerate(audit[part]):
            rows[f"{part}.{at}"] = row
    found: dict[str, list[str]] = {rule: [] for rule in ASKED}
    for each in audit["advice"]:
        row = rows.get(each["from"], {})
        rule = "labels-only" if row.get("mode") == "label" else "output-detail"
        if each["from"].startswith("detection"):
            rule = "no-alarm"
        elif row.get("defence", "").startswith("quota"):
            rule = "copy-90"
        if each["effect"] != "none":
            found[rule].append(each["text"])
    return found


def junit(audit: Entry) -> str:
    """A test case per stated limit and seed, per cell that failed, and per part that was not
    run.
    """
    failed = {cell["name"]: cell["reason"] for cell in audit["cells"] if cell["state"] == "failed"}
    cases = [*_limits(audit), *(("cells", name, "error", why) for name, why in failed.items())]
    missing = [each for each in audit["not_run"] if each["why"] not in failed.values()]
    cases += [("not_run", each["what"], "skipped", each["why"]) for each in missing]
    kinds = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    counts = {name: sum(of == kind for _, _, of, _ in cases) for name, kind in kinds.items()}
    counted = {name: str(count) for name, count in ({"tests": len(cases)} | counts).items()}
    total = {
        name: counted[name] for name in ("tests", "failures", "errors")
    }  # the schema knows no more here
    root = ElementTree.Element("testsuites", total)
    suite = ElementTree.SubElement(root, "testsuite", {"name": "dfme audit", **counted})
    for group, name, kind, why in cases:
        named = {"classname": printable(f"dfme.audit.{group}"), "name": printable(name)}
        case = ElementTree.SubElement(suite, "testcase", named)
        if kind:
            ElementTree.SubElement(case, kind, message=printable(why))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True)


def _limits(audit: Entry) -> Iterator[tuple[str, str, str, str]]:
    """Class, name, element unless it passes, and reason of each limit and seed: the worst attacker
    counts.
    """
    names = cells_in(
        audit, audit["target"]["label_mode"], "label"
    )  # whoever gets scores may learn labels
    beside = Beside(audit["games"]["constant"], None, audit["target"]["evaluation"]["images"] or 0)
    for each in audit["verdicts"]:
        level = LIMITS.get(each["limit"])
        wanted = each["wanted"]
        for seed in audit["options"]["seeds"]:
            cells = [
                cell for cell in audit["cells"] if cell["name"] in names and cell["seed"] == seed
            ]
            open_still = [cell["name"] for cell in cells if cell["state"] != "finished"]
            values = [cell["agreement"] for cell in cells if cell["agreement"] is not None]
            worst = max(values, default=0.0)
            exceeded = worst > wanted
            # what a constant answer has without a query is no copy's
            told_nothing = each["pass"] is None and not open_still and bool(cells)
            if level is not None:
                curves = [point for cell in cells for point in cell["curve"]]
                values = [at for at, share in curves if beside.reaches(share, level)]
                worst = min(values, default=wanted)
                exceeded = worst < wanted
            kind = ""
            why = f"not finished: {', '.join(open_still)}"
            if told_nothing:
                kind = "skipped"
                why = each["text"]
            elif exceeded:
                kind = "failure"
                why = f"the worst attack: {worst:g}"
            elif open_still or not cells:
                kind = "skipped"
            yield each["limit"], f"{each['limit']}={wanted:g}, seed {seed}", kind, why


def _metric(attack: str, kind: str, value: str) -> Entry:
    return {"slice": attack, "type": kind, "value": value}


def bom(audit: Entry, page: str) -> Entry:
    """A part of a bill of materials: the model and what its copies cost; ``page``: SHA-256 of the
    page.
    """
    metrics: list[Entry] = []
    for line in (line for line in audit["price"] if line["mean"] is not None):
        attack = f"{line['row']}, {line['mode']}"
        after = f"agreement after {line['budget']:,} queries"
        metrics.append(_metric(attack, after, f"{line['mean']:.4f}"))
        if line["interval"]:
            low, high = line["interval"]
            metrics[-1]["confidenceInterval"] = {
                "lowerBound": f"{low:.4f}",
                "upperBound": f"{high:.4f}",
            }
        if line.get("balanced") is not None:
            balanced = "the same, balanced over the model's classes"
            metrics.append(_metric(attack, balanced, f"{line['balanced']:.4f}"))
        queries = ", ".join(seeds_text(line, "0.9"))
        metrics.append(_metric(attack, "queries until 90 % agreement, each seed", queries))
    if (constant := audit["games"]["constant"]) is not None:
        after = "agreement after 0 queries"
        metrics.append(_metric("one constant answer", after, f"{constant:.4f}"))
    card: Entry = {"quantitativeAnalysis": {"performanceMetrics": metrics}}
    card["considerations"] = {
        "technicalLimitations": [*audit["headline"]["sentences"], *audit["limits"]]
    }
    page_of = {
        "type": "adversary-model",
        "url": PAGE,
        "hashes": [{"alg": "SHA-256", "content": page}],
    }
    model = {
        "type": "machine-learning-model",
        "bom-ref": "model",
        "name": audit["target"]["name"],
        "modelCard": card,
        "externalReferences": [page_of],
    }
    tool = {"type": "application", "name": "dfme", "version": audit["tool"]["dfme"]}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"tools": {"components": [tool]}},
        "components": [model],
    }
