"""``run.py report``: draw a run, or an audit, again."""

from collections.abc import Sequence
from pathlib import Path

from dfme.audits.audit.options import DATA, OPTIONS, PAGE
from dfme.errors import UserError
from dfme.report.summary_file import read_object

SUMMARY = "draw the curves and the report of a run again, or the page of an audit"


def options(words: Sequence[str]) -> tuple[()]:
    """None: a run directory is all that it is told."""
    return ()


def run(words: Sequence[str]) -> int:
    """Redraw curves, sample sheets and report.html from the run's files; the page of an audit."""
    if len(words) != 1 or words[0].startswith("-"):
        given = " ".join(words) or "none"
        raise UserError(f"report: expected one run directory, as in run.py report runs/x, got {given}")
    path = Path(words[0])
    if (path / DATA).is_file():
        from dfme.audits.audit.page import write_page

        print(write_page(read_object(path / DATA), path / PAGE))
        return 0
    if (path / OPTIONS).is_file():
        raise UserError(f"report: {words[0]} is an audit without {DATA} yet; go on with it by audit --resume")
    from dfme.report import write_report

    print(write_report(path))
    return 0
