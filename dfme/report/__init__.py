"""A run's pictures and its page, drawn from the files in its directory alone. No torch here.

``run_files.py`` reads, ``facts.py`` works out what the numbers say, ``curves.py`` and ``sheets.py`` draw, and
``page.py`` writes report.html.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from dfme.report.run_files import read_run

__all__ = ["write_report"]


def write_report(run_dir: Path, *, summary: dict[str, Any] | None = None) -> Path:
    """Draw curve.png, losses.png and samples.png of a run and write its report.html; its path.

    Whatever the run has not recorded is left out, and the page says so; an unfinished run will do.
    ``summary``: of a run that is at its end but has not written it yet. Raises ``UserError`` for a directory
    that holds no run and ``RunError`` for damaged files.
    """
    run = read_run(run_dir)
    if summary is not None:
        run = replace(run, summary=summary)
    from dfme.report.curves import draw_curve, draw_losses
    from dfme.report.page import write_page
    from dfme.report.sheets import draw_samples

    draw_curve(run, run_dir / "curve.png")
    draw_losses(run, run_dir / "losses.png")
    draw_samples(run, run_dir / "samples.png")
    return write_page(run, run_dir / "report.html")
