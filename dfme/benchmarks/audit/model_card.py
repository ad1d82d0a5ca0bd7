"""What of an audit goes into a model card, what it does not tell, and how others name the threat. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dfme.benchmarks.audit.findings import Findings

ATLAS = {
    "AML.T0040": "AI Model Inference API Access",
    "AML.T0024.002": "Extract AI Model",
    "AML.T0005.001": "Train Proxy via Replication",
    "AML.T0043.002": "Black-Box Transfer",
    "AML.T0048.004": "AI Intellectual Property Theft",
}
OWASP = "ML05:2023 Model Theft"
"""Names of techniques in MITRE ATLAS 5.6.1 and of the risk in OWASP's list."""


def what_it_does_not_tell(of: Findings, local: bool) -> list[str]:
    """The sentences below every audit."""
    alone = len(of.seeds) == 1
    rows = ", ".join(dict.fromkeys(each.cell.row for each in of.first.outcomes))
    told = [
        f"The attackers that ran are {rows}; a stronger one, or one with images of your task, may need fewer queries.",
        f"Shares are of {of.images:,} images, over {len(of.seeds)} seeds{', of whose spread one tells nothing' * alone}.",
        "Every attack was one client: several that share keys divide a quota and what a watch sees among them.",
        "What an attacker learns elsewhere is not counted: labels of the same images, or an earlier version's answers.",
        "Figures hold for this model and these answers; another model, or this one trained again, has others.",
    ]
    watched = (
        "Detectors were held against honest streams made from your evaluation images; your real traffic is another."
    )
    away = "Which defences or watches work behind the service is not known, and none was tried."
    return [*told, watched if local else away]


def model_card(audit: Mapping[str, Any]) -> str:
    """A section for the model's card."""
    made, tool, options = audit["made"], audit["tool"], audit["options"]
    lines = ["## Extraction resistance", "", *audit["headline"]["sentences"], ""]
    lines += [f"- {each['text']}" for each in audit["advice"]]
    lines += [f"- Limit {'holds' if each['pass'] else 'FAILS'}: {each['text']}" for each in audit["verdicts"]]
    lines += ["", "What this does not tell:", "", *(f"- {text}" for text in audit["limits"])]
    seeds = ", ".join(map(str, options["seeds"]))
    made_with = f"dfme {tool['dfme']}, {made['started'][:10]}, profile {options['profile']}, seeds {seeds}"
    return (
        "\n".join([*lines, "", f"Measured with {made_with}; {audit['schema']}: audit.json.", f"`{made['command']}`"])
        + "\n"
    )
