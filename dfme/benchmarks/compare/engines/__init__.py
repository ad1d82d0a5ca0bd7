"""Who runs the cells of a comparison: this machine, SLURM, Ray, or whoever takes a list of commands.

An engine runs one thing, ``dfme extract --config C --out D --resume auto``, and knows nothing else of a cell. A cell
that is killed, or loses its node, goes on where it was: exact resume is the only thing that an engine needs for that.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from dfme.config.messages import did_you_mean
from dfme.errors import UserError

T = TypeVar("T")

ENGINES = {
    name: f"dfme.benchmarks.compare.engines.{place}"
    for name, place in {
        "local": "local:Local",
        "commands": "commands:Commands",
        "slurm": "slurm:Slurm",
        "ray": "on_ray:OnRay",
    }.items()
}
"""module:Class of each engine, imported when it is named."""

EXTRAS = {"slurm": "submitit", "ray": "ray"}
"""The package that an engine needs; the extra that installs it has the engine's name."""

LOST = -256
"""In the place of an exit code: the worker ended without one, killed or with its node."""

STOPPED = 130
"""The exit code of a cell that was asked to stop, and is kept."""


@dataclass(frozen=True)
class Task:
    """One cell as a worker gets it: the words after ``dfme``, the file for what it says, its ``--device``."""

    words: tuple[str, ...]
    log: Path
    directory: Path
    device: str


@dataclass(frozen=True)
class Terms(Generic[T]):
    """What an engine is told: at most ``jobs`` cells at once, its own ``options``, and whom to ``tell`` a line."""

    task: Callable[[T], Task]
    jobs: int
    retries: int
    options: Mapping[str, str]
    out: Path
    tell: Callable[[str], None]


class Engine(Protocol[T]):
    """Runs cells. ``manner`` says in a few words where and how."""

    manner: str

    @property
    def running(self) -> list[T]: ...

    def run(
        self,
        tasks: Iterable[T],
        ended: Callable[[T, int], bool],
        stopped: Callable[[], bool],
        watch: Callable[[], None] = ...,
    ) -> None:
        """Run all, or, once ``stopped``, those that run to the end of their step in progress.

        ``ended`` hears each exit code, or LOST, as it comes, and says whether that cell is to be run once more.
        """


def require_engine(name: str) -> None:
    """UserError for an engine that there is not, or whose package is not installed. Imports neither."""
    if name not in ENGINES:
        raise UserError(f"expected one of {', '.join(ENGINES)}, got {name!r}{did_you_mean(name, ENGINES)}")
    if name in EXTRAS and find_spec(EXTRAS[name]) is None:
        raise UserError(f'{name} needs {EXTRAS[name]}, which is not installed: pip install "dfme[{name}]"')


def open_engine(name: str, terms: Terms[T]) -> Engine[T]:
    """The engine of this name. UserError for options that it does not have."""
    module, _, attribute = ENGINES[name].partition(":")
    made: Engine[T] = getattr(importlib.import_module(module), attribute)(terms)
    return made


def require_options(engine: str, given: Iterable[str], known: Sequence[str]) -> None:
    """UserError for an option that the engine does not have."""
    for name in given:
        if name not in known:
            said = ", ".join(known) or "none"
            raise UserError(f"--engine-options of {engine}: expected {said}; got {name!r}{did_you_mean(name, known)}")
