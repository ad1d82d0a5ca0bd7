"""``run.py report``: draw a run again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dfme.errors import UserError

SUMMARY = "draw the curves and the report of a run again"


def options(words: Sequence[str]) -> tuple[()]:
    """None: a run directory is all that it is told."""
    return ()


def run(words: Sequence[str]) -> int:
    """Draw the curves, the sample sheets and report.html again, from the run's files."""
    path = run_directory(words)
    from dfme.report import write_report

    print(write_report(path))
    return 0


def run_directory(words: Sequence[str]) -> Path:
    """The run directory that the words name; UserError if it is not one."""
    if len(words) != 1 or words[0].startswith("-"):
        raise UserError(
            f"report: expected one run directory, as in run.py report runs/x, got {' '.join(words) or 'none'}"
        )
    path = Path(words[0])
    if not (path / "config.yaml").is_file():
        raise UserError(f"report: expected a run directory, but {words[0]!r} has no config.yaml")
    return path
