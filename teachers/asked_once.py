"""A teacher that is asked once about an image; the runs of an audit share its answers in a file.

The file may have been put there by somebody else. It is written only where it is no link, holds
nothing but our two tables, and gives an answer only with the digest of the image it belongs to.
"""

import hashlib
import logging
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dfme.answers.reading import read_answers
from dfme.compute.modules import DeferredChecks
from dfme.errors import RunError
from dfme.spec import Teacher
from dfme.teachers.label_modes import Wrapper

AskTeacher = Callable[[Tensor], Tensor]
LOGGER = logging.getLogger("dfme")

SAID_AFTER = 2.0  # seconds of waiting for another run
GIVEN_UP_AFTER = 60.0  # seconds in which no other run kept an answer
PAUSE = 0.02  # seconds between two attempts
HELD = 20.0  # seconds for which a run asks a slow teacher before it lets others ask

TABLES = (
    "CREATE TABLE answers (image BLOB PRIMARY KEY, answer BLOB, digest BLOB)",
    "CREATE TABLE spared (images INTEGER)",
)
BESIDE = ("", "-journal", "-wal", "-shm")
"""What SQLite adds to the file's name for the files that it writes beside it."""

BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
REMEDY = "free disk space, or remove it to ask again"


class AskedOnce(Wrapper):
    """The same answers as ``teacher``, no service, asked through ``metered`` and never twice about
    an image.

    ``file``: an SQLite file with the answers. Runs that share it ask one after the other. RunError
    for a file that cannot be read or written, and for one that another run holds for too long.
    """

    def __init__(self, teacher: Teacher, file: Path, metered: AskTeacher | None = None) -> None:
        super().__init__(teacher)
        self._file = file
        self._metered = metered
        charged = metered or teacher.info.charged or teacher
        self.info = replace(self.info, charged=partial(self._shared, ask=charged, charged=True))
        self._seconds_per_image = 0.0
        with _opened(file):
            pass  # the tables are there from now on

    def _answers(self, images: Tensor, ask: AskTeacher) -> Tensor:
        return self._shared(images, self._metered or ask, charged=False)

    def _shared(self, images: Tensor, ask: AskTeacher, charged: bool) -> Tensor:
        """The answers, new ones by ``ask``; ``charged``: a ledger has all of the images."""
        most = len(images)
        if self._seconds_per_image:
            most = min(most, max(1, int(HELD / self._seconds_per_image)))
        if most == len(images):
            return self._part(images, ask, charged)
        return torch.cat([self._part(part, ask, charged) for part in images.split(most)])

    def _part(self, images: Tensor, ask: AskTeacher, charged: bool) -> Tensor:
        """The answers to images for which the file is held once."""
        codes = [
            hashlib.sha256(image.tobytes()).digest() for image in images.cpu().contiguous().numpy()
        ]
        with _opened(self._file) as kept:
            known = _read(kept, codes, self._file)
            new = {code: at for at, code in enumerate(codes) if code not in known}
            if new:
                raw = self._ask(images[[*new.values()]], ask)
                form = len(new), self.num_classes, self.label_mode
                try:
                    answers = read_answers(
                        raw, *form, DeferredChecks(), torch.device("cpu")
                    ).numpy()
                except Exception:
                    return raw  # the oracle says what is wrong with it
                fresh = {code: answer.tobytes() for code, answer in zip(new, answers, strict=True)}
                _keep(kept, fresh)
                known |= fresh
            if charged:
                kept.execute("INSERT INTO spared VALUES (?)", (len(codes) - len(new),))
        labels = self.label_mode.kind == "label"
        shape = (len(codes),) if labels else (len(codes), self.num_classes)
        joined = b"".join(known[code] for code in codes)
        try:
            values = np.frombuffer(joined, np.int64 if labels else np.float32).reshape(shape)
        except ValueError:
            raise RunError(
                f"{self._file}: its answers are not of the form {self.label_mode} with "
                f"{self.num_classes} classes; {REMEDY}"
            ) from None
        return torch.from_numpy(values.copy()).to(images.device)

    def _ask(self, images: Tensor, ask: AskTeacher) -> Tensor:
        """The answers of ``ask``, and how long it takes for one."""
        started = time.monotonic()
        raw = ask(images)
        self._seconds_per_image = (time.monotonic() - started) / len(images)
        return raw


def spared(files: Iterable[Path]) -> int:
    """Images, charged by some ledger, to which the runs that share such a file had answers without
    asking.
    """
    total = 0
    for file in files:
        with _opened(file) as kept:
            total += int(kept.execute("SELECT TOTAL(images) FROM spared").fetchone()[0])
    return total


def _digest(code: bytes, answer: bytes) -> bytes:
    """What ties an answer to the image whose digest is ``code``."""
    return hashlib.sha256(code + answer).digest()


def _read(kept: sqlite3.Connection, codes: list[bytes], file: Path) -> dict[bytes, bytes]:
    """The answers that are there. RunError for one that belongs to another image."""
    known: dict[bytes, bytes] = {}
    for code in codes:
        for answer, digest in kept.execute(
            "SELECT answer, digest FROM answers WHERE image = ?", (code,)
        ):
            if not isinstance(answer, bytes) or digest != _digest(code, answer):
                raise RunError(
                    f"{file}: an answer in it is not the one that was kept for its image; {REMEDY}"
                )
            known[code] = answer
    return known


def _keep(kept: sqlite3.Connection, fresh: dict[bytes, bytes]) -> None:
    rows = [(code, answer, _digest(code, answer)) for code, answer in fresh.items()]
    kept.executemany("INSERT INTO answers VALUES (?, ?, ?)", rows)


@contextmanager
def _opened(file: Path) -> Iterator[sqlite3.Connection]:
    """One transaction, alone. RunError, with what to do, for a file that cannot be used."""
    _require_plain(file)
    try:
        connection = sqlite3.connect(file, timeout=0, isolation_level=None)
        with closing(connection) as kept:
            _patiently(file, kept, "BEGIN IMMEDIATE")
            try:
                _require_tables(kept, file)
                yield kept
            except BaseException:
                if kept.in_transaction:
                    kept.execute("ROLLBACK")
                raise
            _patiently(file, kept, "COMMIT")
    except sqlite3.Error as error:
        raise RunError(
            f"{file}: cannot keep the answers that runs share: {error}; {REMEDY}"
        ) from error


def _require_plain(file: Path) -> None:
    """RunError for a link, or anything else that is no file, in the place of what SQLite writes."""
    beside = [Path(f"{file}{ending}") for ending in BESIDE]
    strange = [path for path in beside if path.exists() and not path.is_file()]
    strange += [path for path in (file.parent, *beside) if path.is_symlink()]
    if strange:
        raise RunError(
            f"{strange[0]}: expected a file of answers that runs share, got a link, a folder or a "
            "pipe; "
            "nothing is written through it; remove it"
        )


def _patiently(file: Path, kept: sqlite3.Connection, statement: str) -> None:
    """Execute a statement once no other run holds the file. RunError if one holds it too long."""
    started = time.monotonic()
    progress = started
    version = _version(kept)
    said = False
    while True:
        try:
            kept.execute(statement)
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in BUSY:
                raise
        now = time.monotonic()
        if (latest := _version(kept)) != version:  # the other run kept an answer
            version = latest
            progress = now
        if now - progress > GIVEN_UP_AFTER:
            raise RunError(
                f"{file}: held by another process for {now - progress:.0f} s, in which it kept no "
                "answer; end that process, or wait for it, and resume this run"
            )
        if now - started > SAID_AFTER and not said:
            said = True
            LOGGER.warning(
                "waiting for another run, which asks the same teacher: it holds %s",
                file,
            )
        time.sleep(PAUSE)


def _version(kept: sqlite3.Connection) -> int | None:
    """A number that changes with each change by another process; None while that writes."""
    with suppress(sqlite3.OperationalError):
        return int(kept.execute("PRAGMA data_version").fetchone()[0])
    return None


def _require_tables(kept: sqlite3.Connection, file: Path) -> None:
    """Make our tables in a file without any. RunError for a file with anything else in it.

    A view or a trigger could answer in the place of the teacher, or write elsewhere.
    """
    entries = kept.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name").fetchall()
    if not entries:
        for table in TABLES:
            kept.execute(table)
        return
    strange = [
        f"{kind} {name}" for kind, name, sql in entries if sql is not None and sql not in TABLES
    ]
    if strange or {sql for _, _, sql in entries if sql is not None} != set(TABLES):
        what = ", ".join(strange)[:200] or "not all of its tables"
        raise RunError(
            f"{file}: expected the answers that runs of this version share, got {what}; remove it "
            "to ask again"
        )
