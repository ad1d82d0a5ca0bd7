"""Seconds of an audit's phases, on file in its directory."""

import json
from pathlib import Path

from dfme.files import write_text
from dfme.report.summary_file import read_object

PHASES = "phases.json"


def record_seconds(out: Path, phase: str, seconds: float) -> None:
    """Add a phase's seconds to those of the sessions before."""
    known = read_object(out / PHASES)
    before = known.get(phase)
    known[phase] = round(seconds + (before if isinstance(before, float) else 0.0), 1)
    write_text(out / PHASES, json.dumps(known, indent=1) + "\n")
