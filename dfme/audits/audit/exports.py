"""Files that other tools read, from an audit.json alone: SARIF 2.1.0, JUnit XML, CycloneDX 1.6."""

import hashlib
import json
from pathlib import Path
from typing import Any

from dfme.audits.audit.junit import junit
from dfme.audits.audit.options import APPENDIX, PAGE
from dfme.audits.audit.page import write_page
from dfme.audits.audit.prices import seeds_text
from dfme.audits.audit.result import AuditResult
from dfme.audits.audit.sarif import sarif
from dfme.files import write_text

SARIF = "audit.sarif"
JUNIT = "audit.junit.xml"
BOM = "audit.cdx.json"

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
