"""What an audit's phases leave on file: their seconds, and results that are record."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dfme.audits.audit.result import PartType, document, parse
from dfme.files import write_text
from dfme.report.run_files import read_object

PHASES = "phases.json"


def record_seconds(out: Path, phase: str, seconds: float) -> None:
    """Add a phase's seconds to those of the sessions before."""
    phases = read_object(out / PHASES)
    before = phases.get(phase)
    phases[phase] = round(seconds + (before if isinstance(before, float) else 0.0), 1)
    write_text(out / PHASES, json.dumps(phases, indent=1) + "\n")


def cached(
    path: Path,
    form: type[PartType],
    key: Sequence[str],
    make: Callable[[], Any],
    anew: bool = False,
) -> PartType:
    """Return the result on file for a key; make and store it where there is none, or ``anew``.
    RunError, in one line, for a file that does not fit the form.
    """
    record = read_object(path)
    if anew or record.get("of") != [*key] or "found" not in record:
        content = json.dumps(document(make()), allow_nan=False)
        record = {"of": [*key], "found": json.loads(content)}
        write_text(path, json.dumps(record, indent=1) + "\n")
    return parse(form, record["found"], path.name)
