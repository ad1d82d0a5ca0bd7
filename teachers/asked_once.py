"""A teacher that is asked once about an image; the runs of an audit share its answers in a file."""

import hashlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dfme.answers.reading import CHARGED, read_answers
from dfme.compute import DeferredChecks
from dfme.errors import RunError
from dfme.spec import Teacher
from dfme.teachers.label_modes import Wrapper

PATIENCE = 3600.0  # seconds until a run gives up, while others ask

TABLES = """
CREATE TABLE IF NOT EXISTS answers (image BLOB PRIMARY KEY, answer BLOB);
CREATE TABLE IF NOT EXISTS spared (images INTEGER);
"""


class AskedOnce(Wrapper):
    """The same answers as ``teacher``, no service, asked through ``metered`` and never twice about an image.

    ``file``: an SQLite file with the answers. Runs that share it ask one after the other. RunError for a file
    that cannot be read or written.
    """

    def __init__(
        self, teacher: Teacher, file: Path, metered: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        super().__init__(teacher)
        self._file = file
        self._metered = metered or teacher
        with _opened(file) as kept:
            kept.executescript(TABLES)

    def _answers(self, images: Tensor, ask: Callable[[Tensor], Tensor]) -> Tensor:
        codes = [hashlib.sha256(image.tobytes()).digest() for image in images.cpu().contiguous().numpy()]
        find = "SELECT image, answer FROM answers WHERE image = ?"
        with _opened(self._file) as kept:
            kept.execute("BEGIN IMMEDIATE")
            known: dict[bytes, bytes] = dict(row for code in codes for row in kept.execute(find, (code,)))
            new = {code: at for at, code in enumerate(codes) if code not in known}
            if new:
                raw = self._metered(images[[*new.values()]])
                form = len(new), self.num_classes, self.label_mode
                try:
                    answers = read_answers(raw, *form, DeferredChecks(), torch.device("cpu")).numpy()
                except Exception:
                    return raw  # the oracle says what is wrong with it
                rows = dict(zip(new, (answer.tobytes() for answer in answers), strict=True))
                kept.executemany("INSERT INTO answers VALUES (?, ?)", rows.items())
                known |= rows
            if CHARGED.get():  # a ledger has all of them
                kept.execute("INSERT INTO spared VALUES (?)", (len(codes) - len(new),))
        labels = self.label_mode.kind == "label"
        shape = (len(codes),) if labels else (len(codes), self.num_classes)
        joined = b"".join(known[code] for code in codes)
        found = np.frombuffer(joined, np.int64 if labels else np.float32).reshape(shape)
        return torch.from_numpy(found.copy()).to(images.device)


def spared(files: Iterable[Path]) -> int:
    """Images, charged by some ledger, to which the runs that share such a file had answers without asking."""
    found = 0
    for file in files:
        with _opened(file) as kept:
            found += int(kept.execute("SELECT TOTAL(images) FROM spared").fetchone()[0])
    return found


@contextmanager
def _opened(file: Path) -> Iterator[sqlite3.Connection]:
    """One transaction. RunError, with what to do, for a file that is damaged or cannot be written."""
    try:
        with closing(sqlite3.connect(file, timeout=PATIENCE)) as kept, kept:
            yield kept
    except sqlite3.Error as error:
        remedy = "free disk space, or remove it to ask again"
        raise RunError(f"{file}: cannot keep the answers that runs share: {error}; {remedy}") from error
