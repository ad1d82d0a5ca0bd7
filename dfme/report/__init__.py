"""A run's pictures and its page, drawn from the files in its directory alone. No torch here."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from dfme.report.run_files import read_run


def write_report(run_dir: Path, *, summary: dict[str, Any] | None = None) -> Path:
    """Draw curve.png, losses.png and samples.png of a run and write its report.html; its path.

    What an unfinished run has not recorded is left out. ``summary``: of a run at its end that has
    not written it yet. Raises ``UserError`` for a directory without a run and ``RunError`` for
    damaged files.
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
