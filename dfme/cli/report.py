"""``run.py report``: which run is drawn again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dfme.errors import UserError

HELP = """usage: run.py report RUN

Draw the curves, the sample sheets and report.html of the run directory RUN again, from its files."""


def run_directory(argv: Sequence[str]) -> Path:
    """The run directory that the words name.

    Raises:
        UserError: if it is not one.
    """
    if len(argv) != 1 or argv[0].startswith("-"):
        raise UserError(
            f"report: expected one run directory, as in run.py report runs/x, got {' '.join(argv) or 'none'}"
        )
    path = Path(argv[0])
    if not (path / "config.yaml").is_file():
        raise UserError(f"report: expected a run directory, but {argv[0]!r} has no config.yaml")
    return path
