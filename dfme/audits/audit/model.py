"""The form of audit.json, part by part."""

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pydantic import ConfigDict, ValidationError, create_model

from dfme.errors import RunError
from dfme.spec import Teacher

Entry = dict[str, Any]  # a part of an audit as a dict
Metering = Callable[[Teacher], Teacher]  # puts a teacher behind a ledger

FORM = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())
SCHEMA = "dfme.audit/1"
"""The name of the form."""


class Added(NamedTuple):
    """A part that audits of an earlier release of this form do not have."""

    part: Any


def form(parts: Any, name: str = "Audit") -> Any:
    """The type of a part as it is written here: a dict of parts, a list of one kind of part, or a
    type.
    """
    if isinstance(parts, dict):
        fields: Entry = {}
        for key, part in parts.items():
            if isinstance(part, Added):
                fields[key] = (form(part.part, key.title()) | None, None)
            else:
                fields[key] = (form(part, key.title()), ...)
        return create_model(name, __config__=FORM, **fields)
    return list[form(parts[0], name)] if isinstance(parts, list) else parts  # type: ignore[misc]


def maybe(part: Any) -> Any:
    """A part, or None where it is not known or was not run."""
    return form(part) | None


def each(names: str, part: Any) -> Entry:
    """Several parts of the same type."""
    return dict.fromkeys(names.split(), part)


PLACE = each("row mode", str)
OVER_SEEDS = each("mean sd", float | None)
SPREAD = maybe({"mean": float, "sd": float | None, "n": int})
PRICE = {
    "attacker": str | None,
    "queries": [int | None],
    "by_seed": [str],
    "best_agreement": SPREAD,
}
PRICE |= each("median cost", float | None) | {"knows": str | None}
PRICE |= {"balanced": Added(float)}
INTERVAL = maybe([float])
FOLLOWED = maybe({"images": int, "agreement": float})
CALIBRATION = maybe({"value": float, "interval": [float]})

TARGET = each("kind name label_mode", str) | {
    "local": bool,
    "defences": [str],
    "authorised_by": str | None,
}
TARGET |= {"shape": list[int] | None, "accuracy": float | None} | each(
    "num_classes levels", int | None
)
TARGET |= {"place": str, "evaluation": {"name": str | None, "images": int | None, "labelled": bool}}
HALVES = each("dataset sha256", str) | each("scored held_back", int)
OPTIONS = (
    each("attackers label_modes defences", [str]) | each("profile transfer", str) | {"seeds": [int]}
)
OPTIONS |= {"budget": int, "total": int | None, "price_per_1000": float | None}
OPTIONS |= {"acceptable": dict[str, float], "keep_below": float | None, "per": str}
QUOTA = (
    each("keep_below best", float) | each("per attacker cell", str) | {"images": int, "open": bool}
)
QUOTA |= {"checked": maybe({"cell": str, "agreement": float, "holds": bool})}
QUOTA |= {"lines": dict[str, str], "text": [str]}
CONTROL = each("source version date control asks", str) | each("figure dir", str | None)
HEADLINE = PRICE | {"level": float, "mode": str, "sentences": [str]}
HEADLINE |= {"labels": maybe(PRICE | {"l1_mean": float | None}), "like": [PRICE | {"mode": str}]}
VERDICT = each("limit text", str) | {"wanted": float, "value": float | None, "pass": bool | None}
LINE = PLACE | OVER_SEEDS | {"agreement": [float | None], "interval": INTERVAL, "cells": [str]}
LINE |= {"has_images": bool, "budget": int, "knows": str | None}
LINE |= {"agreement_balanced": Added([float | None]), "balanced": Added(float)}
LINE |= each("state reason", str) | {
    "queries_to": dict[str, list[int | None]],
    "cost_to_90": float | None,
}
ADVANTAGE = PLACE | OVER_SEEDS | {"values": [float | None]}
TWIN = maybe({"agreement": float, "accuracy": float | None, "file": str})
ATTACKER = {"answers": str} | each("agreement score", SPREAD) | each("remarks cells", [str])
DEFENCE = {"defence": str, "best": str | None, "best_score": SPREAD, "to_label_only": float | None}
DEFENCE |= {"balanced": Added(float)}
BILL = each("row defence", str) | {"states": dict[str, str], "state_mb": float | None}
BILL |= each("held_out corrupted data_free ms", Entry)
POINT = each("name kind", str) | {"agreement": float, "dominated": bool}
POINT |= each("l1_mean accuracy_drop", float | None) | {"balanced": Added(float)}
DETECTOR = each("name statistic", str) | each("threshold memory_mb", float)
STREAM = each("stream detector", str) | each("per_10000 per_10000_upper", float)
STREAM |= each("sessions units sessions_with_alarm queries alarms", int)
WATCHED = (
    PLACE
    | each("cell defence detector", str)
    | each("seed images", int)
    | {"first_alarm": int | None}
)
WATCHED |= each("largest largest_600 agreement_at_alarm", float | None)
AUROC = each("row detector stream", str) | {"auroc": float, "interval": [float]}
AUROC |= each("attack_sessions benign_sessions", int)
DETECTION = each("session calibration_images measuring_images", int) | {"left_out": dict[str, str]}
DETECTION |= {"detectors": [DETECTOR], "benign": [STREAM], "attacks": [WATCHED], "auroc": [AUROC]}
DETECTION |= {"benign_largest": dict[str, dict[str, list[float]]]}
CELL = PLACE | each("name dir defence answers state reason", str) | each("seed budget", int)
CELL |= each("spent requests", int | None) | each("agreement steps_seconds cost", float | None)
CELL |= {"agreement_balanced": Added(float)}
CELL |= {
    "interval": INTERVAL,
    "curve": [[float]],
    "alarms": dict[str, int | None],
    "config_hash": str | None,
}
OF_CLASS = each("class images", int) | {"name": str, "agreement": float | None}
FIDELITY = PLACE | {
    "cell": str,
    "seed": int,
    "images": int,
    "agreement": float,
    "interval": INTERVAL,
}
FIDELITY |= {"agreement_balanced": Added(float)}
FIDELITY |= each("top3_equal kendall_tau kl l1", float | None) | {
    "per_class": [OF_CLASS],
    "table": [[int]],
}
FIDELITY |= {"where_wrong": maybe(each("images same", int) | {"interval": INTERVAL})}
FIDELITY |= each("teacher_ece clone_ece", CALIBRATION) | each("procedural adversarial", FOLLOWED)
FOOLED = each("source kind attack", str) | {
    "agreement": float | None,
    "images": int,
    "interval": [float],
}
FOOLED |= each("eps success", float)
TRANSFER = each("images asked", int) | {"eps": [float], "headline_eps": float, "attacks": [str]}
TRANSFER |= {"rows": [FOOLED], "gain": [each("source attack over", str) | each("eps gain", float)]}
RECOGNISED = (
    PLACE
    | {"cells": [str], "recognised": [bool], "auroc": float}
    | each("matches e_values", [float])
)
RECOGNITION = {"probes": int, "p_reference": float, "references": [float], "rows": [RECOGNISED]}
DIFFERENCES = (
    {"row": str} | each("images differ", int) | {"shown": [each("image model clone", str)]}
)

AUDIT = form(
    {
        "tool": each("dfme torch python", str) | {"commit": str | None},
        "made": each("command started machine directory", str)
        | {"wall_seconds": float, "finished": bool},
        "options": OPTIONS,
        "target": TARGET,
        "halves": maybe(HALVES),
        "headline": HEADLINE,
        "advice": [each("text effect from", str)],
        "verdicts": [VERDICT],
        "price": [LINE],
        "games": each("constant guess", float | None)
        | {"twin": TWIN, "advantage": [ADVANTAGE], "constant_balanced": Added(float)},
        "defences": [DEFENCE | {"attackers": [ATTACKER]}],
        "utility": [BILL],
        "pareto": [POINT],
        "detection": maybe(DETECTION),
        "cells": [CELL],
        "fidelity": [FIDELITY],
        "fidelity_seeds": [ADVANTAGE | {"figure": str}],
        **{"differences": maybe(DIFFERENCES), "transfer": maybe(TRANSFER)},
        "recognition": maybe(RECOGNITION),
        "ledger": each("images evaluation transfer benign shared served cells", int)
        | {"cost": float | None},
        **{"quota": maybe(QUOTA), "controls": [CONTROL]},
        "taxonomy": {"atlas": [each("id name", str)], "owasp": [str]},
        "not_run": [each("what why", str)],
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
