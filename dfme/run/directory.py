"""The run directory: where a run's files lie, and the lock that keeps a second process out of it.

``flock`` decides among the processes of one host, but may not reach the others of a shared file
system. So ``.lock`` names its holder, who touches it: its time of change is the latest beat. All
times are the file system's, no host's.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Mapping
from itertools import chain, count
from pathlib import Path
from typing import Any

from dfme.config.messages import printable
from dfme.config.yaml_files import sealed
from dfme.data import DATASETS, whole_name
from dfme.errors import Ref, RunError, UserError, say
from dfme.files import remove, write_text
from dfme.oracle.ledger_log import audit

LOCK = ".lock"
BEAT_SECONDS = 30.0
DEAD_SECONDS = 120.0  # without a beat for so long, a process of another host holds nothing
MAX_LOCK_BYTES = 500  # of a lock that is read
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class InUseError(UserError):
    """Another process holds a lock."""


def wait_for_lock(path: Path) -> DirectoryLock:
    """The lock of a directory, once no other process holds it."""
    while True:
        try:
            return DirectoryLock(path)
        except InUseError:
            time.sleep(0.1)


class DirectoryLock:
    """A lock from creation until ``close`` or the process's end. ``note``: a remark for the user.

    Raises UserError, about ``option``, if another process holds it, or the directory cannot
    be written.
    """

    def __init__(self, path: Path, option: str = "out") -> None:
        self.note = ""
        self._fd = -1
        self._ended = threading.Event()
        self._option = option
        self._own = json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode()
        try:
            self._fd = os.open(
                path / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644
            )
            os.lseek(self._fd, 0, os.SEEK_END)  # which a pipe refuses
            self._take(path)
        except InUseError:
            os.close(self._fd)
            raise
        except OSError as error:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            problem = f"cannot write to the directory: {error.strerror}"
            if error.errno in NO_LOCKS:
                problem += (
                    "; its file system has no locks: mount it with -o flock, or without "
                    "-o nolock (NFS)"
                )
            raise UserError(problem, about=Ref(option, path)) from None
        threading.Thread(target=self._beat, daemon=True).start()

    def _take(self, path: Path) -> None:
        """Take the lock. InUseError, which names the other process, where one is at work."""
        busy = True
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            busy = False
        host, pid = self._holder()
        there = host not in ("", socket.gethostname())
        age = 0.0
        if there:
            with tempfile.TemporaryFile(dir=path) as fresh:  # what time it is on the file system
                os.utime(fresh.fileno())
                age = os.fstat(fresh.fileno()).st_mtime - os.fstat(self._fd).st_mtime
        holder = f"process {pid}"
        if there:
            holder += f" on {host}, {age:.0f} s after its latest sign of life"
        if busy or (
            there and abs(age) < DEAD_SECONDS
        ):  # a beat far ahead is none of this file system's
            wait = "" if busy else f" (or {DEAD_SECONDS - age:.0f} s if it is gone)"
            raise InUseError(
                say(
                    "in use by {}; wait for it to end{}, stop it, or choose another {}",
                    holder,
                    wait,
                    Ref(self._option),
                ),
                about=Ref(self._option, path),
            )
        self.note = f"{path}: taken over from {holder}" if there else ""
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, self._own, 0)

    def _holder(self) -> tuple[str, str]:
        """Host and process that the file names, a stranger's text perhaps."""
        try:
            content = json.loads(os.pread(self._fd, MAX_LOCK_BYTES, 0))
            return printable(str(content["host"]))[:64], printable(str(content["pid"]))[:20]
        except (ValueError, LookupError, TypeError, RecursionError):  # none, or not ours
            return "", "unknown"

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            with contextlib.suppress(OSError):
                os.utime(self._fd)

    def close(self) -> None:
        """Give it back, also to other hosts, which need not wait then; closing twice is no
        error.
        """
        if self._fd < 0:
            return
        self._ended.set()
        with contextlib.suppress(OSError):
            if (
                os.pread(self._fd, MAX_LOCK_BYTES, 0) == self._own
            ):  # and nobody took it over meanwhile
                os.ftruncate(self._fd, 0)
        os.close(self._fd)
        self._fd = -1


TRACES = (
    LOCK,
    "config.yaml.tmp",
)  # of a process killed before its config.yaml was whole, which is no run
CHECKPOINTS = ("checkpoint.pt", "checkpoint.previous.pt")
QUERIES = "queries"
BEFORE_A_CHARGE = (  # what a run may write before it charges anything
    "config.yaml",
    "adapter.yaml",
    "ledger.jsonl",
    "metrics.jsonl",
    "watch.jsonl",
    QUERIES,
    *CHECKPOINTS,
    "data.json",
    "wandb.json",
    "journal",
    "samples",
    "replay",
    "wandb",
    "probes.pt",
    "channel.json",
    "drill.json",
    LOCK,
)
IMAGES = {
    "evaluation": ("dataset", "classes", "root"),
    "method": ("pool", "proxy", "partial_data", "root"),
    "student": ("weights",),
}
"""Options by section that name images or weights on disk, or say where they lie."""

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
        self.queries = path / QUERIES
        self.checkpoint, self.previous_checkpoint = (path / name for name in CHECKPOINTS)
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
