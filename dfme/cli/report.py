"""``run.py report``: draw a run, or an audit, again."""

from collections.abc import Sequence
from pathlib import Path

from dfme.audits.audit.options import DATA, OPTIONS
from dfme.config.messages import printable
from dfme.errors import RunError, UserError
from dfme.report.run_files import read_object

SUMMARY = "draw the curves and the report of a run again, or the page and the files of an audit"


def options(words: Sequence[str]) -> tuple[()]:
    """None: a run directory is all that it is told."""
    return ()


def run(words: Sequence[str]) -> int:
    """Redraw curves, sample sheets and report.html from the run's files; the page and files of an
    audit.
    """
    if len(words) != 1 or words[0].startswith("-"):
        text = " ".join(words) or "none"
        raise UserError(
            f"report: expected one run directory, as in run.py report runs/x, got {text}"
        )
    path = Path(words[0])
    if (path / DATA).is_file():
        from dfme.audits.audit.exports import write_all
        from dfme.audits.audit.result import audit_result

        audit = audit_result(read_object(path / DATA))
        try:
            files = write_all(audit, path)
        except (ArithmeticError, LookupError, ValueError) as error:
            raise RunError(
                f"{DATA}: expected parts that fit, got {printable(repr(error)):.200}"
            ) from None
        for file in files:
            print(printable(str(file)))
        return 0
    if (path / OPTIONS).is_file():
        raise UserError(
            f"report: {words[0]} is an audit without {DATA} yet; go on with it by audit --resume"
        )
    from dfme.report.page import write_report

    print(printable(str(write_report(path))))
    return 0
