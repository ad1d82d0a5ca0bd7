"""The run directory: where a run's files lie, and the lock that keeps a second process out of
it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Mapping
from itertools import chain, count
from pathlib import Path
from typing import Any

from dfme.config.yaml_files import sealed
from dfme.data import DATASETS, whole_name
from dfme.errors import Ref, RunError, UserError, say
from dfme.files import remove, write_text
from dfme.oracle.ledger_log import audit
from dfme.run.lock import LOCK, DirectoryLock

TRACES = (
    LOCK,
    "config.yaml.tmp",
)  # of a process killed before its config.yaml was whole, which is no run
BEFORE_A_CHARGE = (  # what a run may write before it charges anything
    "config.yaml",
    "adapter.yaml",
    "ledger.jsonl",
    "metrics.jsonl",
    "watch.jsonl",
    "checkpoint.pt",
    "checkpoint.previous.pt",
    "data.json",
    "wandb.json",
    "journal",
    "samples",
    "replay",
    "wandb",
    "probes.pt",
    LOCK,
)
IMAGES = {
    "evaluation": ("dataset", "classes", "root"),
    "method": ("pool", "proxy", "partial_data", "root"),
}
"""Options by section that name images on disk, or say where they lie."""

BEGUN = (
    "# relative paths begin at, from here: "  # where the run was started, as config.yaml says it
)


def run_start(config: str | Path) -> Path | None:
    """The directory where a run was started, by its file of options; None where that does not
    say.
    """
    try:
        with open(config, encoding="utf-8") as file:
            begun = next(
                (line[len(BEGUN) :].strip() for line in file if line.startswith(BEGUN)), None
            )
    except (OSError, UnicodeDecodeError):
        return None
    return None if begun is None else Path(os.path.normpath(Path(config).resolve().parent / begun))


def resolve_from_run_start(config: str | Path, path: str) -> str:
    """A path of a run's config.yaml relative to where the run began, if it exists; else
    unchanged.
    """
    start = run_start(config)
    meant = os.path.normpath((start or Path()) / path)
    return meant if start is not None and os.path.exists(meant) else path


def images_from_run_start(config: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a run's config.yaml whose relative paths to images begin where the run
    began.
    """
    placed = dict(content)
    for section, names in IMAGES.items():
        options = placed.get(section)
        if isinstance(options, Mapping):
            placed[section] = {
                name: _placed(config, value) if name in names and isinstance(value, str) else value
                for name, value in options.items()
            }
    return placed


def _placed(config: Path, name: str) -> str:
    """A data set's name; that of a folder or a file absolute, if the run began elsewhere."""
    absolute = whole_name(name)
    if absolute in DATASETS or os.path.isabs(absolute) or run_start(config) == Path.cwd():
        return name
    return resolve_from_run_start(config, absolute) + name.removeprefix(absolute)


def on_record(text: str, folder: Path) -> str:
    """A file of options for a folder, with where its relative paths begin, and sealed."""
    begun = os.path.relpath(Path.cwd(), folder.resolve())
    return sealed(f"{text}{BEGUN}{begun}\n")


class RunDirectory(contextlib.AbstractContextManager["RunDirectory"]):
    """The files of one run, locked for this process until ``close`` or its end, however it ends.

    Made by ``create`` or ``open_for_resume``. That of a new run (``is_new_run``) is gone after a
    failure before the first charge.
    """

    is_new_run = False

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.adapter = path / "adapter.yaml"
        self.ledger = path / "ledger.jsonl"
        self.journal = path / "journal"
        self.metrics = path / "metrics.jsonl"
        self.watch = path / "watch.jsonl"
        self.checkpoint = path / "checkpoint.pt"
        self.previous_checkpoint = path / "checkpoint.previous.pt"
        self.student = path / "student.safetensors"
        self.summary = path / "summary.json"
        self.lock = DirectoryLock(path)

    @classmethod
    def create(cls, path: Path) -> RunDirectory:
        """A new directory. Raises UserError if it holds something already, cannot be written or is
        in use.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            taken = holds_something(path)
        except OSError as error:
            raise UserError(
                f"cannot create the run directory: {error.strerror}", about=Ref("out", path)
            ) from error
        if not taken or os.path.lexists(path / LOCK):  # one that is in use is said to be so
            directory = cls(path)
            if not holds_something(path):
                return directory
            directory.close()
        raise UserError(
            say(
                "expected a new or empty directory, got one with files; add {resume} to go on "
                "with its run, or choose another {out}"
            ),
            about=Ref("out", path),
        )

    @classmethod
    def open_for_resume(cls, path: Path) -> RunDirectory:
        """The directory of an interrupted run. UserError if it is in use; RunError for missing
        files.
        """
        directory = cls(path)
        if directory.has_checkpoint and not directory.ledger.is_file():
            directory.close()
            raise RunError(
                f"{directory.ledger}: missing, beside a checkpoint; restore it, or start a new run"
            )
        return directory

    @staticmethod
    def free_name(base: Path) -> Path:
        """``base``, or ``base-2``, ``base-3``...: the first that does not exist."""
        names = chain([base], (base.with_name(f"{base.name}-{number}") for number in count(2)))
        return next(path for path in names if not path.exists())

    @property
    def has_checkpoint(self) -> bool:
        """True if there is a checkpoint; a run killed before its first starts again from its
        journal.
        """
        return os.path.lexists(self.checkpoint) or os.path.lexists(self.previous_checkpoint)

    def write_config(self, text: str) -> None:
        """Write config.yaml with its last line, whole or not at all. RunError for disk errors."""
        write_text(self.config, on_record(text, self.path))

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write summary.json, whole or not at all, last of all files. RunError for disk errors."""
        write_text(self.summary, json.dumps(summary, indent=2, allow_nan=False) + "\n")

    def _withdraw(self) -> None:
        """After a failure before the first charge remove the run's files, and its directory if
        empty.
        """
        if self.ledger.is_file() and audit(self.ledger).requests:
            return
        for name in BEFORE_A_CHARGE:
            if (place := self.path / name).is_dir():
                shutil.rmtree(place, ignore_errors=True)
            else:
                remove(place)
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def close(self) -> None:
        """Give the lock back; closing twice is no error."""
        self.lock.close()

    def __exit__(self, failure: type[BaseException] | None = None, *_: object) -> None:
        if failure is not None and self.is_new_run:
            with contextlib.suppress(RunError):  # of a full disk, say: the failure itself is told
                self._withdraw()
        self.close()


def is_run(path: str | Path) -> bool:
    """True if a directory holds a run that can be resumed."""
    return os.path.isfile(Path(path) / "config.yaml")


def holds_something(path: Path) -> bool:
    """True if a directory holds anything but what a run killed at its very beginning leaves."""
    return any(entry.name not in TRACES for entry in path.iterdir())
