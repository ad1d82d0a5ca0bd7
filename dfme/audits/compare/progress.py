"""How far a cell is, and how it ended, in words. No torch."""

import signal
from dataclasses import dataclass
from typing import NamedTuple

from dfme.audits.compare.engines import LOST
from dfme.audits.compare.figures import Outcome


class CellProgress(NamedTuple):
    """Images that a cell has paid for, and the share of its work that is done."""

    images: int = 0
    share: float = 0.0


@dataclass
class Begun:
    """When a cell was begun by this call, at which share of its work, and when it ended."""

    time: float
    share: float
    ended: float | None = None


def killed(code: int) -> str:
    """End of a cell that has no exit code."""
    if code == LOST:
        return "lost with its worker, which was killed or preempted, or whose node is gone"
    why = " (the system does that when memory runs out)" if code == -signal.SIGKILL else ""
    return f"killed by signal {-code}{why}"


def in_a_line(outcome: Outcome) -> str:
    """What became of a cell."""
    figures = outcome.figures
    if figures is None:
        return "stopped and kept" if outcome.state == "waiting" else f"FAILED: {outcome.reason}"
    parts = []
    if figures.agreement is not None:
        parts.append(
            f"agreement {figures.beside.text(figures.agreement, figures.agreement_balanced)}"
        )
    if figures.accuracy is not None:
        parts.append(f"accuracy {figures.accuracy:.2%}")
    return ", ".join([*parts, f"{figures.seconds:,.1f} s"])
