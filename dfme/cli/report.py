"""``run.py report``: draw a run, or an audit, again."""

from collections.abc import Sequence
from pathlib import Path

from dfme.audits.audit.options import DATA, PAGE, read_object
from dfme.errors import UserError

SUMMARY = "draw the curves and the report of a run again, or the page of an audit"


def options(words: Sequence[str]) -> tuple[()]:
    """None: a run directory is all that it is told."""
    return ()


def run(words: Sequence[str]) -> int:
    """Redraw curves, sample sheets and report.html from the run's files; the page of an audit."""
    path = run_directory(words)
    if (path / DATA).is_file():
        from dfme.audits.audit.page import write_page

        print(write_page(read_object(path / DATA), path / PAGE))
        return 0
    from dfme.report import write_report

    print(write_report(path))
    return 0


def run_directory(words: Sequence[str]) -> Path:
    """The directory of a run or an audit that the words name; UserError if it is neither."""
    if len(words) != 1 or words[0].startswith("-"):
        raise UserError(
            f"report: expected one run directory, as in run.py report runs/x, got {' '.join(words) or 'none'}"
        )
    path = Path(words[0])
    if not any((path / name).is_file() for name in ("config.yaml", DATA)):
        raise UserError(
            f"report: expected a run directory, but {words[0]!r} has no config.yaml, and no {DATA}"
        )
    return path
