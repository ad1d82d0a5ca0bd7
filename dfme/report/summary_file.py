"""Reading summary.json, and rows of tables made of it. No torch here."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dfme.config.messages import printable
from dfme.config.values import flatten
from dfme.errors import RunError, flag
from dfme.files import open_file
from dfme.queries.names import WORTH_NOTHING

MAX_BYTES = 1 << 25
AGREEMENTS = ("agreement_served", "agreement_relabelled")

NO_LABELS = "not known: the evaluation images have no labels"


def known_domain(config: Mapping[str, Any]) -> str | None:
    """What the attacker of a run with this configuration knew that the teacher is for; None:
    nothing.
    """
    domain = (config.get("queries") or {}).get("domain", "unknown")
    return None if domain == "unknown" else printable(str(domain))


def knowledge(config: Mapping[str, Any]) -> str | None:
    """The same for people, with a remark on knowledge that was worth nothing where measured."""
    domain = known_domain(config)
    return f"{domain} (worth nothing where measured)" if domain in WORTH_NOTHING else domain


def without_labels(summary: Mapping[str, Any]) -> str | None:
    """``NO_LABELS`` of a run whose evaluation images have none."""
    held_back = (summary.get("evaluation") or {}).get("held_back")
    return NO_LABELS if summary.get("accuracy") is None and held_back is False else None


def defended(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Rows for a teacher with a watch or defences: agreement with the teacher itself."""
    rows = []
    watch = summary.get("watch") or {"detectors": {}}
    for name, detector in watch["detectors"].items():
        alarm = (
            f"first alarm at image {detector['first_alarm']:,}"
            if detector["first_alarm"]
            else "no alarm"
        )
        text = f"{alarm} of {watch['images']:,} images, the evaluation's not counted"
        rows.append((f"watch: {name}", text))
    if not summary.get("defences"):
        return rows
    counted = ", ".join(
        f"{name} {value}" for name, value in flatten(summary.get("defence_report") or {}, ())
    )
    shares = {name: summary.get(name) for name in AGREEMENTS}
    texts = {"defences": " + ".join(summary["defences"]), "defences report": printable(counted)}
    texts |= {
        name.replace("_", " "): f"{share:.2%}"
        for name, share in shares.items()
        if share is not None
    }
    return [*(row for row in texts.items() if row[1]), *rows]


def ended_early(summary: Mapping[str, Any]) -> str | None:
    """Sentence on how --until-agreement ended the run, if it did."""
    seen = summary.get("held_back")
    if summary.get("ended_by") != "until_agreement" or seen is None:
        return None
    constant = "" if seen.get("one_class") is None else f"; constant answer {seen['one_class']:.1%}"
    images = (
        f"{seen['images']:,} held-back queries (95% interval from {seen['at_least']:.1%}{constant})"
    )
    goal = flag("until_agreement", seen["goal"])
    return f"{goal}: agreement on {seen['agreement']:.1%} of {images}"


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object that a file holds; nothing where it holds none."""
    with suppress(OSError, ValueError, RecursionError), open_file(path) as file:
        document = json.loads(file.read(MAX_BYTES))
        return document if isinstance(document, dict) else {}
    return {}


def read_summary(path: Path) -> dict[str, Any] | None:
    """Entries of a summary.json; None without one. Raises ``RunError`` for other content."""
    if not path.is_file():
        return None
    summary = read_object(path)
    if "budget" not in summary or "spent" not in summary:
        what = "expected the JSON of a finished run, with budget and spent"
        raise RunError(f"{path}: {what}; resume the run to write it")
    return summary
