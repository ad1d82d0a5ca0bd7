"""Who runs the cells of a comparison: this machine, SLURM, Ray, or whoever takes a list of
commands.

An engine is a ``WorkerPool``. It runs ``dfme extract --config C --out D --resume auto``
and knows nothing else of a cell: one that is killed, or loses its node, goes on where it was.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from dfme.config.messages import did_you_mean
from dfme.errors import UserError

ENGINES = {
    "local": "dfme.audits.compare.engines.pool:Local",
    "commands": "dfme.audits.compare.engines.commands:Commands",
    "slurm": "dfme.audits.compare.engines.slurm:Slurm",
    "ray": "dfme.audits.compare.engines.on_ray:OnRay",
}
"""module:Class of each, imported when it is named; made of the plan, of what gives a cell's task,
and of ``tell``."""

EXTRAS = {"slurm": "submitit", "ray": "ray"}
"""The package that an engine needs; the extra that installs it has the engine's name."""

LOST = -256
STOPPED = 130
"""Codes of a cell whose worker ended without one, killed or with its node, and of one that was
asked to stop."""


@dataclass(frozen=True)
class Task:
    """One cell as a worker gets it: the words after ``dfme``, the file for what it says, its
    ``--device``, and the ``entry`` that runs the words.
    """

    words: tuple[str, ...]
    log: Path
    directory: Path
    device: str
    entry: Callable[[Sequence[str]], int]


def require_engine(name: str) -> None:
    """UserError for an engine that there is not, or whose package is not installed. Imports
    neither.
    """
    if name not in ENGINES:
        raise UserError(
            f"expected one of {', '.join(ENGINES)}, got {name!r}{did_you_mean(name, ENGINES)}"
        )
    if name in EXTRAS and find_spec(EXTRAS[name]) is None:
        raise UserError(
            f'{name} needs {EXTRAS[name]}, which is not installed: pip install "dfme[{name}]"'
        )
