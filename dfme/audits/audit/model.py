"""The form of audit.json, part by part."""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from dfme.audits.audit import sections
from dfme.audits.audit.form import Added, form, maybe
from dfme.errors import RunError

Entry = dict[str, Any]  # a part of an audit as a dict

SCHEMA = "dfme.audit/1"
"""The name of the form."""

AUDIT = form(
    {
        "tool": {
            "dfme": str,
            "torch": str,
            "python": str,
            "commit": str | None,
        },
        "made": {
            "command": str,
            "started": str,
            "machine": str,
            "directory": str,
            "wall_seconds": float,
            "finished": bool,
        },
        "options": sections.OPTIONS,
        "target": sections.TARGET,
        "halves": maybe(sections.HALVES),
        "headline": sections.HEADLINE,
        "advice": [{"text": str, "effect": str, "from": str}],
        "verdicts": [sections.VERDICT],
        "price": [sections.LINE],
        "games": {
            "constant": float | None,
            "guess": float | None,
            "twin": sections.TWIN,
            "advantage": [sections.ADVANTAGE],
            "constant_balanced": Added(float),
        },
        "defences": [{**sections.DEFENCE, "attackers": [sections.ATTACKER]}],
        "utility": [sections.BILL],
        "pareto": [sections.POINT],
        "detection": maybe(sections.DETECTION),
        "cells": [sections.CELL],
        "fidelity": [sections.FIDELITY],
        "fidelity_seeds": [{**sections.ADVANTAGE, "figure": str}],
        "differences": maybe(sections.DIFFERENCES),
        "transfer": maybe(sections.TRANSFER),
        "recognition": maybe(sections.RECOGNITION),
        "ledger": {
            "images": int,
            "evaluation": int,
            "transfer": int,
            "benign": int,
            "shared": int,
            "served": int,
            "cells": int,
            "cost": float | None,
        },
        "quota": maybe(sections.QUOTA),
        "controls": [sections.CONTROL],
        "taxonomy": {"atlas": [{"id": str, "name": str}], "owasp": [str]},
        "not_run": [{"what": str, "why": str}],
        "limits": [str],
        "pictures": dict[str, str],
    }
)


def cells_in(audit: Mapping[str, Any], *modes: str) -> list[str]:
    """Names of the cells of all attackers and seeds on the undefended model, in these label
    modes.
    """
    return [name for line in audit["price"] if line["mode"] in modes for name in line["cells"]]


def json_schema() -> Entry:
    """The JSON schema of audit.json."""
    found: Entry = AUDIT.model_json_schema()
    found["properties"]["schema"] = {"const": SCHEMA}
    return found | {"required": ["schema", *found["required"]]}


def check_audit(audit: Mapping[str, Any]) -> None:
    """RunError, in one line, for what is not a whole audit of this form."""
    if (schema := audit.get("schema")) != SCHEMA:
        raise RunError(
            f"audit.json: expected the schema {SCHEMA}, got {schema!r:.60}; make it again"
        )
    try:
        parts = {name: part for name, part in audit.items() if name != "schema"}
        AUDIT.model_validate_json(json.dumps(parts))  # where a text is no number
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        what = f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
        wanted = f"expected all that {SCHEMA} holds"
        raise RunError(f"audit.json: {wanted}, got {what:.200}; resume the audit") from None
