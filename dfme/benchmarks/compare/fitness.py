"""Which rows can use which label modes: the methods and the losses know, and are asked before the first query."""

from __future__ import annotations

from collections.abc import Iterable

from dfme.benchmarks.compare.plan import Cell
from dfme.errors import UserError
from dfme.methods import METHODS
from dfme.spec import LabelMode
from dfme.students.losses import make_distance


def not_applicable(cells: Iterable[Cell]) -> dict[tuple[str, str], str]:
    """(row, label mode) and the reason, of cells whose method cannot learn from such answers: they are not run.

    Raises:
        UserError: for a loss that a row names and that does not fit its answers, or where nothing is left to run.
    """
    reasons: dict[tuple[str, str], str] = {}
    problems: list[str] = []
    pairs = {(cell.row, cell.mode): cell.job for cell in cells}
    for (row, mode), job in pairs.items():
        able = METHODS[job.method].load().label_modes
        kind = LabelMode.parse(mode).kind
        if kind not in able:
            reasons[row, mode] = f"{job.method} needs answers of {' or '.join(able)}"
            continue
        try:
            make_distance(job.config.student.loss, LabelMode.parse(mode))
        except UserError as error:
            problems.append(f"row {row}: {error}")
    if len(reasons) == len(pairs):
        problems.append("; ".join(dict.fromkeys(f"row {row}: {reason}" for (row, _), reason in reasons.items())))
    if problems:
        raise UserError("; ".join(problems))
    return reasons
